"""Group-centred advantages without the division by the standard deviation."""

from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import centred, estimator


@estimator(needs=("reward",), level="rollout", scope="group")
def dr_grpo(batch: GroupBatch) -> Tensor:
    """Give every token of a rollout its reward minus the group's mean.

    A_i = R_i - mean R, the same for all tokens of rollout i.

    Source: Liu et al., arXiv 2503.20783; verl's `norm_adv_by_std_in_grpo=False`. The paper's other half, the loss
    divided by a constant instead of by the response's length, belongs to the trainer.
    Returns (n_rollouts,) float64, in units of the reward.
    Degenerate: 0 when all rewards of the group are equal and for a group of one (verl keeps the raw reward there).
    """
    return centred(batch, batch.rewards)
