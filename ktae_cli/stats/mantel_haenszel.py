"""One odds ratio over many groups, and the chi-square that asks whether it is 1."""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np


class OddsRatios(NamedTuple):
    """Per unit (n_units,) float64: the pooled odds ratio and the ends of its interval."""

    odds_ratio: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mantel_haenszel(
    correct_with: np.ndarray,
    incorrect_with: np.ndarray,
    n_correct: np.ndarray,
    n_incorrect: np.ndarray,
    unit: np.ndarray,
    n_units: int,
    level: float = 0.95,
) -> OddsRatios:
    """Return the odds that a right rollout holds the unit over those of a wrong one, pooled over the unit's groups.

    One cell for each (unit, group), all arrays (n_cells,) int64: correct_with of the n_correct right and incorrect_with
    of the n_incorrect wrong rollouts of the group hold the unit. With a = correct_with, b = incorrect_with,
    c = n_correct - a, d = n_incorrect - b, n their sum, r = a d / n, s = b c / n, and R, S the sums of r and s over
    the groups of a unit: odds ratio = R / S, and the interval is exp(log(R / S) ± z sd) with
    sd^2 = sum p r / (2 R^2) + sum (p s + q r) / (2 R S) + sum q s / (2 S^2), p = (a + d) / n, q = (b + c) / n.
    S = 0 < R: infinite; R = 0 < S: 0; both 0: NaN. In these cases the variance does not exist and the ends are NaN.
    Source: Mantel and Haenszel (1959), J. Natl. Cancer Inst. 22; Robins, Breslow and Greenland (1986), Biometrics 42.
    """
    absent_right, absent_wrong = n_correct - correct_with, n_incorrect - incorrect_with
    n = np.maximum(n_correct + n_incorrect, 1)
    r, s = correct_with * absent_wrong / n, incorrect_with * absent_right / n
    p, q = (correct_with + absent_wrong) / n, (incorrect_with + absent_right) / n

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(unit, values, n_units)

    with np.errstate(divide="ignore", invalid="ignore"):
        r_sum, s_sum = total(r), total(s)
        odds_ratio = r_sum / s_sum
        variance = total(p * r) / r_sum**2 + total(p * s + q * r) / (r_sum * s_sum) + total(q * s) / s_sum**2
        reach = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(variance / 2)
        return OddsRatios(odds_ratio, odds_ratio * np.exp(-reach), odds_ratio * np.exp(reach))


def cmh_chi_square(
    correct_with: np.ndarray,
    incorrect_with: np.ndarray,
    n_correct: np.ndarray,
    n_incorrect: np.ndarray,
    unit: np.ndarray,
    n_units: int,
) -> np.ndarray:
    """Return the Cochran-Mantel-Haenszel statistic of each unit (n_units,), chi-square with one degree of freedom.

    The cells are those of `mantel_haenszel`. (sum a - E)^2 / sum V, without a correction for continuity, with
    m = correct_with + incorrect_with, E = n_correct m / n, V = n_correct n_incorrect m (n - m) / (n^2 (n - 1)).
    NaN where nothing can vary (sum V = 0).
    Source: Mantel and Haenszel (1959), J. Natl. Cancer Inst. 22; Cochran (1954), Biometrics 10, divides by n^3 instead.
    """
    n, m = n_correct + n_incorrect, correct_with + incorrect_with
    of_all = np.maximum(n, 1)
    excess = correct_with - n_correct * m / of_all
    variance = (n_correct / of_all) * (n_incorrect / of_all) * m * (n - m) / np.maximum(n - 1, 1)
    with np.errstate(invalid="ignore"):
        return np.bincount(unit, excess, n_units) ** 2 / np.bincount(unit, variance, n_units)
