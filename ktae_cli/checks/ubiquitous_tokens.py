"""KT310: positions whose token is in every rollout of its group."""

import numpy as np

from ktae_cli.checks._rows import Input, Rows
from ktae_cli.checks.base import Finding, Watch, rule


@rule(id="KT310", needs=("response_ids", "group"), severity="note", sees="rows")
def ubiquitous_tokens(input: Input, *, share: float = 0.6, groups: int = 2000) -> Watch:
    """Positions hold a token that every rollout of the group has, more than `share` of all (default 0.6).

    Presence in right and wrong rollouts is what is counted, so such a token can never be a key token: its test has
    nothing to tell apart, and only its frequency can move its weight. Long responses and few rollouts make this share
    large; sample more rollouts a prompt, or look at `ktae_paper` and the frequency term (tf=off). Looked at: the first
    `groups` (default 2000) groups of two or more rows. Rows that are parts of one trajectory count apart.
    """
    shared: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # group -> ids in all its rows so far, and how often
    totals, sizes = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    while rows := (yield):
        for row in np.flatnonzero((rows.group >= 0) & (rows.group < groups) & (rows.policy_lengths > 0)).tolist():
            code = int(rows.group[row])
            ids, times = np.unique(_policy_ids(rows, row), return_counts=True)
            totals[code] += times.sum()
            sizes[code] += 1
            if code in shared:
                before, counts = shared[code]
                both, own, theirs = np.intersect1d(ids, before, assume_unique=True, return_indices=True)
                ids, times = both, times[own] + counts[theirs]
            shared[code] = ids, times
    several = [code for code in shared if sizes[code] > 1]
    count, total = sum(int(shared[c][1].sum()) for c in several), int(totals[several].sum())
    if total and count > share * total:
        yield Finding(
            f"{100 * count / total:.0f} % of the {total:,} positions hold a token that every rollout of the group has: "
            "it can never be a key token",
            None,
            count,
            total,
        )


def _policy_ids(rows: Rows, row: int) -> np.ndarray:
    span = slice(rows.ends[row] - rows.lengths[row], rows.ends[row])
    return rows.ids[span][rows.mask[span]]
