"""cDPO: contrast of a model of right trajectories with a model of wrong ones, per token."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.estimators._ratios import counted_tokens
from ktae_cli.estimators.base import Estimate, estimator, rollout_advantages
from ktae_cli.names import Spec

_ROUNDING = 1e-2
"""How far above 1 a score may come from float32 log-probabilities."""


@estimator(
    needs=("positive_log_probs", "negative_log_probs"),
    level="token",
    scope="group",
    columns=("contrast",),
    needs_when={"normaliser=column": ("contrast_log_z",)},
)
def cdpo(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    beta: float = 1.0,
    normaliser: Literal["none", "column"] = "none",
    only_negative: bool = False,
) -> Estimate:
    """Score each token by a positive model against a negative one; a low score in a wrong rollout is a critical token.

    log s_t = (1 + beta) log p(o_t) - beta log q(o_t) - log Z_t, p a model tuned on right trajectories, q on wrong ones,
    Z_t the sum of p^(1 + beta) q^-beta over the vocabulary.
    `normaliser=none` leaves Z_t out: contrast = (1 + beta) log p - beta log q, in nats, for ranking tokens only, and
    the advantages are those of `base`. `normaliser=column` takes log Z_t from contrast_log_z: contrast = s_t, a
    probability, and the advantages are base times the token weight: s_t in right rollouts (1 with `only_negative`),
    1 - s_t in wrong ones, 1 where the verdict is unknown.

    Source: Lin et al., arXiv 2411.19943; score, beta = 1 and weights as in the authors' code
    (github.com/chenzhiling9954/Critical-Tokens-Matter), whose weights multiply DPO's log-ratios. Our reading: the same
    weights on a group-relative advantage. `contrast_probabilities` and `contrast_log_normaliser` take full logits.
    Returns advantages and contrast, (n_tokens,).
    Degenerate: equal models give contrast log p, or s_t = p with the normaliser; the base's own cases; 0 off the mask.
    Raises `KtaeError` where contrast_log_z makes a score larger than 1.
    """
    _check_beta(beta)
    counted = counted_tokens(batch)
    advantages = batch.spread(rollout_advantages(base, batch))
    positive, negative = (v.to(torch.float64) for v in (batch.positive_log_probs, batch.negative_log_probs))
    contrast = (1 + beta) * positive - beta * negative
    if normaliser == "column":
        contrast = _scores(torch.where(counted, contrast - batch.contrast_log_z.to(torch.float64), 0.0), beta)
        advantages = advantages * _weights(batch, contrast, only_negative).to(torch.float32)
    return Estimate(advantages, {"contrast": torch.where(counted, contrast, 0.0).to(torch.float32)})


def _scores(log_scores: Tensor, beta: float) -> Tensor:
    largest = float(log_scores.max()) if len(log_scores) else 0.0
    if largest > _ROUNDING:
        raise InputError(
            f"cdpo: contrast_log_z gives a token the score exp({largest:.4g}), and a score is at most 1; the column "
            f"holds the log of the sum of p^(1 + beta) q^-beta over the vocabulary, at beta={beta:g}"
        )
    return torch.exp(log_scores.clamp(max=0.0))


def _weights(batch: GroupBatch, scores: Tensor, only_negative: bool) -> Tensor:
    """Return the token weight (n_tokens,) by the rollout's verdict."""
    correct = torch.repeat_interleave(batch.correct, batch.lengths)
    of_right = torch.ones_like(scores) if only_negative else scores
    return torch.where(correct == 1, of_right, torch.where(correct == 0, 1 - scores, 1.0))


def contrast_probabilities(positive_logits: Tensor, negative_logits: Tensor, beta: float = 1.0) -> Tensor:
    """Return s over the vocabulary from the two models' logits (…, vocabulary): softmax((1 + beta) p - beta q).

    Logits or log-probabilities, finite; the result has the inputs' shape, in float64. Raises `KtaeError` otherwise.
    """
    return torch.softmax(_contrast_logits(positive_logits, negative_logits, beta), -1)


def contrast_log_normaliser(positive_logits: Tensor, negative_logits: Tensor, beta: float = 1.0) -> Tensor:
    """Return log Z (…,) float64, the column contrast_log_z, from the two models' logits (…, vocabulary)."""
    positive, negative = (torch.log_softmax(v.to(torch.float64), -1) for v in (positive_logits, negative_logits))
    return torch.logsumexp(_contrast_logits(positive, negative, beta), -1)


def _contrast_logits(positive: Tensor, negative: Tensor, beta: float) -> Tensor:
    _check_beta(beta)
    if positive.shape != negative.shape or not (torch.isfinite(positive).all() and torch.isfinite(negative).all()):
        raise KtaeError(
            "cdpo: the two models' logits are finite and over one vocabulary; "
            f"found shapes {tuple(positive.shape)} and {tuple(negative.shape)}"
        )
    return (1 + beta) * positive.to(torch.float64) - beta * negative.to(torch.float64)


def _check_beta(beta: float) -> None:
    if beta < 0:
        raise KtaeError(f"cdpo: beta, the weight of the negative model, is not negative; found {beta:g}")
