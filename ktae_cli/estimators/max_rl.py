"""Maximum-likelihood reinforcement learning: centred rewards over the group's mean."""

from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.estimators.base import centred, estimator, moments_of


@estimator(needs=("reward",), level="rollout", scope="group")
def max_rl(batch: GroupBatch, *, eps: float = 1e-6) -> Tensor:
    """Give every token of a rollout its reward relative to the group's mean: the rarer a success, the larger.

    A_i = (R_i - mean R) / (mean R + eps); for rewards of 0 and 1, R_i / (share of right rollouts) - 1.

    Assumes rewards of at least 0, meant for 0 and 1.
    Source: arXiv 2602.02710; the authors' code (tajwarfahim/maxrl, core_algos.py) with its eps 1e-6.
    Returns (n_rollouts,) float64, in units of the group's mean reward.
    Degenerate: 0 when all rewards of the group are equal, all wrong included, and for a group of one (the authors' code
    takes a mean of 0 there and gives R / eps). Raises `InputError` for a negative reward in a group of unequal ones,
    `KtaeError` for a negative eps.
    """
    if eps < 0:
        raise KtaeError(f"max_rl: eps is not negative, found {eps}")
    moments = moments_of(batch, batch.rewards)
    constant = moments.constant[batch.group_index]
    negative = batch.rewards[(batch.rewards < 0) & ~constant]
    if len(negative):
        raise InputError(
            f"max_rl divides by the group's mean reward, so rewards are at least 0; found {float(negative[0]):g}; "
            "choose another estimator, or take rewards of 0 and 1 with --reward-from correct"
        )
    return (centred(batch, batch.rewards) / (moments.mean + eps)[batch.group_index]).masked_fill_(constant, 0.0)
