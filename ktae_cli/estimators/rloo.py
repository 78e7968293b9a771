"""Leave-one-out baseline."""

from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import centred, estimator


@estimator(needs=("reward",), level="rollout", scope="group")
def rloo(batch: GroupBatch) -> Tensor:
    """Give every token of a rollout its reward minus the mean reward of the other rollouts of its group.

    A_i = R_i - mean_{j != i} R_j = G / (G - 1) * (R_i - mean R), G the size of the group.

    Source: Ahmadian et al., arXiv 2402.14740; verl's `compute_rloo_outcome_advantage`.
    Returns (n_rollouts,) float64, in units of the reward; never divided by a standard deviation.
    Degenerate: 0 when all rewards of the group are equal and for a group of one (verl keeps the raw reward there).
    """
    sizes = batch.group_sizes.to(batch.rewards.dtype)[batch.group_index]
    return centred(batch, batch.rewards) * sizes / (sizes - 1).clamp(min=1)
