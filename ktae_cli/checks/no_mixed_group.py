"""KT205: no group has right and wrong rollouts."""

from collections.abc import Iterator

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, rule


@rule(id="KT205", needs=("group", "reward|correct"), severity="warning", sees="table")
def no_mixed_group(table: Table) -> Iterator[Finding]:
    """No group at all has both a right and a wrong rollout.

    Key tokens are what tells the two apart, so every key weight is 0. All right or all wrong throughout points at the
    threshold (--correct-threshold), the grader, or a group key that names single rollouts.
    """
    t = table.trajectories
    known = t.correct >= 0
    if known.any() and not t.is_mixed.any():
        right = int((t.correct == 1).sum())
        yield Finding(
            f"no group has both right and wrong rollouts ({right:,} of {int(known.sum()):,} are right): every key "
            "weight is 0; look at the threshold, the grader and the group key",
            None,
            0,
            t.n_groups,
        )
