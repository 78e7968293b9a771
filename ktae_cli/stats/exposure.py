"""Length by way of the text: a unit's presence modelled by a Poisson rate over the tokens of a rollout."""

import numpy as np

from ktae_cli.stats.conditional import Strata, runs
from ktae_cli.stats.pooled_score import Cells
from ktae_cli.stats.pooled_tests import normal_p, standardised

CELLS_AT_ONCE = 1 << 20


def exposure_p_values(cells: Cells, right: np.ndarray, length: np.ndarray, strata: Strata, n_units: int) -> np.ndarray:
    """Return the two-sided p (n_units,) of U / sqrt(Var U) as a normal number, 1 where nothing varies.

    Text is bursty: a unit that a rollout repeats stands in fewer rollouts than its rate says, what is left over follows
    length, and the test finds length again. It is here to be compared with. No published source.
    """
    return normal_p(standardised(*exposure_scores(cells, right, length, strata, n_units)))


def exposure_scores(
    cells: Cells, right: np.ndarray, length: np.ndarray, strata: Strata, n_units: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return U and Var U (n_units,): what presence in right rollouts exceeds that of a Poisson rate by.

    right, length (n_rollouts,). In a cell of n rollouts, R of them right, presence x_i has P_i = 1 - exp(-rate L_i),
    the rate such that sum P_i = sum x_i; with r_i = x_i - P_i, U = sum over right of r_i - R/n sum r_i and
    Var U = R (n - R) / (n (n - 1)) sum (r_i - mean r)^2, both summed over the cells of a unit.
    """
    score, variance = np.zeros((2, len(cells.unit)))
    ends = np.cumsum(cells.size)
    sizes = strata.sizes[cells.group]
    for n in np.unique(sizes).tolist():
        of_size = np.flatnonzero(sizes == n)
        at_once = max(1, CELLS_AT_ONCE // n)
        for first in range(0, len(of_size), at_once):
            at = of_size[first : first + at_once]
            held = cells.size[at]
            rollouts = strata.starts[cells.group[at], None] + np.arange(n)
            residual = -_presence(length[rollouts].astype(np.float64), held)
            residual[np.repeat(np.arange(len(at)), held), cells.place[runs(ends[at] - held, held)]] += 1
            residual -= residual.mean(1, keepdims=True)
            n_right = strata.n_right[cells.group[at]]
            score[at] = (residual * right[rollouts]).sum(1)
            variance[at] = n_right * (n - n_right) / (n * (n - 1)) * (residual**2).sum(1)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(cells.unit, values, n_units).astype(np.float64)  # integers where there are no cells

    left = total(variance)
    return total(score), np.where(left > 1e-9, left, 0)  # below are rates without bound, and rounding


def _presence(length: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return 1 - exp(-rate L) (m, n), the rate of each row such that it sums to `held` (m,), or infinite.

    The sum is concave in the rate, so that Newton's method climbs to it from 0 and never goes past it.
    """
    length = length / np.maximum(length.mean(1, keepdims=True), 1e-300)
    rate = np.zeros((len(length), 1))
    for _ in range(60):
        absent = np.exp(-rate * length)
        missing = held[:, None] - (1 - absent).sum(1, keepdims=True)
        if missing.max(initial=0) < 1e-10:
            break
        rate += np.maximum(missing, 0) / np.maximum((length * absent).sum(1, keepdims=True), 1e-9)
    return 1 - np.exp(-rate * length)
