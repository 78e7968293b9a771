"""GRPO-S: the reward of a rollout by its share of the mean entropy of its side."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._policy_tokens import mean_entropies
from ktae_cli.estimators._sides import EPS, sides_of, sums_within
from ktae_cli.estimators.base import estimator
from ktae_cli.stats.segments import moments_within_groups


@estimator(needs=("reward", "old_entropy"), level="rollout", scope="group")
def grpo_s(batch: GroupBatch, *, beta1: float = 1.0, beta2: float = 0.1, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """Shape a rollout's reward by its share of the mean entropies of its side, then take the z-score in the group.

    With H_i the mean entropy of rollout i: right ones r_i = beta1 + beta2 n H_i / sum_k H_k over the group's n right
    rollouts; wrong ones r_j = -(beta1 + beta2 m (1 / H_j) / sum_k (1 / H_k)) over its m wrong ones.
    A_i = (r_i - mean r) / (std r + eps) over both sides, the same for all tokens of rollout i.

    Source: Tan et al., arXiv 2508.04349, Eq. 8, 9, as noted by a re-implementation; the paper's text was not seen.
    Unconfirmed: the betas, eps and ddof (here as verl's GRPO). The ratio of its loss, a mean of token ratios, is the
    trainer's. Right and wrong come from `correct`; the reward decides only whether the group has a contrast.
    1e-8 is added to sum H and to each H before 1 / H; H is over unmasked tokens, below 0 counts as 0.
    Returns (n_rollouts,) float64.
    Degenerate: 0 where all rewards of the group are equal, for a group of one, and for rollouts of unknown verdict,
    which enter no mean. A rollout without unmasked tokens has no entropy: its share is one, r = +-(beta1 + beta2), and
    it counts in the mean of r. With one side only, entropies alone decide. On the wrong side a mean entropy of 0 takes
    the whole budget beta2 m.
    """
    if beta1 < 0 or beta2 < 0 or eps < 0 or ddof not in (0, 1):
        raise KtaeError(
            "beta1, beta2 and eps must not be negative, and ddof is 0 or 1; "
            f"found {beta1:g}, {beta2:g}, {eps:g} and {ddof}"
        )
    side = sides_of(batch)
    known = torch.nonzero(side < 2 * batch.n_groups).squeeze(1)
    advantages = torch.zeros_like(batch.rewards)
    if not len(known):
        return advantages
    right = batch.correct == 1
    shaped = torch.where(right, 1.0, -1.0) * (beta1 + beta2 * _shares(batch, side, right))
    group = torch.unique_consecutive(batch.group_index[known], return_inverse=True)[1]
    moments = moments_within_groups(shaped[known], group)
    centred = (shaped[known] - moments.mean[group]).masked_fill_(moments.constant[group], 0.0)
    advantages[known] = centred / (moments.std(ddof) + eps).clamp(min=torch.finfo(torch.float64).tiny)[group]
    return advantages


def _shares(batch: GroupBatch, side: Tensor, right: Tensor) -> Tensor:
    """Return n H / sum H of each rollout (n_rollouts,) float64, on the wrong side of 1 / H; 1 without tokens."""
    entropy, filled, n_sides = mean_entropies(batch), batch.counted_lengths > 0, 2 * batch.n_groups + 1
    weight = torch.where(filled, torch.where(right, entropy, 1 / (entropy + EPS)), 0.0)
    count = torch.bincount(side[filled], minlength=n_sides)
    total = sums_within(weight, side, n_sides) + EPS
    return torch.where(filled, weight * (count / total)[side], 1.0)
