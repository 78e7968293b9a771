"""How far a number tells right from wrong within groups: rank AUC and correlation, each group by itself."""

import math
from typing import NamedTuple

import numpy as np


class Comparisons(NamedTuple):
    """Pairs of one positive and one negative of a group: how often the positive's score is the larger one.

    wins: ties count one half. variance: of `wins` where scores and labels have nothing to do with each other.
    """

    wins: float = 0.0
    pairs: int = 0
    variance: float = 0.0

    def merge(self, other: "Comparisons") -> "Comparisons":
        """Return the pairs of both."""
        return Comparisons(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))

    @property
    def auc(self) -> float:
        """Return wins / pairs: 1/2 where the score says nothing, NaN without a pair."""
        return self.wins / self.pairs if self.pairs else math.nan

    @property
    def z(self) -> float:
        """Return the distance of `wins` from pairs / 2 in standard deviations, 0 where all scores are tied."""
        return (self.wins - self.pairs / 2) / math.sqrt(self.variance) if self.variance > 0 else 0.0


def compare_within_groups(scores: np.ndarray, positive: np.ndarray, group: np.ndarray) -> Comparisons:
    """Compare every positive with every negative of its group by their scores: the Mann-Whitney U, summed over groups.

    wins = sum over groups of U = R - n1 (n1 + 1) / 2, R the sum of the mid-ranks of the n1 positives among the n of
    the group; variance = n1 n0 / 12 (n + 1 - sum (t^3 - t) / (n (n - 1))) with t the sizes of ties (Mann and Whitney
    1947, with the usual correction for ties). All three arrays are (n,): numbers without NaN, bool, codes from 0.
    Groups without a positive or without a negative add nothing.
    """
    if not len(scores):
        return Comparisons()
    order = np.lexsort((scores, group))
    scores, positive, group = scores[order], positive[order], group[order]
    starts_group = np.diff(group, prepend=group[0] - 1) != 0
    first = np.flatnonzero(starts_group | (np.diff(scores, prepend=scores[0]) != 0))
    tied = np.diff(np.append(first, len(scores)))
    group_start = np.maximum.accumulate(np.where(starts_group, np.arange(len(scores)), 0))
    rank = np.repeat(first - group_start[first] + (tied + 1) / 2, tied)
    n = np.bincount(group)
    n1 = np.bincount(group, positive).astype(np.int64)
    pairs = n1 * (n - n1)
    wins = np.bincount(group, rank * positive) - n1 * (n1 + 1) / 2
    ties = np.bincount(group[first], tied.astype(np.float64) ** 3 - tied, minlength=len(n))
    variance = pairs / 12 * (n + 1 - ties / np.maximum(n * (n - 1), 1))
    mixed = pairs > 0
    return Comparisons(float(wins[mixed].sum()), int(pairs.sum()), float(variance[mixed].sum()))


def rank_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive's score is above a negative's, ties one half; NaN without both kinds."""
    return compare_within_groups(scores, positive, np.zeros(len(scores), np.int64)).auc


def within_group_correlation(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Return Pearson's correlation of x and y after taking each group's means off them; NaN where either is constant.

    x, y (n,) numbers without NaN, group (n,) codes from 0.
    """
    n = np.maximum(np.bincount(group), 1)
    x = x - (np.bincount(group, x) / n)[group]
    y = y - (np.bincount(group, y) / n)[group]
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else math.nan
