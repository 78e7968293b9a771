"""Whitening over the unmasked tokens of a step's batch, which REINFORCE++ and GDPO share."""

from typing import Protocol

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.stats.pooled import StepMoments, WeightedValues, steps_of

EPSILON = 1e-8
"""Added to the variance, as in verl's `masked_whiten`."""


class HasMoments(Protocol):
    """Statistics that know the moments of each rollout's step."""

    def moments(self, step: Tensor | None, n_rollouts: int, device: torch.device | str) -> StepMoments: ...


def token_values(batch: GroupBatch, per_rollout: Tensor) -> WeightedValues:
    """Gather a value per rollout (n_rollouts,), once for each of its unmasked tokens."""
    return weighted(batch, per_rollout, batch.counted_lengths)


def weighted(batch: GroupBatch, per_rollout: Tensor, weight: Tensor) -> WeightedValues:
    """Gather a value per rollout with a whole-number weight, both (n_rollouts,)."""
    return WeightedValues(steps_of(batch.step, batch.n_rollouts), per_rollout.cpu().numpy(), weight.cpu().numpy())


def whiten(batch: GroupBatch, values: Tensor, pooled: HasMoments, per_token: bool = False) -> Tensor:
    """Return (x - mean) / sqrt(var + 1e-8) with the mean and the unbiased variance over the step's unmasked tokens.

    values: (n_rollouts,), or with `per_token` (n_tokens,). A rollout weighs as many times as it has unmasked tokens.
    Source: verl's `masked_whiten`; it raises for a batch of one token, where this is 0.
    Degenerate: 0 where all values of the step are equal, and in a step without an unmasked token.
    """
    weight, mean, variance = pooled.moments(batch.step, batch.n_rollouts, batch.offsets.device)
    scale = torch.where(weight > 0, 1 / torch.sqrt(variance + EPSILON), 0.0)
    if per_token:
        mean, scale = (
            torch.repeat_interleave(column, batch.lengths, output_size=len(values)) for column in (mean, scale)
        )
    return (values - mean) * scale
