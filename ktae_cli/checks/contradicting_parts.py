"""KT107: parts of one trajectory with different rewards."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT107", needs=("group", "rollout_id", "reward|correct"), severity="error", sees="table")
def contradicting_parts(table: Table) -> Iterator[Finding]:
    """Rows that share group_id and rollout_id, the parts of one trajectory, have different rewards.

    A trajectory counts once, with one reward; `score` refuses the file. Give each sampled trajectory an id of its own,
    or write the trajectory's reward to all its parts.
    """
    t = table.take((table.rollout != 0) & (table.group >= 0) & ~np.isnan(table.reward))
    order = np.lexsort((t.row, t.rollout, t.group))
    same = (np.diff(t.group[order]) == 0) & (np.diff(t.rollout[order]) == 0)
    odd = order[1:][same & (np.diff(t.reward[order]) != 0)]
    if len(odd):
        row = int(odd[t.row[odd].argmin()])
        yield Finding(
            f"{of(len(odd), len(table))} rows contradict the reward of another part of their trajectory, here "
            f"{t.reward[row]:g}; give each trajectory one rollout_id and one reward",
            int(t.row[row]),
            len(odd),
            len(table),
        )
