"""Pass@k: only the best rollout of a group is credited, with its lead over the second."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._two_largest import two_largest
from ktae_cli.estimators.base import estimator, moments_of


@estimator(needs=("reward",), level="rollout", scope="group")
def grpo_passk(batch: GroupBatch, *, scale: bool = True, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """Give the best rollout of a group its lead over the second best, and every other rollout 0.

    A_best = (R_1 - R_2) / (std R + eps), R_1 and R_2 the two largest rewards of the group; `scale=false` leaves the
    division out. With rewards of 0 and 1 it is non-zero only where exactly one rollout is right, and no rollout ever
    gets a negative advantage. It is not the analytic pass@k advantage.

    Source: arXiv 2503.19595 as verl's `compute_grpo_passk_outcome_advantage` has it (eps 1e-6, ddof 1, scale as
    norm_adv_by_std_in_grpo); the paper's own text is not verified.
    Returns (n_rollouts,) float64, in units of the group's standard deviation (of the reward with `scale=false`).
    Degenerate: 0 where several rollouts share the largest reward, so also where all rewards are equal, and for a group
    of one (verl raises there). Raises `KtaeError` for a ddof other than 0 and 1 and for a negative eps.
    """
    if ddof not in (0, 1) or eps < 0:
        raise KtaeError(f"ddof is 0 or 1, and eps is not negative; found ddof={ddof}, eps={eps}")
    first, second, on_top = two_largest(batch.rewards, batch.group_index, batch.n_groups)
    lead = first - second
    if scale:
        lead = torch.where(lead > 0, lead / (moments_of(batch, batch.rewards).std(ddof) + eps), 0.0)
    return torch.where(on_top, lead[batch.group_index], 0.0)
