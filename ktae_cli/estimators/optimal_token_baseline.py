"""Optimal token baseline: at each position a baseline weighted by how much each rollout's gradient has moved so far."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._two_largest import two_largest
from ktae_cli.estimators.base import Estimate, estimator, moments_of, old_log_probs
from ktae_cli.stats.segments import Moments

_SCALE = 1 << 32
"""Path variances are whole multiples of 2^-32: their sums do not depend on the order of the rollouts."""


@estimator(needs=("reward", "old_log_probs", "sum_pi_squared"), level="token", scope="group")
def optimal_token_baseline(batch: GroupBatch, *, zero_tail: bool = True, eps: float = 1e-8) -> Estimate:
    """Subtract from a rollout's reward, at each position, the group's mean weighted by the path variance so far.

    w_it = 1 - 2 pi_it + sum_v pi_itv^2, the squared length of the gradient of log pi in the logits, pi_it =
    exp(old_log_probs); W_it = sum of w over the unmasked tokens of rollout i up to t;
    B_t = sum_i R_i W_it / (sum_i W_it + eps) over the rollouts of the group that are unmasked at position t;
    A_it = R_i - B_t.
    `zero_tail`: B is 0 for the one rollout with the most unmasked tokens, from the position that is the number of
    unmasked tokens of the second; there it would be compared with itself.

    Source: verl's `compute_optimal_token_baseline_advantage` with the reward on the last unmasked token, so the return
    is R_i at each (verl loses a reward on a masked token). Its rollout_is_weights are left out. Masked tokens keep
    their positions. w is kept between 0 and 2, where it lies for any distribution, and W rounded to 2^-32.
    Returns advantages (n_tokens,) float32, in units of the reward; the same bits for any order of the rollouts.
    Degenerate: 0 when all rewards of the group are equal and for a group of one (verl keeps the raw reward in the tail
    and for a group of one). Where no rollout has a path variance yet (each token was certain) B is 0 and A_it = R_i.
    An empty or wholly masked response takes part in no sum. Raises `KtaeError` for a negative eps.
    """
    if eps < 0:
        raise KtaeError(f"optimal_token_baseline: eps is not negative, found {eps}")
    group, device = batch.group_index, batch.offsets.device
    moments = moments_of(batch, batch.rewards)
    longest = torch.zeros(batch.n_groups, dtype=torch.int64, device=device)
    longest.scatter_reduce_(0, group, batch.lengths, "amax")
    first_cell = torch.cumsum(longest, 0) - longest
    place = torch.arange(len(batch.token_ids), device=device)
    cell = place + _repeat(batch, first_cell[group] - batch.offsets[:-1])  # one for each (group, position)
    by_cell = _baselines(batch, moments, cell, longest, eps)
    baseline = by_cell.masked_fill_(torch.repeat_interleave(moments.constant, longest), 0.0)[cell]
    if zero_tail:
        first, second, on_top = two_largest(batch.counted_lengths, group, batch.n_groups)
        tail_from = torch.where(on_top & (first > second)[group], second[group], batch.lengths)
        baseline.masked_fill_(place >= _repeat(batch, batch.offsets[:-1] + tail_from), 0.0)
    rewards = torch.where(moments.constant[group], 0.0, batch.rewards)
    advantages = (_repeat(batch, rewards) - baseline).to(torch.float32)
    return Estimate(advantages if batch.response_mask is None else torch.where(batch.response_mask, advantages, 0.0))


def _baselines(batch: GroupBatch, moments: Moments, cell: Tensor, longest: Tensor, eps: float) -> Tensor:
    """Return the baseline of each (group, position) (n_cells,) float64.

    Rewards are taken as mean + spread * c with |c| <= 1 in each group, so that sums of c W are whole numbers too.
    """
    group = batch.group_index
    above = batch.rewards - moments.mean[group]
    spread = above.new_zeros(batch.n_groups).scatter_reduce_(0, group, above.abs(), "amax")
    path = _path_variance(batch)
    lead = torch.round(path * _repeat(batch, above / torch.where(spread > 0, spread, 1.0)[group]))
    empty = path.new_zeros(int(longest.sum()))
    weight = empty.index_add(0, cell, path).to(torch.float64) / _SCALE
    lead = empty.index_add(0, cell, lead.to(torch.int64)).to(torch.float64) / _SCALE
    mean, spread = (torch.repeat_interleave(column, longest) for column in (moments.mean, spread))
    return torch.where(weight > 0, (mean * weight + spread * lead) / (weight + eps), 0.0)


def _path_variance(batch: GroupBatch) -> Tensor:
    """Return the running sum of w in each rollout (n_tokens,) int64, in units of 2^-32, 0 off the mask."""
    pi = torch.exp(old_log_probs(batch).to(torch.float64))
    step = pi.mul_(-2).add_(1).add_(batch.sum_pi_squared).clamp_(0.0, 2.0).mul_(_SCALE).round_().to(torch.int64)
    if batch.response_mask is not None:
        step *= batch.response_mask
    running = torch.cumsum(step, 0)
    before = torch.cat([running.new_zeros(1), running])[batch.offsets[:-1]]
    path = running.sub_(_repeat(batch, before))
    return path if batch.response_mask is None else path.mul_(batch.response_mask)


def _repeat(batch: GroupBatch, per_rollout: Tensor) -> Tensor:
    """Repeat a value per rollout at each of its tokens (n_tokens,)."""
    return torch.repeat_interleave(per_rollout, batch.lengths, output_size=len(batch.token_ids))
