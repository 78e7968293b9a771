"""REINFORCE++: rewards whitened over the tokens of the whole batch."""

import numpy as np
import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._whitening import token_values, weighted, whiten
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.stats.pooled import StepMoments, WeightedValues


@estimator(needs=("reward",), level="rollout", scope="batch")
def reinforce_plus_plus(
    batch: GroupBatch, pooled: "WeightedValues | DiscountedValues", *, gamma: float = 1.0
) -> Tensor | Estimate:
    """Give every token its return, whitened over all unmasked tokens of the step's batch; groups play no part.

    G_it = gamma^(unmasked tokens of rollout i after t) R_i; A_it = (G_it - mean G) / sqrt(var G + 1e-8), mean and
    unbiased variance over the unmasked tokens of the step, so a rollout weighs as many times as it is long.
    With `gamma=1` (the default) all tokens of a rollout have its whitened reward; otherwise they differ, and the
    estimator cannot be a base.

    Source: Hu et al., arXiv 2501.03262; verl's `compute_reinforce_plus_plus_outcome_advantage` and `masked_whiten`.
    The reward stands on the last unmasked token; verl loses one that stands on a masked token. The paper's KL penalty
    inside the reward is the trainer's.
    Returns (n_rollouts,) float64, or advantages (n_tokens,) float32 for another gamma; in units of the batch's
    standard deviation.
    Degenerate: whitening re-centres, so a group of equal rewards and a group of one keep their whitened value; 0 where
    all returns of the step are equal and in a step of one token (verl raises there). A rollout without an unmasked
    token counts for nothing. Raises `KtaeError` when gamma lies outside 0 to 1.
    """
    if gamma == 1:
        return whiten(batch, batch.rewards, pooled)
    advantages = whiten(batch, _returns(batch, gamma), pooled, per_token=True).to(torch.float32)
    return Estimate(advantages if batch.response_mask is None else torch.where(batch.response_mask, advantages, 0.0))


def _pool(batch: GroupBatch, known, *, gamma: float = 1.0) -> "WeightedValues | DiscountedValues":
    """Gather the returns of the batch's unmasked tokens."""
    if not 0 <= gamma <= 1:
        raise KtaeError(f"reinforce_plus_plus: gamma lies between 0 and 1, found {gamma}")
    return token_values(batch, batch.rewards) if gamma == 1 else DiscountedValues(batch, gamma)


reinforce_plus_plus.pool = _pool


class DiscountedValues:
    """Returns of all tokens by step, kept as each rollout's mean and squares: a few numbers a rollout, not a token."""

    complete = True

    def __init__(self, batch: GroupBatch, gamma: float):
        """Take the returns R, gamma R, gamma^2 R, … of each rollout, as many as it has unmasked tokens."""
        mean, squares = _moments_of_powers(_powers(gamma, batch).cpu().numpy())
        length = batch.counted_lengths.cpu().numpy()
        rewards = batch.rewards.cpu().numpy()
        self.means = token_values(batch, torch.from_numpy(rewards * mean[length]))
        within = torch.from_numpy(rewards**2 * squares[length])
        self.within = weighted(batch, within, (batch.counted_lengths > 0).to(torch.int64))

    def merge(self, other: "DiscountedValues") -> "DiscountedValues":
        """Return the values of both."""
        self.means, self.within = self.means.merge(other.means), self.within.merge(other.within)
        return self

    def moments(self, step: Tensor | None, n_rollouts: int, device: torch.device | str = "cpu") -> StepMoments:
        """Return the moments of each rollout's step: squares between the rollouts' means and within them."""
        weight, mean, between = self.means.moments(step, n_rollouts, device)
        rollouts, within, _ = self.within.moments(step, n_rollouts, device)
        return StepMoments(weight, mean, between + rollouts * within / (weight - 1).clamp(min=1))


def _powers(gamma: float, batch: GroupBatch) -> Tensor:
    """Return 1, gamma, gamma^2, … (longest + 1,); products one by one, so that a power does not depend on the batch."""
    steps = np.full(int(batch.lengths.max()) + 1 if batch.n_rollouts else 1, gamma)
    steps[0] = 1.0
    return torch.from_numpy(np.cumprod(steps)).to(batch.offsets.device)


def _moments_of_powers(powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for n = 0, 1, …, the mean of the first n powers and their squared deviations from it."""
    n = np.arange(1, len(powers))
    mean = np.cumsum(powers)[:-1] / n
    steps = n / (n + 1) * (powers[1:] - mean) ** 2  # what the power after the first n adds
    return np.concatenate([[0.0], mean]), np.concatenate([[0.0, 0.0], np.cumsum(steps)])[: len(powers)]


def _returns(batch: GroupBatch, gamma: float) -> Tensor:
    """Return gamma^(unmasked tokens of the rollout after it) times the reward at each token (n_tokens,) float64."""
    n_tokens, device = len(batch.token_ids), batch.offsets.device
    if batch.response_mask is None:
        seen, ends = torch.arange(1, n_tokens + 1, device=device), batch.offsets[1:]
    else:
        seen = torch.cumsum(batch.response_mask, 0)
        ends = torch.cat([seen.new_zeros(1), seen])[batch.offsets[1:]]
    ends, rewards = (
        torch.repeat_interleave(column, batch.lengths, output_size=n_tokens) for column in (ends, batch.rewards)
    )
    return rewards * _powers(gamma, batch)[ends - seen]
