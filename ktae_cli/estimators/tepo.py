"""TEPO: a sequence ratio credited to tokens, with a KL term where a good response's entropy falls."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._ratios import (
    Terms,
    blocks,
    check_bounds,
    counts,
    is_open,
    masked,
    mean_ratios,
    ratio_terms,
    repeat,
    running_counts,
    token_estimate,
)
from ktae_cli.estimators.base import Estimate, estimator, old_log_probs
from ktae_cli.names import Spec

LARGEST_LOG, LARGEST_KL = 20.0, 10.0


@estimator(
    needs=("old_log_probs", "log_probs", "old_entropy", "entropy"),
    level="token",
    scope="group",
    columns=("ratio", "mask", "grad_weight", "kl", "kl_mask"),
    needs_when={"reference=ref": ("ref_log_probs",)},
)
def tepo(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    link: Literal["sequence", "prefix", "prefix_mean"] = "sequence",
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    beta: float = 0.0,
    reference: Literal["old", "ref"] = "old",
) -> Estimate:
    """Link a rollout's advantage to its tokens through a ratio of likelihoods, and hold tokens of falling entropy.

    The term of token t is min(R_t A_i, clip(R_t, 1 - eps_low, 1 + eps_high) A_i) - beta kl_mask_t kl_t; with
    d_u = log pi - log pi_old at the unmasked tokens,
    `link=sequence` R_t = exp(mean of d over the response), the same at each t; `prefix` R_t = exp(sum_{u <= t} d_u);
    `prefix_mean` R_t = exp(mean_{u <= t} d_u).
    kl_mask_t = A_i > 0 and entropy < old_entropy; kl_t = exp(e) - e - 1, e = log pi_ref - log pi, the reference being
    the policy that sampled (`reference=old`) or ref_log_probs (`ref`).
    grad_weight at u is the derivative of the rollout's sum of terms: A_i R_t where open (sequence); A_i sum of R_t over
    the open t >= u (prefix), of R_t / t (prefix_mean): early tokens weigh more there; to each is added
    beta kl_mask_u (exp(e) - 1). The terms are averaged as token_mean.

    Source: arXiv 2604.12736 and 2510.09369; the authors published no code. Confirmed by their abstracts: rewards of
    the group reach tokens through the sequence likelihood ("Markov likelihood") and token-level aggregation, and the
    KL mask on tokens of positive advantage and decreasing entropy. From a summary of the paper: the geometric-mean
    ratio. Our reading: the PPO form and where it clips; the two prefix links, the other meaning that the name allows;
    k3 as the KL, and its reference; entropies of the two policies as what decreases; all defaults (bounds as in DAPO,
    no KL).
    Returns advantages (the base), ratio (R_t, unclipped), mask (false where no open term reaches the token),
    grad_weight, kl (k3, nats, at every unmasked token) and kl_mask, (n_tokens,).
    Degenerate: equal policies give ratio 1 and, with link=sequence, grad_weight = base; link=sequence without KL is
    `gspo` at equal bounds. A_i <= 0 has no KL; A_i = 0 gives 0; 0 off the mask. log R is held below 10 as in verl's
    GSPO, e within +-20 and kl below 10 as in verl's `kl_penalty`; no gradient passes beyond.
    """
    check_bounds("tepo", eps_low, eps_high)
    if beta < 0:
        raise KtaeError(f"tepo: beta, the weight of the KL term, is not negative; found {beta:g}")
    terms = ratio_terms(base, batch)
    bounds = (1 - eps_low, 1 + eps_high)
    if link == "sequence":
        ratio, flows, slope = _sequence(terms, *bounds)
    else:
        ratio, flows, slope = _prefix(batch, terms, link == "prefix_mean", *bounds)
    weight = terms.advantage * slope
    kl, kl_slope = _k3(batch, terms, reference)
    kl_mask = (terms.advantage > 0) & (batch.entropy < batch.old_entropy) & terms.counted
    found = token_estimate(batch, terms, ratio, flows, weight, kl=kl, kl_mask=kl_mask)
    if beta:
        total = torch.where(flows, weight, 0.0) - torch.where(kl_mask, beta * kl_slope, 0.0)
        found.columns["grad_weight"] = masked(terms, total)
    return found


def _sequence(terms: Terms, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return R_t, where a gradient flows, and the slope of the rollout's sum of R_t, each (n_tokens,)."""
    ratio, within = mean_ratios(terms.means(terms.lengths))
    ratio, flows = repeat(ratio, terms.lengths), repeat(within & is_open(ratio, terms.base, low, high), terms.lengths)
    return ratio, flows, ratio


def _prefix(batch: GroupBatch, terms: Terms, mean: bool, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return R_t, where a gradient flows, and the slope of the rollout's sum of open R_t, each (n_tokens,)."""
    layout = blocks(terms.lengths)
    log_ratio = layout.running_sums(terms.log_ratio)
    if mean:
        length = running_counts(terms.counted, batch).clamp(min=1)
        log_ratio = log_ratio / length
    ratio, within = mean_ratios(log_ratio)
    opened = terms.counted & within & is_open(ratio, terms.advantage, low, high)
    slope = torch.where(opened, ratio / length if mean else ratio, 0.0)
    before = running_counts(opened, batch) - opened.long()
    flows = before < repeat(counts(opened, terms.lengths), terms.lengths)
    return ratio, flows, layout.running_sums(slope, backwards=True)


def _k3(batch: GroupBatch, terms: Terms, reference: str) -> tuple[Tensor, Tensor]:
    """Return k3 against the reference and its derivative with respect to log pi (n_tokens,) float64."""
    other = batch.ref_log_probs if reference == "ref" else old_log_probs(batch)
    error = torch.where(terms.counted, other.to(torch.float64) - batch.log_probs.to(torch.float64), 0.0)
    held = error.clamp(-LARGEST_LOG, LARGEST_LOG)  # k3 is above its own bound at both ends
    rise = torch.expm1(held)
    kl = rise - held
    return kl.clamp(max=LARGEST_KL), torch.where(kl <= LARGEST_KL, -rise, 0.0)
