"""KT202: groups whose rewards are all equal."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT202", needs=("group", "reward|correct"), severity="note", sees="table")
def constant_groups(table: Table, *, share: float = 0.25) -> Iterator[Finding]:
    """Groups have one reward throughout, more than `share` of all groups (default 0.25).

    Every advantage in them is 0: they cost sampling and teach nothing. All right: the prompts are too easy; all wrong:
    too hard, or the grader fails. `ktae inspect` shows the pass rates. Groups of one are KT101's.
    """
    t = table.trajectories
    t = t.take(~np.isnan(t.reward))
    low, high = np.full(t.n_groups, np.inf), np.full(t.n_groups, -np.inf)
    np.minimum.at(low, t.group, t.reward)
    np.maximum.at(high, t.group, t.reward)
    several = t.sizes > 1
    dead = several & (low == high)
    count, total = int(dead.sum()), int(several.sum())
    if count > share * total:
        right = int((dead & (t.count(t.correct == 1) == t.sizes)).sum())
        wrong = int((dead & (t.count(t.correct == 0) == t.sizes)).sum())
        yield Finding(
            f"{of(count, total)} groups have one reward throughout ({right:,} all right, {wrong:,} all wrong): their "
            "advantages are 0",
            t.first_row(int(dead.argmax())),
            count,
            total,
        )
