"""Fisher's exact test on the presence of a token against the verdict."""

from functools import lru_cache
from math import comb

import numpy as np

EXACT_UP_TO = 512
"""Groups up to this size are computed with integers; larger ones in log space with R's tie tolerance of 1e-7."""


def fisher_p_values(
    correct_with: np.ndarray, incorrect_with: np.ndarray, n_correct: int, n_incorrect: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (two-sided p, point probability) of each 2x2 table, float64 arrays like the inputs.

    A table is given by its first column: correct_with of n_correct right and incorrect_with of n_incorrect wrong
    rollouts contain the token. With c = correct_with + incorrect_with fixed, correct_with is hypergeometric under
    independence: P(k) = C(n_correct, k) C(n_incorrect, c - k) / C(n_correct + n_incorrect, c).
    Two-sided p = sum of P(k) over all k with P(k) <= P(observed); scipy and R use the same rule. Up to
    `EXACT_UP_TO` rollouts the comparison is one of integers, so ties are never lost and a p of 1 is exactly 1.
    """
    column_sums = correct_with + incorrect_with
    two_sided, point = np.ones(len(column_sums)), np.ones(len(column_sums))
    law = _exact_law if n_correct + n_incorrect <= EXACT_UP_TO else _log_law
    for c in np.unique(column_sums):
        rows = np.nonzero(column_sums == c)[0]
        first = max(0, int(c) - n_incorrect)
        p, probability = law(int(c), n_correct, n_incorrect)
        two_sided[rows] = p[correct_with[rows] - first]
        point[rows] = probability[correct_with[rows] - first]
    return two_sided, point


def _exact_law(c: int, n_correct: int, n_incorrect: int) -> tuple[np.ndarray, np.ndarray]:
    support = range(max(0, c - n_incorrect), min(n_correct, c) + 1)
    right, wrong = _binomials(n_correct), _binomials(n_incorrect)
    ways = [right[k] * wrong[c - k] for k in support]
    total = sum(ways)
    at_most, running = {}, 0
    for w in sorted(ways):
        running += w
        at_most[w] = running  # the last of equal weights holds them all
    return np.array([at_most[w] / total for w in ways]), np.array([w / total for w in ways])


@lru_cache(maxsize=64)
def _binomials(n: int) -> list[int]:
    return [comb(n, k) for k in range(n + 1)]


@lru_cache(maxsize=4)
def _log_factorials(n: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])


def _log_law(c: int, n_correct: int, n_incorrect: int) -> tuple[np.ndarray, np.ndarray]:
    log_factorial = _log_factorials(n_correct + n_incorrect)

    def log_comb(n, k):
        return log_factorial[n] - log_factorial[k] - log_factorial[n - k]

    k = np.arange(max(0, c - n_incorrect), min(n_correct, c) + 1)
    probability = np.exp(log_comb(n_correct, k) + log_comb(n_incorrect, c - k) - log_comb(n_correct + n_incorrect, c))
    order = np.sort(probability)
    cumulative = np.cumsum(order)
    p = cumulative[np.searchsorted(order, probability * (1 + 1e-7), "right") - 1] / cumulative[-1]
    return np.minimum(p, 1.0), probability
