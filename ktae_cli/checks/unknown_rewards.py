"""KT203: rollouts without a reward."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT203", needs=("reward|correct",), severity="warning", sees="table")
def unknown_rewards(table: Table, *, share: float = 0.0) -> Iterator[Finding]:
    """Rollouts without a known reward (null, NaN) or verdict, more than `share` of all (default: any).

    `ktae` leaves them out of every statistic, never counts them as wrong; a trainer that sums them as 0 moves the
    baseline of their siblings. Grade them again, or drop them on purpose: export says how many it drops.
    """
    unknown = np.isnan(table.reward) | (table.correct < 0)
    count = int(unknown.sum())
    if count > share * len(table):
        no_reward = int(np.isnan(table.reward).sum())
        only = f", {count - no_reward:,} of them the verdict alone" if no_reward < count else ""
        yield Finding(
            f"{of(count, len(table))} rollouts have no known reward or verdict{only}: they are in no statistic",
            int(table.row[unknown][0]),
            count,
            len(table),
        )
