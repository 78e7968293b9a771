"""KT204: wrong rollouts that are rewarded above right ones."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT204", needs=("group", "reward", "correct"), severity="warning", sees="table")
def reward_against_verdict(table: Table, *, share: float = 0.01) -> Iterator[Finding]:
    """Wrong rollouts are rewarded above right ones of their group.

    Reported for more than `share` (default 0.01) of the wrong rollouts of mixed groups. The base advantage follows the
    reward, the key weights follow the verdict: here they pull the policy in opposite directions. A length penalty does
    this on purpose; a swapped column or an inverted grader does it by mistake. Compare a few rows; --reward-from
    correct takes the verdict for both.
    """
    t = table.trajectories.judged
    least_right = np.full(t.n_groups, np.inf)
    right = t.correct == 1
    np.minimum.at(least_right, t.group[right], t.reward[right])
    odd = ~right & (t.reward > least_right[t.group])
    count, total = int(odd.sum()), int((~right).sum())
    if count > share * total:
        row = int(np.flatnonzero(odd)[0])
        yield Finding(
            f"{of(count, total)} wrong rollouts have a higher reward than a right one of their group, here "
            f"{t.reward[row]:g} above {least_right[t.group[row]]:g}; compare the two columns, or use "
            "--reward-from correct",
            int(t.row[row]),
            count,
            total,
        )
