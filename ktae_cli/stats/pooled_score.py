"""The score of a unit's presence over all groups: what is observed, expected, and how much it varies under a law."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.stats.conditional import Strata, covariances, runs
from ktae_cli.stats.length_fit import LengthFit


@dataclass(frozen=True)
class Cells:
    """One (unit, group) in which the unit stands in some rollouts and not in all, sorted by unit, then group.

    unit, group, size, right (n_cells,) int64: `size` rollouts of the group hold the unit, `right` of these are right.
    place (sum of size,): the rollouts that hold it, counted inside the group.
    """

    unit: np.ndarray
    group: np.ndarray
    size: np.ndarray
    right: np.ndarray
    place: np.ndarray


def cells_of(unit: np.ndarray, rollout: np.ndarray, right: np.ndarray, strata: Strata) -> Cells:
    """Gather the cells of distinct pairs (unit, rollout), sorted by unit, then rollout."""
    group = strata.group[rollout]
    new = np.ones(len(unit), bool)
    new[1:] = (np.diff(unit) != 0) | (np.diff(group) != 0)
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(unit)))
    varies = size < strata.sizes[group[first]]
    kept = np.repeat(varies, size)
    right_with = np.add.reduceat(right[rollout].astype(np.int64), first) if len(first) else np.zeros(0, np.int64)
    place = rollout - strata.starts[group]
    return Cells(unit[first][varies], group[first][varies], size[varies], right_with[varies], place[kept])


def only_cells(cells: Cells, chosen: np.ndarray) -> Cells:
    """Return the cells of the chosen units (n_units,) bool, numbered anew."""
    kept = chosen[cells.unit]
    number = np.cumsum(chosen) - 1
    places = cells.place[np.repeat(kept, cells.size)]
    return Cells(number[cells.unit[kept]], cells.group[kept], cells.size[kept], cells.right[kept], places)


@dataclass(frozen=True)
class CellMoments:
    """Under the law of the verdicts, for each cell: expected and variance of `right` (n_cells,), and the covariance
    with the score of the length model (n_cells, k).
    """

    expected: np.ndarray
    variance: np.ndarray
    cross: np.ndarray


def cell_moments(cells: Cells, fit: LengthFit, strata: Strata) -> CellMoments:
    """Return sum pi_i x_i, x' C x and x' C basis of every cell, x the indicator of its rollouts."""
    expected, variance = np.zeros((2, len(cells.unit)))
    cross = np.zeros((len(cells.unit), fit.basis.shape[1]))
    by_group = np.argsort(cells.group, kind="stable")
    first = np.searchsorted(cells.group[by_group], np.arange(len(strata.sizes) + 1))
    ends = np.cumsum(cells.size)
    for groups, rows, covariance in covariances(fit.p, fit.pi, strata):
        for group, rollouts, c in zip(groups.tolist(), rows, covariance, strict=True):
            at = by_group[first[group] : first[group + 1]]
            x = np.zeros((len(at), len(rollouts)))
            x[
                np.repeat(np.arange(len(at)), cells.size[at]),
                cells.place[runs(ends[at] - cells.size[at], cells.size[at])],
            ] = 1
            xc = x @ c
            expected[at], variance[at] = x @ fit.pi[rollouts], (xc * x).sum(1)
            cross[at] = xc @ fit.basis[rollouts]
    return CellMoments(expected, variance, cross)
