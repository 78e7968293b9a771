"""REINFORCE++ with the group's mean as baseline, whitened over the tokens of the whole batch."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators._whitening import token_values, whiten
from ktae_cli.estimators.base import centred, estimator
from ktae_cli.stats.pooled import WeightedValues


@estimator(needs=("reward",), level="rollout", scope="batch")
def reinforce_plus_plus_baseline(batch: GroupBatch, pooled: WeightedValues) -> Tensor:
    """Give every token of a rollout its reward minus the group's mean, whitened over the step's unmasked tokens.

    x_i = R_i - mean R of the group; A_i = (x_i - mean x) / sqrt(var x + 1e-8), mean and unbiased variance over all
    unmasked tokens of the step's batch, so a rollout weighs as many times as it is long.

    Source: Hu et al., arXiv 2501.03262; verl's `compute_reinforce_plus_plus_baseline_outcome_advantage` and
    `masked_whiten`.
    Returns (n_rollouts,) float64, in units of the batch's standard deviation; the same bits for any order and cut of
    the rows.
    Degenerate: as in verl, a group of one keeps its raw reward as x. Whitening re-centres, so a group of equal rewards
    has the value -mean x / sqrt(var x + 1e-8), which is 0 only where long and short responses do equally well. 0 where
    all x of the step are equal and in a step of one token (verl raises there). A rollout without an unmasked token
    counts in the mean of its group alone.
    """
    return whiten(batch, _above_the_mean(batch), pooled)


def _pool(batch: GroupBatch, known) -> WeightedValues:
    """Gather the centred rewards of the batch's unmasked tokens."""
    return token_values(batch, _above_the_mean(batch))


reinforce_plus_plus_baseline.pool = _pool


def _above_the_mean(batch: GroupBatch) -> Tensor:
    alone = (batch.group_sizes == 1)[batch.group_index]
    return torch.where(alone, batch.rewards, centred(batch, batch.rewards))
