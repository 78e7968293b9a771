"""GMPO: the geometric mean of a response's token ratios, each clipped before the mean."""

from typing import Literal

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._ratios import (
    Terms,
    is_open,
    mean_ratios,
    one_sided_clip,
    ratio_terms,
    repeat,
    rollout_estimate,
    token_estimate,
)
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(needs=("old_log_probs", "log_probs"), level="token", scope="group", columns=("ratio", "mask", "grad_weight"))
def gmpo(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    eps_low: float = 0.4,
    eps_high: float = 0.4,
    clip: Literal["token", "none", "sequence"] = "token",
) -> Estimate:
    """Weigh a response with the geometric mean of its token ratios, each clipped in log space before the mean.

    d_t = log pi - log pi_old; d*_t = min(d_t, eps_high) where A_i > 0, max(d_t, -eps_low) where A_i < 0;
    ratio_i = exp(mean_t d*_t) over the T_i unmasked tokens; the loss has one term A_i ratio_i a rollout.
    `clip=sequence` clips the sum of d_t instead of each, and divides by T_i afterwards; `clip=none` clips nothing.
    grad_weight = A_i ratio_i / T_i where d*_t = d_t, else 0. The loss is a mean over rollouts, so the weight of a
    token that fits it is 1 / N: `aggregation=seq_mean_token_sum`.

    Source: Zhao et al., arXiv 2507.20673; verl's `compute_policy_loss_geo_mean` and TRL's GMPOTrainer, bounds .4 in log
    space. clip=none and clip=sequence are ablations of the authors' code (github.com/callsys/GMPO); that its sequence
    clip is one-sided too is our reading. verl and TRL also count rollouts without a token in N.
    Returns advantages (the base), ratio (ratio_i: its token clips are inside), mask and grad_weight, (n_tokens,).
    Degenerate: equal policies give ratio 1 and grad_weight = base / T_i; with A_i = 0 nothing is clipped (verl sets
    the ratio to 1 there; the loss is 0 either way) and grad_weight is 0; 0 off the mask. The mean is held below 10
    and passes no gradient beyond; verl and TRL do not bound it.
    """
    if eps_low < 0 or eps_high < 0:
        raise KtaeError(f"gmpo: eps_low and eps_high are not negative, found {eps_low:g} and {eps_high:g}")
    terms = ratio_terms(base, batch)
    numbers = terms.numbers(batch.lengths).clamp(min=1)
    if clip == "token":
        clipped = one_sided_clip(terms.log_ratio, terms.advantage, -eps_low, eps_high)
        flows = is_open(terms.log_ratio, terms.advantage, -eps_low, eps_high)
        ratio, within = mean_ratios(terms.means(batch.lengths, clipped))
        ratio, within, weight = (repeat(v, batch.lengths) for v in (ratio, within, terms.base * ratio / numbers))
        return token_estimate(batch, terms, ratio, flows & within, weight)
    bounds = (-eps_low, eps_high) if clip == "sequence" else (-float("inf"), float("inf"))
    return _clip_the_sum(batch, terms, numbers, *bounds)


def _clip_the_sum(batch: GroupBatch, terms: Terms, numbers, low: float, high: float) -> Estimate:
    sums = terms.means(batch.lengths) * numbers
    ratio, within = mean_ratios(one_sided_clip(sums, terms.base, low, high) / numbers)
    flows = within & is_open(sums, terms.base, low, high)
    return rollout_estimate(batch, terms, ratio, flows, terms.base * ratio / numbers)
