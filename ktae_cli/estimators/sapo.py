"""SAPO: a sigmoid gate on the token ratio in place of a clip."""

import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._ratios import ratio_terms, token_estimate, token_ratios
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(needs=("old_log_probs", "log_probs"), level="token", scope="group", columns=("ratio", "mask", "grad_weight"))
def sapo(batch: GroupBatch, *, base: Spec = "grpo", tau_pos: float = 1.0, tau_neg: float = 1.05) -> Estimate:
    """Pass each token's ratio through a sigmoid gate, whose gradient fades away from 1.

    The term of a token is A_i (4 / tau) sigma(tau (r_t - 1)), r_t = pi / pi_old; tau = tau_pos where A_i > 0, else
    tau_neg. grad_weight = A_i r_t 4 p (1 - p), p = sigma(tau (r_t - 1)): A_i at r_t = 1 whatever tau.

    Source: arXiv 2511.20347; verl's `compute_policy_loss_sapo` and TRL's loss_type sapo, with these temperatures, both
    averaged as seq_mean_token_mean.
    Returns advantages (the base), ratio (r_t, before the gate), mask and grad_weight, (n_tokens,).
    Degenerate: equal policies give ratio 1 and grad_weight = base; A_i = 0 gives 0; 0 off the mask. There is no clip;
    log r_t is held within +-20, as in verl, and mask is false beyond.
    """
    if tau_pos <= 0 or tau_neg <= 0:
        raise KtaeError(f"sapo: tau_pos and tau_neg are positive, found {tau_pos:g} and {tau_neg:g}")
    terms = ratio_terms(base, batch)
    ratio, within = token_ratios(terms.log_ratio)
    tau = torch.where(terms.advantage > 0, tau_pos, tau_neg).to(torch.float64)
    gate = torch.sigmoid(tau * (ratio - 1))
    return token_estimate(batch, terms, ratio, within, terms.advantage * ratio * 4 * gate * (1 - gate))
