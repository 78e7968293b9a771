"""Group-relative advantages, normalised by the group's standard deviation."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import centred, estimator, moments_of


@estimator(needs=("reward",), level="rollout", scope="group")
def grpo(batch: GroupBatch, *, eps: float = 1e-6, ddof: int = 1, singleton: Literal["zero", "raw"] = "zero") -> Tensor:
    """Give every token of a rollout its reward's z-score within the group.

    A_i = (R_i - mean R) / (std R + eps), the same for all tokens of rollout i.

    Source: Shao et al., arXiv 2402.03300; eps and ddof as verl's `compute_grpo_outcome_advantage` (1e-6, ddof 1).
    TRL uses eps 1e-4; the paper writes the standard deviation without naming ddof.
    Returns (n_rollouts,) float64, in units of the group's standard deviation.
    Degenerate: 0 when all rewards of the group are equal (max == min) and for a group of one;
    `singleton=raw` keeps R / (1 + eps) for a group of one, as verl does.
    """
    return z_scores(batch, batch.rewards, eps, ddof, singleton)


def z_scores(batch: GroupBatch, rewards: Tensor, eps: float, ddof: int, singleton: str) -> Tensor:
    """Return (R - mean) / (std + eps) within groups (n_rollouts,), with the degenerate cases of `grpo`."""
    if ddof not in (0, 1) or eps < 0:
        raise KtaeError(f"ddof is 0 or 1, and eps is not negative; found ddof={ddof}, eps={eps}")
    moments = moments_of(batch, rewards)
    advantages = centred(batch, rewards) / (moments.std(ddof) + eps)[batch.group_index]
    advantages.masked_fill_(moments.constant[batch.group_index], 0.0)  # 0 / 0 where eps is 0
    if singleton == "raw":
        alone = (moments.size == 1)[batch.group_index]
        advantages = torch.where(alone, rewards / (1 + eps), advantages)
    return advantages
