"""Group policy gradient: centred rewards, scaled up where the batch carries little signal."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import centred, estimator, moments_of
from ktae_cli.stats.pooled import StepCounts, steps_of


@estimator(needs=("reward",), level="rollout", scope="batch")
def gpg(batch: GroupBatch, pooled: StepCounts, *, alpha: Literal["nonzero", "contrast"] = "nonzero") -> Tensor:
    """Give every token of a rollout its reward minus the group's mean, times alpha of its step's batch.

    A_i = alpha (R_i - mean R), alpha = B / max(1, n), B the rollouts of the step.
    `alpha=nonzero`: n counts the rollouts of the step whose reward is not 0, as verl does.
    `alpha=contrast`: n = B - M, M the rollouts of groups whose rewards are all equal: those that give no gradient.

    Source: Chu et al., arXiv 2504.02546; `nonzero` is verl's `compute_gpg_outcome_advantage` (its f_norm is 1).
    `contrast` is unverified: the paper's form as remembered, not read in its text or in the authors' code.
    Returns (n_rollouts,) float64, in units of the reward; the same bits for any order and cut of the rows.
    Degenerate: 0 when all rewards of the group are equal and for a group of one (verl keeps alpha times the raw reward
    there); a group of one counts in B and M. Responses without a token count as rollouts.
    """
    rollouts, counted = (
        pooled.of(name, batch.step, batch.n_rollouts, batch.offsets.device) for name in ("rollouts", "counted")
    )
    return centred(batch, batch.rewards) * (rollouts / counted.clamp(min=1))


def _pool(batch: GroupBatch, known, *, alpha: str = "nonzero") -> StepCounts:
    """Count the rollouts of each step, and those that alpha divides by."""
    if alpha == "nonzero":
        counted = batch.rewards != 0
    else:
        counted = ~moments_of(batch, batch.rewards).constant[batch.group_index]
    everyone = torch.ones_like(counted)
    return StepCounts(
        steps_of(batch.step, batch.n_rollouts),
        {"rollouts": everyone.cpu().numpy(), "counted": counted.cpu().numpy()},
    )


gpg.pool = _pool
