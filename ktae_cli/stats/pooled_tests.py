"""The pooled test of every unit under one law of the labels: exact where little varies, normal where much does."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.stats.conditional import Strata, draw_verdicts, subset_laws
from ktae_cli.stats.length_fit import LengthFit
from ktae_cli.stats.pooled_law import pooled_p_values
from ktae_cli.stats.pooled_score import CellMoments, Cells, cell_moments

EXACT_BELOW = 10.0
"""Units whose pooled variance is smaller are tested exactly."""
DRAWS_AT_ONCE = 128


@dataclass(frozen=True)
class PooledTests:
    """Tests of the units (n_units,): count T of right rollouts that hold the unit, over the groups in which it varies.

    count, expected, variance: T, its mean and its variance under the law of the labels, less what the length model
    explains of it; z = (T - E T) / sqrt(variance); p, p_mid: two-sided; exact: by the exact law of T.
    moments: the same for each cell; slopes (n_units, k): of T on the scores of the length model; table: p, mid-p of
    every count of the exact units and where each unit's begin.
    """

    cells: Cells
    fit: LengthFit
    moments: CellMoments
    count: np.ndarray
    expected: np.ndarray
    variance: np.ndarray
    slopes: np.ndarray
    exact: np.ndarray
    table: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def score(self) -> np.ndarray:
        """Return what is observed beyond the expected (n_units,)."""
        return self.count - self.expected

    @property
    def cell_score(self) -> np.ndarray:
        """Return the same for each cell (n_cells,)."""
        return self.cells.right - self.moments.expected

    @property
    def cell_variance(self) -> np.ndarray:
        """Return the variance of each cell's count (n_cells,)."""
        return self.moments.variance

    @property
    def z(self) -> np.ndarray:
        """Return the standardised count (n_units,), 0 where nothing varies."""
        return standardised(self.score, self.variance)

    @property
    def p(self) -> np.ndarray:
        """Return the p-value of each unit (n_units,), 1 where nothing varies."""
        return self._p(0)

    @property
    def p_mid(self) -> np.ndarray:
        """Return the mid-p of each unit (n_units,); that of the normal approximation is the same as its p."""
        return self._p(1)

    def _p(self, kind: int) -> np.ndarray:
        p = normal_p(self.z)
        p[self.exact] = self.table[kind][self.table[2][:-1] + self.count[self.exact]]
        return p

    def p_of(self, counts: np.ndarray, basis_score: np.ndarray) -> np.ndarray:
        """Return the p-values (n_units, draws) of other labels.

        counts (n_units, draws): T under them; basis_score (k, draws): basis' (labels - pi).
        """
        surplus = counts - self.expected[:, None] - self.slopes @ basis_score
        p = normal_p(standardised(surplus, self.variance[:, None]))
        p[self.exact] = self.table[0][self.table[2][:-1, None] + counts[self.exact].astype(np.int64)]
        return p


def pooled_tests(cells: Cells, fit: LengthFit, strata: Strata, n_units: int) -> PooledTests:
    """Test every unit of the cells under the law of `fit`.

    T = sum over groups of the right rollouts that hold the unit. E T = sum pi_i x_i; Var T = sum over groups of x' C x,
    less I_xb I_bb^-1 I_bx for the slopes of the length model that are fitted to the same labels.
    Below EXACT_BELOW the law of T itself gives p: the sum over counts no likelier than T; it takes the fitted slopes as
    known, which is conservative. Above, z is taken as normal (z^2 is the Cochran-Mantel-Haenszel chi-square, without
    correction, where no length model is fitted).
    """
    moments = cell_moments(cells, fit, strata)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(cells.unit, values, n_units).astype(np.float64)  # integers where there are no cells

    raw = total(moments.variance)
    cross = np.stack([total(column) for column in moments.cross.T], 1) if moments.cross.shape[1] else moments.cross
    cross = np.zeros((n_units, 0)) if not cross.shape[1] else cross
    slopes = np.linalg.lstsq(fit.information, cross.T, rcond=1e-10)[0].T if cross.shape[1] else cross
    variance = raw - (slopes * cross).sum(1)
    variance = np.where(variance > 1e-6 * raw, variance, 0.0)
    exact = raw < EXACT_BELOW
    taken = exact[cells.unit]
    laws, starts = subset_laws(
        fit.p, strata, cells.group[taken], cells.size[taken], cells.place[np.repeat(taken, cells.size)]
    )
    number = np.cumsum(exact) - 1
    table = pooled_p_values(laws, starts, number[cells.unit[taken]], int(exact.sum()))
    count = total(cells.right).astype(np.int64)
    return PooledTests(cells, fit, moments, count, total(moments.expected), variance, slopes, exact, table)


def standardised(surplus: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return surplus / sqrt(variance), 0 where nothing varies."""
    varies = np.broadcast_to(variance > 0, surplus.shape)
    return np.divide(surplus, np.sqrt(variance), out=np.zeros(surplus.shape), where=varies)


def normal_p(z: np.ndarray) -> np.ndarray:
    """Return the two-sided p-value of standard normal z."""
    from scipy.special import ndtr

    return 2 * ndtr(-np.abs(z))


def smallest_p(
    tests: PooledTests, strata: Strata, family: np.ndarray, times: int, random: np.random.Generator
) -> np.ndarray:
    """Return the smallest p of the family (n_units,) bool in each of `times` draws of labels from the law (times,)."""
    held = holders(tests.cells, strata, len(tests.count))
    found = np.empty(times)
    for first in range(0, times, DRAWS_AT_ONCE):
        labels = draw_verdicts(tests.fit.p, strata, min(DRAWS_AT_ONCE, times - first), random).astype(np.float32)
        score = tests.fit.basis.T @ (labels - tests.fit.pi[:, None])
        p = tests.p_of((held @ labels).astype(np.float64), score)
        found[first : first + labels.shape[1]] = p[family].min(0, initial=1.0)
    return found


def holders(cells: Cells, strata: Strata, n_units: int):
    """Return the sparse matrix (n_units, n_rollouts) float32 that is 1 where a cell's rollout holds the unit."""
    from scipy.sparse import csr_array

    rollout = np.repeat(strata.starts[cells.group], cells.size) + cells.place
    size = np.bincount(cells.unit, cells.size, n_units).astype(np.int64)
    rows = np.concatenate([[0], np.cumsum(size)])
    return csr_array((np.ones(len(rollout), np.float32), rollout, rows), (n_units, int(strata.sizes.sum())))


def family_wise_p(p: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """Return (1 + draws whose smallest p is at most p) / (1 + draws) (n_units,).

    Source: Westfall and Young (1993), Resampling-based multiple testing, the single-step min-p.
    """
    ordered = np.sort(smallest)
    return (1 + np.searchsorted(ordered, p * (1 + 1e-9), side="right")) / (1 + len(ordered))
