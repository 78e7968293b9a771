"""Sums and extremes within groups; the only place that reduces over the rollouts of a group."""

import torch
from torch import Tensor


def sum_within_groups(values: Tensor, group_index: Tensor, n_groups: int) -> Tensor:
    """Sum values (n_rollouts,) float64 within each group -> (n_groups,), the same bits for any order of the rollouts.

    The values of a group are added from the smallest to the largest, so neither the order of the rows nor the
    neighbouring groups change the rounding.
    """
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(group_index[order], stable=True)]
    sizes = torch.bincount(group_index, minlength=n_groups)
    return torch.segment_reduce(values[order], "sum", lengths=sizes, unsafe=True)


def mean_within_groups(values: Tensor, group_index: Tensor, n_groups: int) -> Tensor:
    """Return the mean of each group (n_groups,)."""
    sizes = torch.bincount(group_index, minlength=n_groups)
    return sum_within_groups(values, group_index, n_groups) / sizes


def std_within_groups(values: Tensor, group_index: Tensor, n_groups: int, ddof: int) -> Tensor:
    """Return the standard deviation of each group from centred sums; 0 for groups of at most `ddof` rollouts."""
    sizes = torch.bincount(group_index, minlength=n_groups)
    centred = values - mean_within_groups(values, group_index, n_groups)[group_index]
    total = sum_within_groups(centred.square(), group_index, n_groups)
    return torch.sqrt(total / (sizes - ddof).clamp(min=1))


def constant_within_groups(values: Tensor, group_index: Tensor, n_groups: int) -> Tensor:
    """Tell for each group (n_groups,) bool whether its largest value equals its smallest: no signal at all."""
    sizes = torch.bincount(group_index, minlength=n_groups)
    largest = torch.segment_reduce(values, "max", lengths=sizes, unsafe=True)
    smallest = torch.segment_reduce(values, "min", lengths=sizes, unsafe=True)
    return largest == smallest
