"""DHPO: token and sequence ratios, each clipped in its own range, then mixed."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._ratios import (
    Terms,
    check_bounds,
    is_open,
    mean_ratios,
    one_sided_clip,
    ratio_terms,
    repeat,
    token_estimate,
    token_ratios,
)
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(
    needs=("old_log_probs", "log_probs"),
    level="token",
    scope="group",
    columns=("ratio", "mask", "grad_weight"),
    needs_when={"mix=entropy": ("old_entropy",)},
)
def dhpo(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    mix: Literal["average", "entropy"] = "average",
    weight: float = 0.5,
    token_low: float = 0.2,
    token_high: float = 0.28,
    sequence_low: float = 3e-4,
    sequence_high: float = 4e-4,
) -> Estimate:
    """Mix the clipped token ratio with the clipped sequence ratio of a response.

    rho_t = w_t clip(r_t; token bounds) + (1 - w_t) clip(s_i; sequence bounds), r_t = pi / pi_old and
    s_i = exp(mean_t log r_t); each is clipped on the side where min(r A_i, clip(r) A_i) is: above for A_i > 0, below
    for A_i < 0. The term of a token is rho_t A_i.
    `mix=average` w_t = weight; `mix=entropy` w_t = (H_t - min H) / (max H - min H) over the unmasked tokens of the
    rollout, H the entropy of the policy that sampled: uncertain tokens go by their own ratio.
    grad_weight = A_i (w_t r_t where the token is open + (1 - w_t) s_i where the sequence is open); w_t has no
    gradient, and s_i is in GSPO's token form sg[s_i] pi / sg[pi].

    Source: arXiv 2601.05607; no code was published. Confirmed by the abstract: both ratios have their own trust region
    and are clipped before they are mixed, by averaging or guided by entropy. From a summary of the paper: the entropy
    carries no gradient. Our reading: PPO's one-sided clip in each branch, the token form of s_i, the law and the
    direction of the entropy weight, and all bounds (DAPO's for tokens, GSPO's for the sequence).
    Returns advantages (the base), ratio (rho_t: its clips are inside), mask (true where a branch that has weight is
    open) and grad_weight, (n_tokens,).
    Degenerate: equal policies give ratio 1 and grad_weight = base; weight=1 is PPO, weight=0 is `gspo`; where all
    entropies of a rollout are equal w_t = weight; A_i = 0 gives 0; 0 off the mask. log r_t is held within +-20 and
    log s_i below 10, as in verl, and neither passes a gradient beyond.
    """
    check_bounds("dhpo", token_low, token_high, ("token_low", "token_high"))
    check_bounds("dhpo", sequence_low, sequence_high, ("sequence_low", "sequence_high"))
    if not 0 <= weight <= 1:
        raise KtaeError(f"dhpo: weight, the share of the token ratio, lies between 0 and 1; found {weight:g}")
    terms = ratio_terms(base, batch)
    token = _branch(*token_ratios(terms.log_ratio), terms.advantage, 1 - token_low, 1 + token_high)
    sequence = _branch(*mean_ratios(terms.means(batch.lengths)), terms.base, 1 - sequence_low, 1 + sequence_high)
    sequence = tuple(repeat(values, batch.lengths) for values in sequence)
    share = _entropy_share(batch, terms, weight) if mix == "entropy" else torch.full_like(terms.advantage, weight)
    ratio, slope = (torch.lerp(s, t, share) for s, t in zip(sequence[:2], token[:2], strict=True))
    flows = (token[2] & (share > 0)) | (sequence[2] & (share < 1))
    return token_estimate(batch, terms, ratio, flows, terms.advantage * slope)


def _branch(ratio: Tensor, within: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the clipped ratio, its slope with respect to log pi, and where that is open, each shaped as the ratio."""
    opened = within & is_open(ratio, advantage, low, high)
    return one_sided_clip(ratio, advantage, low, high), torch.where(opened, ratio, 0.0), opened


def _entropy_share(batch: GroupBatch, terms: Terms, otherwise: float) -> Tensor:
    """Return where the old entropy of each token lies between the least and the largest of its rollout (n_tokens,)."""
    entropy, lengths = batch.old_entropy.to(torch.float64), batch.lengths
    least = torch.segment_reduce(entropy.masked_fill(~terms.counted, torch.inf), "min", lengths=lengths, unsafe=True)
    most = torch.segment_reduce(entropy.masked_fill(~terms.counted, -torch.inf), "max", lengths=lengths, unsafe=True)
    least, width = repeat(least, lengths), repeat(most - least, lengths)
    return torch.where(terms.counted & (width > 0), (entropy - least) / width, otherwise)
