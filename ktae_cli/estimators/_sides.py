"""Sums over the right and the wrong rollouts of each group, the same bits for any order of the rollouts."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators._ktae_family import verdicts_of

EPS = 1e-8
"""Added where entropies are divided by, and the least standard deviation that is told from rounding."""

_COARSE, _FINE = 2.0**16, 2.0**40


def sides_of(batch: GroupBatch) -> Tensor:
    """Return the side of each rollout (n_rollouts,) int64: 2 g for wrong, 2 g + 1 for right in group g.

    2 * n_groups for rollouts on neither: of unknown verdict, or where all rewards of the group are equal.
    """
    verdict = verdicts_of(batch)
    return torch.where(verdict >= 0, 2 * batch.group_index + verdict, 2 * batch.n_groups)


def sums_in_any_order(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Add up values (n,) float64 in 0..2**27 by index, (size,) float64, exactly in units of 2**-56.

    Whole numbers below 2**53 are added, so that the order does not matter.
    """
    scaled = values * _COARSE
    coarse = scaled.floor()
    fine = (scaled - coarse).mul_(_FINE).round_()
    high, low = (torch.bincount(index, part, minlength=size).to(torch.float64) for part in (coarse, fine))
    return low.div_(_FINE).add_(high).div_(_COARSE)


def sums_within(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Add up values (n,) float64 by index, (size,) float64, from the smallest to the largest: a few values a place."""
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(index[order], stable=True)]
    lengths = torch.bincount(index, minlength=size)
    return torch.segment_reduce(values[order], "sum", lengths=lengths, unsafe=True)
