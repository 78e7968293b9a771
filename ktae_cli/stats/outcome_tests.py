"""The pooled test of every unit against an outcome of any real value, such as a reward or the tests passed."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.pooled_score import Cells
from ktae_cli.stats.pooled_tests import DRAWS_AT_ONCE, holders, normal_p, standardised


@dataclass(frozen=True)
class OutcomeTests:
    """Tests of the units (n_units,): score S, its variance, z and p; and the score and variance of each cell."""

    cells: Cells
    score: np.ndarray
    variance: np.ndarray
    cell_score: np.ndarray
    cell_variance: np.ndarray
    residual: np.ndarray
    basis: np.ndarray
    slopes: np.ndarray

    @property
    def z(self) -> np.ndarray:
        """Return S / sqrt(variance) (n_units,), 0 where nothing varies."""
        return standardised(self.score, self.variance)

    @property
    def p(self) -> np.ndarray:
        """Return the two-sided p (n_units,) of z as a normal number."""
        return normal_p(self.z)

    p_mid = p


def outcome_tests(cells: Cells, outcome: np.ndarray, basis: np.ndarray, strata: Strata, n_units: int) -> OutcomeTests:
    """Test every unit of the cells against the outcome (n_rollouts,).

    e: the outcome less its group's mean, and less its least-squares fit by the basis (n_rollouts, k) inside groups; no
    basis is the law free, length is given-length. S = sum over groups of sum_i e_i x_i, x the indicator of a unit. With
    e in random order inside its group Var S = sum over groups of s^2 k (n - k) / n, s^2 the variance of e in the group
    with divisor n - 1, k of its n rollouts with the unit; less what the basis explains of x.
    Normal: units that few rollouts hold are judged too easily where the outcome has heavy tails; the family-wise p,
    which is by permutation, is not. Source: Freedman and Lane (1983), J. Bus. Econ. Stat. 1, for permuted residuals.
    """
    centred_basis = np.stack([_centred(column, strata) for column in basis.T], 1) if basis.shape[1] else basis
    residual = _centred(outcome, strata)
    if basis.shape[1]:
        residual = residual - centred_basis @ np.linalg.lstsq(centred_basis, residual, rcond=1e-10)[0]
    squares = np.bincount(strata.group, _centred(residual, strata) ** 2) / np.maximum(strata.sizes - 1, 1)
    rollout = np.repeat(strata.starts[cells.group], cells.size) + cells.place
    cell = np.repeat(np.arange(len(cells.unit)), cells.size)
    n_cells = len(cells.unit)
    cell_score = np.bincount(cell, residual[rollout], n_cells)
    size = strata.sizes[cells.group]
    cell_variance = squares[cells.group] * cells.size * (size - cells.size) / size

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(cells.unit, values, n_units)

    score, variance = total(cell_score), total(cell_variance)
    slopes = np.zeros((n_units, basis.shape[1]))
    if basis.shape[1]:
        weight = squares[strata.group]
        products = np.stack([np.bincount(cell, column[rollout], n_cells) for column in centred_basis.T], 1)
        plain = np.stack([total(column) for column in products.T], 1)
        weighted = np.stack([total(column * squares[cells.group]) for column in products.T], 1)
        slopes = np.linalg.lstsq(centred_basis.T @ centred_basis, plain.T, rcond=1e-10)[0].T
        inner = centred_basis.T @ (centred_basis * weight[:, None])
        variance = variance - 2 * (slopes * weighted).sum(1) + np.einsum("uk,kl,ul->u", slopes, inner, slopes)
        variance = np.where(variance > 1e-6 * total(cell_variance), variance, 0)
    return OutcomeTests(cells, score, variance, cell_score, cell_variance, residual, centred_basis, slopes)


def smallest_outcome_p(
    tests: OutcomeTests, strata: Strata, family: np.ndarray, times: int, random: np.random.Generator
) -> np.ndarray:
    """Return the smallest p of the family (n_units,) bool in each of `times` orders of the residuals inside groups."""
    held = holders(tests.cells, strata, len(tests.score))
    group, found = strata.group, np.empty(times)
    for first in range(0, times, DRAWS_AT_ONCE):
        n = min(DRAWS_AT_ONCE, times - first)
        order = np.argsort(random.random((n, len(group))) + group, axis=1)
        drawn = tests.residual[order].T
        score = held @ drawn.astype(np.float32) - tests.slopes @ (tests.basis.T @ drawn)
        p = normal_p(standardised(score.astype(np.float64), tests.variance[:, None]))
        found[first : first + n] = p[family].min(0, initial=1.0)
    return found


def _centred(values: np.ndarray, strata: Strata) -> np.ndarray:
    mean = np.bincount(strata.group, values, len(strata.sizes)) / strata.sizes
    return values - mean[strata.group]
