"""CISPO: a policy gradient whose importance weight is clipped and carries no gradient."""

from typing import Literal

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._ratios import check_bounds, ratio_terms, token_estimate, token_ratios
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(needs=("old_log_probs", "log_probs"), level="token", scope="group", columns=("ratio", "mask", "grad_weight"))
def cispo(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    cap: Literal["relative", "absolute"] = "relative",
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    eps_max: float = 5.0,
) -> Estimate:
    """Weigh log pi of each token with its clipped importance ratio, which stops no gradient.

    The term of a token is sg[clip(r_t)] A_i log pi, r_t = pi / pi_old, so grad_weight = A_i clip(r_t) at every token.
    `cap=relative` clips to [1 - eps_low, 1 + eps_high], as verl; `cap=absolute` clips above, at eps_max itself, as TRL,
    where eps_max is called epsilon_high.

    Source: MiniMax-M1, arXiv 2506.13585; verl's `compute_policy_loss_cispo` (its configuration's bounds are .2 and .2;
    .2 and .28 here are DAPO's) and TRL's loss_type cispo (5 is the value it recommends, of arXiv 2510.13786). Both
    average it as token_mean.
    Returns advantages (the base), ratio (r_t, unclipped), mask and grad_weight, (n_tokens,). mask is true at every
    unmasked token: the clip stops no gradient.
    Degenerate: equal policies give ratio 1 and grad_weight = base (times eps_max where that is below 1); A_i = 0 gives
    0; 0 off the mask. log r_t is held within +-20, as in verl.
    """
    check_bounds("cispo", eps_low, eps_high)
    if eps_max <= 0:
        raise KtaeError(f"cispo: eps_max, the largest ratio of cap=absolute, is positive; found {eps_max:g}")
    terms = ratio_terms(base, batch)
    ratio, _ = token_ratios(terms.log_ratio)
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high) if cap == "relative" else ratio.clamp(max=eps_max)
    return token_estimate(batch, terms, ratio, terms.counted, terms.advantage * clipped)
