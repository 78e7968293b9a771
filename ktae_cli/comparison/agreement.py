"""How far estimators agree on the same tokens: moments and sign counts that merge, ranks, top sets, slopes; numpy only.

`values` is (n_compared, n) throughout: one row an estimator, one column a token or a rollout.
"""

import math

import numpy as np

TOP_SHARE = 0.01
_PART = 1 << 20


class CoMoments:
    """Means and co-moments, merged part by part around running means (Chan, Golub and LeVeque): for Pearson's r."""

    def __init__(self, n_compared: int):
        self.n, self.mean = 0, np.zeros(n_compared)
        self.products = np.zeros((n_compared, n_compared))
        self.low, self.high = np.full(n_compared, np.inf), np.full(n_compared, -np.inf)

    def add(self, values: np.ndarray) -> None:
        """Add (n_compared, n) values."""
        for start in range(0, values.shape[1], _PART):
            self._add(values[:, start : start + _PART].astype(np.float64))

    def _add(self, values: np.ndarray) -> None:
        n = values.shape[1]
        self.low, self.high = np.minimum(self.low, values.min(1)), np.maximum(self.high, values.max(1))
        mean = values.mean(1)
        values -= mean[:, None]
        shift, total = mean - self.mean, self.n + n
        self.products += values @ values.T + np.outer(shift, shift) * (self.n * n / total)
        self.mean += shift * (n / total)
        self.n = total

    def correlations(self) -> np.ndarray:
        """Return Pearson's r of every pair (n_compared, n_compared); NaN where one of the two is constant."""
        variance = np.diag(self.products)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = self.products / np.sqrt(np.outer(variance, variance))
        constant = ~(self.low < self.high)
        found[constant], found[:, constant] = np.nan, np.nan
        return np.clip(found, -1.0, 1.0)


class SignCounts:
    """How often signs differ, for every pair: both nonzero and opposite, or exactly one of them zero."""

    def __init__(self, n_compared: int):
        self.n = 0
        self.opposite, self.both = (np.zeros((n_compared, n_compared), np.int64) for _ in range(2))

    def add(self, values: np.ndarray) -> None:
        """Add (n_compared, n) values."""
        for start in range(0, values.shape[1], _PART):
            part = values[:, start : start + _PART]
            above, below = (part > 0).astype(np.float32), (part < 0).astype(np.float32)  # exact up to 2^24 a part
            crossed = above @ below.T
            self.opposite += (crossed + crossed.T).astype(np.int64)
            nonzero = above + below
            self.both += (nonzero @ nonzero.T).astype(np.int64)
        self.n += values.shape[1]

    @property
    def nonzero(self) -> np.ndarray:
        """Nonzero values of each (n_compared,)."""
        return np.diag(self.both)

    @property
    def one_sided(self) -> np.ndarray:
        """Values of which exactly one of the pair is zero (n_compared, n_compared)."""
        return self.nonzero[:, None] + self.nonzero[None] - 2 * self.both


def twice_ranks(values: np.ndarray) -> np.ndarray:
    """Return twice the rank of each value (n,) int32, from 2 upward; ties share the mean of theirs, so halves occur."""
    order = np.argsort(values)
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(values)), bool), ordered[1:] != ordered[:-1]]))
    last = np.append(first[1:], len(values))[: len(first)]
    ranks = np.empty(len(values), np.int32)
    ranks[order] = np.repeat(first + last + 1, last - first)
    return ranks


def spearman(values: np.ndarray) -> np.ndarray:
    """Return Spearman's rho of every pair of the rows of values (n_compared, n): Pearson's r of mean ranks."""
    moments = CoMoments(len(values))
    if values.shape[1]:
        moments.add(np.stack([twice_ranks(row) for row in values]))
    return moments.correlations()


def top_values(values: np.ndarray, share: float = TOP_SHARE) -> np.ndarray:
    """Tell which of values (n,) are among the top share by size; ties with the last of them are in, zeros never."""
    if not len(values):
        return np.zeros(0, bool)
    size = np.abs(values)
    at = len(size) - max(1, math.ceil(share * len(size)))
    return (size >= np.partition(size, at)[at]) & (size > 0)


def jaccard(sets: list[np.ndarray]) -> np.ndarray:
    """Return |both| / |either| of every pair of sets, each (n,) bool; NaN where both are empty."""
    both = np.array([[np.count_nonzero(a & b) for b in sets] for a in sets], np.float64)
    either = np.diag(both)[:, None] + np.diag(both)[None] - both
    with np.errstate(invalid="ignore"):
        return both / either


def slope_within(x: np.ndarray, y: np.ndarray, block: np.ndarray) -> float:
    """Return the least-squares slope of y on x inside blocks: sum (x - mean x)(y - mean y) / sum (x - mean x)^2.

    x, y (n,) float64, block (n,) int64; the means are those of the block. NaN where x varies in no block.
    """
    _, block = np.unique(block, return_inverse=True)
    x = _centred(x, block)
    square = float(x @ x)
    return float(x @ _centred(y, block)) / square if square > 0 else math.nan


def _centred(values: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return values less the mean of their block, exactly 0 where all of a block are equal."""
    start = np.zeros(block.max(initial=-1) + 1)
    start[block] = values
    values = values - start[block]
    return values - (np.bincount(block, values) / np.bincount(block))[block]
