"""GSPO: one importance ratio a response, the geometric mean of its tokens' ratios."""

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators._ratios import check_bounds, is_open, mean_ratios, ratio_terms, rollout_estimate
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(needs=("old_log_probs", "log_probs"), level="token", scope="group", columns=("ratio", "mask", "grad_weight"))
def gspo(batch: GroupBatch, *, base: Spec = "grpo", eps_low: float = 3e-4, eps_high: float = 4e-4) -> Estimate:
    """Clip the geometric mean of a response's token ratios, and weigh each of its tokens with it.

    s_i = exp(mean_t (log pi - log pi_old)) over the T_i unmasked tokens of rollout i; the term of a token is
    min(s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i), A_i the advantage of `base`.
    grad_weight = s_i A_i where the clip lets the gradient flow, else 0. It is that of the sum of the T_i terms (T_i
    copies of s_i, each with a gradient of s_i / T_i), and that of the token form sg[s_i] pi / sg[pi].

    Source: Zheng et al., arXiv 2507.18071, with seq_mean_token_mean and 3e-4, 4e-4; verl's `compute_policy_loss_gspo`,
    TRL's GRPOTrainer with importance_sampling_level sequence and loss_type grpo.
    Returns advantages (the base, no ratio in them), ratio (s_i, unclipped), mask and grad_weight, (n_tokens,).
    Degenerate: equal policies give ratio 1 and grad_weight = base; A_i = 0 gives grad_weight 0 and mask true; 0 off
    the mask. log s_i is held below 10, as in verl, and passes no gradient beyond; TRL does not bound it.
    """
    check_bounds("gspo", eps_low, eps_high)
    terms = ratio_terms(base, batch)
    ratio, within = mean_ratios(terms.means(batch.lengths))
    flows = within & is_open(ratio, terms.base, 1 - eps_low, 1 + eps_high)
    return rollout_estimate(batch, terms, ratio, flows, terms.base * ratio)
