"""KT502: truncation tells right from wrong."""

from collections.abc import Iterator

from ktae_cli.association import compare_within_groups
from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, rule


@rule(id="KT502", needs=("group", "reward|correct", "finish_reason"), severity="warning", sees="table")
def verdict_by_truncation(table: Table, *, auc: float = 0.7, z: float = 4.0) -> Iterator[Finding]:
    """In mixed groups, the wrong responses are those that were cut off.

    Reported when being cut tells wrong from right in at least `auc` (default 0.7) of the pairs of a group, ties one
    half (0.7: cut among the wrong 40 points above cut among the right), and by `z` (default 4) standard deviations more
    than chance. Key tokens are then tokens of unfinished text. Raise the limit, or use --truncated mask.
    """
    t = table.trajectories.judged
    wrong = t.correct == 0
    found = compare_within_groups(t.truncated.astype(float), wrong, t.group)
    if found.pairs and found.auc >= auc and found.z >= z:
        yield Finding(
            f"{100 * t.truncated[wrong].mean():.0f} % of the wrong responses of mixed groups were cut off, "
            f"{100 * t.truncated[~wrong].mean():.0f} % of the right: the limit makes the verdict; raise it, or use "
            "--truncated mask",
            int(t.row[wrong & t.truncated][0]),
            int((wrong & t.truncated).sum()),
            int(wrong.sum()),
        )
