"""Optimal baseline under length-weighted rewards."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import centred, estimator
from ktae_cli.stats.segments import moments_within_groups


@estimator(needs=("reward",), level="rollout", scope="group")
def opo(batch: GroupBatch) -> Tensor:
    """Give every token of a rollout its reward minus the group's mean reward per token.

    A_i = R_i - b, b = sum_j T_j R_j / sum_j T_j over the group, T_j the unmasked tokens of rollout j: the baseline of
    least variance where the squared length of a rollout's gradient grows with its number of tokens.

    Source: Hao et al., arXiv 2505.23585; verl's `compute_opo_outcome_advantage`.
    Returns (n_rollouts,) float64, in units of the reward; never divided by a standard deviation.
    Degenerate: 0 when all rewards of the group are equal and for a group of one (verl keeps the raw reward there).
    An empty or wholly masked response has no weight in b; a group of only such has R_i minus the plain mean, at no
    token (verl divides by 0 there).
    """
    lengths = batch.counted_lengths.to(batch.rewards.dtype)
    above = centred(batch, batch.rewards)
    tokens = torch.bincount(batch.group_index, weights=lengths, minlength=batch.n_groups)  # exact: whole numbers
    weighted = moments_within_groups(lengths * above, batch.group_index)
    baseline = weighted.mean * weighted.size / tokens.clamp(min=1)
    return above - baseline[batch.group_index]
