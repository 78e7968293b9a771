"""KT106: one rollout id, several groups."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT106", needs=("group", "rollout_id"), severity="warning", sees="table")
def shared_rollout_ids(table: Table) -> Iterator[Finding]:
    """A rollout_id stands in more than one group.

    A rollout answers one prompt: the id counts within a group, or the group key cuts trajectories apart. Joining by the
    id later takes rows for each other. Use ids that are unique in the file, or map another column.
    """
    t = table.trajectories
    known = t.rollout != 0
    ids, index, counts = np.unique(t.rollout[known], return_inverse=True, return_counts=True)
    shared = counts > 1
    if shared.any():
        rows = t.row[known][shared[index]]
        yield Finding(
            f"{of(int(shared.sum()), len(ids))} rollout ids stand in several groups; make them unique in the file",
            int(rows.min()),
            int(shared.sum()),
            len(ids),
        )
