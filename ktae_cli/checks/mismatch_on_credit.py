"""KT405: engine and trainer disagree where the credit is."""

import numpy as np

from ktae_cli.association import Comparisons, compare_within_groups
from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, Watch, rule
from ktae_cli.off_policy_rows import ENGINE_TRAINER, PairRows, token_values


@rule(
    id="KT405",
    needs=("response_ids", "rollout_log_probs", "old_log_probs", "advantages"),
    severity="warning",
    sees="rows",
)
def mismatch_on_credit(input: Input, *, auc: float = 0.6, top: float = 0.1, z: float = 4.0) -> Watch:
    """The mismatch of engine and trainer sits on the tokens with the largest |advantage| of a scored file.

    Within each rollout, the `top` (default 0.1) tokens by |advantage| are compared with the others by |log r|: reported
    when theirs is the larger one in at least `auc` (default 0.6) of the pairs, ties one half, and by `z` (default 4)
    standard deviations more than chance. The gradient is then largest where the ratio is least to be trusted. Correct
    with truncated importance weights, or repair the engine. Rollouts with one advantage throughout say nothing.
    """
    found, sums = Comparisons(), np.zeros(4)
    while rows := (yield):
        pair = rows.compare(ENGINE_TRAINER)
        credit = np.abs(np.nan_to_num(token_values(rows.column("advantages"), pair)))
        is_top, group, size = _top(credit, pair, top), _rollout_of(pair), np.abs(pair.log_ratio)
        found = found.merge(compare_within_groups(size, is_top, group))
        sums += size[is_top].sum(), is_top.sum(), size[~is_top].sum(), (~is_top).sum()
    if found.pairs and found.auc >= auc and found.z >= z:
        yield Finding(
            f"engine and trainer disagree most where |advantage| is largest: |log r| {sums[0] / sums[1]:.3g} there, "
            f"{sums[2] / max(sums[3], 1):.3g} elsewhere (larger in {100 * found.auc:.0f} % of the pairs)",
            None,
            int(sums[1]),
            int(sums[1] + sums[3]),
        )


def _rollout_of(pair: PairRows) -> np.ndarray:
    return np.repeat(np.arange(len(pair.policy_lengths)), pair.policy_lengths)


def _top(credit: np.ndarray, pair: PairRows, share: float) -> np.ndarray:
    """Return which of the policy's tokens are among the largest of their rollout, none where all are equal."""
    chosen, start = np.zeros(len(credit), bool), 0
    for length in pair.policy_lengths.tolist():
        own = credit[start : start + length]
        if length and own.min() < own.max():
            count = max(1, int(share * length))
            least = np.partition(own, -count)[-count]
            tied = np.count_nonzero(own >= least) > 2 * count  # then those above the tie alone
            chosen[start : start + length] = own > least if tied else own >= least
        start += length
    return chosen
