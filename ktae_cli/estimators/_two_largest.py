"""The two largest values of each group."""

import torch
from torch import Tensor


def two_largest(values: Tensor, group_index: Tensor, n_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest and the second largest value of each group (n_groups,), and which rollouts have the largest.

    The second equals the largest where several rollouts share that, and in a group of one. values (n_rollouts,) are
    finite; group_index (n_rollouts,) int64. Maxima do not depend on the order of the rollouts.
    """
    largest = _maxima(values, group_index, n_groups)
    on_top = values == largest[group_index]
    several = torch.bincount(group_index[on_top], minlength=n_groups) > 1
    others = torch.bincount(group_index[~on_top], minlength=n_groups) > 0
    below = _maxima(values[~on_top], group_index[~on_top], n_groups)
    return largest, torch.where(several | ~others, largest, below), on_top


def _maxima(values: Tensor, group_index: Tensor, n_groups: int) -> Tensor:
    zeros = torch.zeros(n_groups, dtype=values.dtype, device=values.device)
    return zeros.scatter_reduce_(0, group_index, values, "amax", include_self=False)
