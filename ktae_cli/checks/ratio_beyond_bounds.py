"""KT403: tokens whose ratio of two policies is far from 1."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, Watch, rule
from ktae_cli.off_policy import ratios
from ktae_cli.off_policy_rows import ENGINE_TRAINER, find_pairs


@rule(id="KT403", needs=("response_ids", "ratio"), severity="warning", sees="rows")
def ratio_beyond_bounds(input: Input, *, low: float = 0.5, high: float = 2.0, share: float = 0.02) -> Watch:
    """The ratio of two policies lies far from 1 at many tokens.

    Reported where more than `share` (default 0.02) of them lie outside `low` to `high` (default 0.5 to 2). Between
    engine and trainer the two should be one policy: another precision, other sampling settings (temperature not applied
    to one of them) or stale weights show here. Between old and new policy the step is large, and the clip stops most of
    it. r = exp(new - old); `ktae inspect` has the quantiles.
    """
    pairs = find_pairs(input.mapping.columns)
    outside, total, first = [0] * len(pairs), [0] * len(pairs), [None] * len(pairs)
    while rows := (yield):
        for at, pair in enumerate(pairs):
            found = rows.compare(pair)
            ratio = ratios(found.log_ratio)
            odd = (ratio < low) | (ratio > high)
            outside[at] += int(odd.sum())
            total[at] += len(odd)
            if odd.any() and first[at] is None:
                row = int(np.searchsorted(np.cumsum(found.policy_lengths), int(odd.argmax()), "right"))
                first[at] = int(rows.numbers[row])
    for at, pair in enumerate(pairs):
        if total[at] and outside[at] > share * total[at]:
            same = pair == ENGINE_TRAINER
            way = "are temperature and weights the same?" if same else "the policy has moved far; the clip stops them"
            yield Finding(
                f"{pair.label}: the ratio of {100 * outside[at] / total[at]:.1f} % of {total[at]:,} tokens lies "
                f"outside {low:g} to {high:g} (exp of {pair.new} - {pair.old}); {way}",
                first[at],
                outside[at],
                total[at],
            )
