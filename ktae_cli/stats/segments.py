"""Sums and extremes within groups; the only place that reduces over the rollouts of a group."""

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Per group (n_groups,): mean, sum of squared deviations from it, size, and whether all values are equal."""

    mean: Tensor
    squares: Tensor
    size: Tensor
    constant: Tensor

    def std(self, ddof: int) -> Tensor:
        """Return the standard deviation; 0 for groups of at most `ddof` values."""
        return torch.sqrt(self.squares / (self.size - ddof).clamp(min=1))


def moments_within_groups(values: Tensor, group_index: Tensor) -> Moments:
    """Return the moments of values (n_rollouts,) float64 in each group, the same bits for any order of the rollouts.

    The values of a group are added from the smallest to the largest, so neither the order of the rows nor the
    neighbouring groups change the rounding. Variances come from centred values, never from a difference of squares.
    group_index (n_rollouts,) int64 is dense and sorted. Constant is decided on the extremes: max == min.
    """
    size = torch.bincount(group_index)
    ordered = values[_order_within_groups(values, group_index)]
    mean = torch.segment_reduce(ordered, "sum", lengths=size, unsafe=True) / size
    centred = ordered - mean[group_index]
    squares = torch.segment_reduce(centred.square_(), "sum", lengths=size, unsafe=True)
    last = torch.cumsum(size, 0) - 1
    return Moments(mean, squares, size, ordered[last] == ordered[last - size + 1])


def _order_within_groups(values: Tensor, group_index: Tensor) -> Tensor:
    """Return the rollouts group by group, within each from the smallest to the largest value."""
    order = torch.argsort(values, stable=True)
    return order[torch.argsort(group_index[order], stable=True)]
