"""KT108: the same response again in one group."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT108", needs=("group", "response_ids|response"), severity="warning", sees="table")
def repeated_responses(table: Table, *, share: float = 0.2) -> Iterator[Finding]:
    """Rollouts repeat another of their group token for token, more than `share` of all (default 0.2).

    Either rows were written twice (every process of a distributed run logs all of them), and counts and p-values are
    too sure of themselves, or the policy has collapsed onto one answer. Drop the copies; give parts of one trajectory
    one rollout_id.
    """
    t = table.trajectories
    t = t.take((t.response != 0) & (t.length > 0))
    if not len(t):
        return
    _, first = np.unique(np.stack([t.group, t.response]), axis=1, return_index=True)
    again = np.setdiff1d(np.arange(len(t)), first)
    if len(again) > share * len(t):
        yield Finding(
            f"{of(len(again), len(t))} rollouts repeat another of their group token for token: rows written twice, or "
            "a policy that has collapsed",
            int(t.row[again].min()),
            len(again),
            len(t),
        )
