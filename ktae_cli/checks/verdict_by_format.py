"""KT503: a format mark tells right from wrong."""

from collections.abc import Iterator

from ktae_cli.association import compare_within_groups
from ktae_cli.checks._table import FORMAT_MARKS, Table
from ktae_cli.checks.base import Finding, rule


@rule(id="KT503", needs=("group", "reward|correct", "response"), severity="warning", sees="table")
def verdict_by_format(table: Table, *, auc: float = 0.7, z: float = 4.0) -> Iterator[Finding]:
    r"""A format mark tells right from wrong within groups: `\boxed{`, `####`, `<answer>`, `</think>`, `Answer:`.

    Reported for the strongest mark when it does so in at least `auc` (default 0.7) of the pairs, ties one half, and by
    `z` (default 4) standard deviations more than chance. The verdict then judges the form: answers without the mark
    were not found. Key tokens will be format tokens. Grade with `ktae verify`, or teach the format first.
    """
    t = table.trajectories.judged
    right = t.correct == 1
    found = [compare_within_groups(t.marks[:, at].astype(float), right, t.group) for at in range(len(FORMAT_MARKS))]
    best = max(range(len(FORMAT_MARKS)), key=lambda at: found[at].auc if found[at].pairs else 0.0)
    if found[best].pairs and found[best].auc >= auc and found[best].z >= z:
        has = t.marks[:, best]
        yield Finding(
            f"{100 * has[right].mean():.0f} % of the right responses of mixed groups hold {FORMAT_MARKS[best]!r}, "
            f"{100 * has[~right].mean():.0f} % of the wrong: the verdict judges the format; grade with `ktae verify`",
            int(t.row[~right & ~has][0]),
            int((~right & ~has).sum()),
            int((~right).sum()),
        )
