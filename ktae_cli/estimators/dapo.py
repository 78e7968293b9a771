"""GRPO advantages on length-shaped rewards, with the dynamic-sampling filter."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import estimator, moments_of
from ktae_cli.estimators.grpo import z_scores


@estimator(needs=("reward",), level="rollout", scope="group")
def dapo(
    batch: GroupBatch,
    *,
    max_length: int = 0,
    buffer_length: int = 0,
    penalty: float = 1.0,
    floor: bool = True,
    filter: bool = True,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """Give every token of a rollout the z-score of its length-shaped reward, and nothing in groups without contrast.

    S_i = R_i + penalty * clip(((max_length - buffer_length) - T_i) / buffer_length, -1, 0), T_i the response's
    length in tokens; A_i = (S_i - mean S) / (std S + eps).
    `max_length=0` (the default) shapes nothing: the rollouts' length limit is the trainer's and not in the data.
    `buffer_length=0` is a fifth of max_length, as the paper's 4096 of 20480.
    `floor=false` leaves the penalty unbounded below, as verl's overlong buffer does.
    `filter` (dynamic sampling): 0 in groups whose known verdicts are all right or all wrong.

    Source: Yu et al., arXiv 2503.14476; eps and ddof as verl. Clipping range and token-mean loss belong to the trainer.
    Returns (n_rollouts,) float64.
    Degenerate: 0 when all shaped rewards of the group are equal and for a group of one. With `filter=false` a group
    of equal rewards and different overlong lengths has a signal: length alone.
    """
    shaped = shaped_rewards(batch, max_length, buffer_length, penalty, floor)
    advantages = z_scores(batch, shaped, eps, ddof, "zero")
    return torch.where(_keeps(batch), advantages, 0.0) if filter else advantages


def _in_loss(batch: GroupBatch, *, filter: bool = True, **_) -> Tensor:
    """Tell which rollouts (n_rollouts,) stay in the batch: with the filter, those of groups with a contrast."""
    return _keeps(batch) if filter else torch.ones_like(batch.correct, dtype=torch.bool)


dapo.in_loss = _in_loss


def _keeps(batch: GroupBatch) -> Tensor:
    known = batch.correct >= 0
    verdict = torch.where(known, batch.correct, 0).to(torch.float64)
    n_known = torch.bincount(batch.group_index[known], minlength=batch.n_groups)
    n_right = torch.bincount(batch.group_index, weights=verdict, minlength=batch.n_groups)
    dead = (n_known > 0) & ((n_right == 0) | (n_right == n_known))
    dead |= moments_of(batch, batch.rewards).constant
    return ~dead[batch.group_index]


def shaped_rewards(
    batch: GroupBatch, max_length: int = 0, buffer_length: int = 0, penalty: float = 1.0, floor: bool = True, **_
) -> Tensor:
    """Return the rewards with the overlong penalty (n_rollouts,): 0 to max - buffer, -penalty at max."""
    if max_length == 0:
        return batch.rewards
    if max_length < 0 or not 0 <= buffer_length <= max_length:
        raise KtaeError(f"dapo: buffer_length lies between 0 and max_length, found {buffer_length} and {max_length}")
    buffer_length = buffer_length or max(1, max_length // 5)
    over = ((max_length - buffer_length) - batch.lengths).to(torch.float64) / buffer_length
    return batch.rewards + penalty * over.clamp(min=-1.0 if floor else None, max=0.0)
