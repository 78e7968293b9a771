"""KT501: length tells right from wrong."""

from collections.abc import Iterator

from ktae_cli.association import compare_within_groups
from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, rule


@rule(id="KT501", needs=("group", "reward|correct", "response_ids|response"), severity="warning", sees="table")
def verdict_by_length(table: Table, *, auc: float = 0.7, z: float = 4.0) -> Iterator[Finding]:
    """The length of a response tells right from wrong within its group.

    Of all pairs of a right and a wrong rollout of one group, the right one is the longer (or the shorter) in at least
    `auc` (default 0.7), ties one half, and by `z` (default 4) standard deviations more than chance. Tokens then look
    like keys because long responses hold more of them. Look at truncation and at the length reward; `ktae tokens` has
    p-values given length.
    """
    t = table.trajectories.judged
    found = compare_within_groups(t.length, t.correct == 1, t.group)
    share = max(found.auc, 1 - found.auc)
    if found.pairs and share >= auc and abs(found.z) >= z:
        longer = "longer" if found.auc > 0.5 else "shorter"
        yield Finding(
            f"the right response is the {longer} one in {100 * share:.0f} % of {found.pairs:,} pairs within groups: "
            "length explains much of the verdict, and key tokens may be tokens of long responses",
            None,
            None,
            found.pairs,
        )
