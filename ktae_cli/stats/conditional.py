"""The law of the verdicts in a group, given how many of its rollouts are right.

Each rollout i has odds w_i of being right; given that exactly R of the group are, a set s of R rollouts is the right
one with probability prod_{i in s} w_i / e_R(w), e_R the elementary symmetric polynomial. Equal odds make every set
equally likely: the labels are exchangeable. Everything is computed through the number K of right rollouts of
independent draws with p_i = c w_i / (1 + c w_i), c chosen so that E K = R: e_R(w) is then P(K = R) times a constant
that cancels, no term is negative, and nothing overflows.
Source: Chen, Dempster and Liu (1994), Biometrika 81, for the law and the drawing; Hájek (1964), Ann. Math. Statist. 35,
and Deville and Tillé (2005), J. Statist. Plann. Inference 128, for the covariance in large groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MAX_EXACT = 128
"""Groups with more rollouts get Hájek's covariance; all else is exact for any size."""


@dataclass(frozen=True)
class Strata:
    """Groups end to end: sizes (n_groups,) int64, n_right (n_groups,) int64 with 0 < n_right < sizes."""

    sizes: np.ndarray
    n_right: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """First rollout of each group (n_groups,)."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def group(self) -> np.ndarray:
        """Group of each rollout (n_rollouts,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def compositions(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yield groups (m,) of one size and number of right rollouts, their rollouts (m, n), and that number."""
        starts = self.starts
        kinds, kind = np.unique(np.stack([self.sizes, self.n_right]), axis=1, return_inverse=True)
        for at, (size, right) in enumerate(kinds.T.tolist()):
            groups = np.flatnonzero(kind == at)
            yield groups, starts[groups, None] + np.arange(size), right


def draw_probabilities(log_odds: np.ndarray, strata: Strata) -> np.ndarray:
    """Return p (n_rollouts,) of independent draws with the odds of log_odds up to a factor, sum R in each group."""
    p = np.empty(len(log_odds))
    for _, rows, right in strata.compositions():
        p[rows] = _tilted(log_odds[rows], right)
    return p


def _tilted(log_odds: np.ndarray, right: int) -> np.ndarray:
    """Shift log odds (m, n) so that the probabilities of each row sum to `right`: Newton, kept inside a bracket."""
    n = log_odds.shape[1]
    centred = log_odds - log_odds.mean(1, keepdims=True)
    at = np.full((len(centred), 1), np.log(right / (n - right)))
    low, high = at - np.abs(centred).max(1, keepdims=True) - 1, at + np.abs(centred).max(1, keepdims=True) + 1
    for _ in range(100):
        p = _sigmoid(centred + at)
        excess = p.sum(1, keepdims=True) - right
        if np.abs(excess).max() < 1e-13 * n:
            break
        low, high = np.where(excess < 0, at, low), np.where(excess > 0, at, high)
        step = at - excess / np.maximum((p * (1 - p)).sum(1, keepdims=True), 1e-300)
        at = np.where((step > low) & (step < high), step, (low + high) / 2)
    return p


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _heads(p: np.ndarray, right: int) -> np.ndarray:
    """Return (n + 1, m, right + 1): the law of the number right among the first i of each row."""
    m, n = p.shape
    laws = np.zeros((n + 1, m, right + 1))
    laws[0, :, 0] = 1
    for i in range(n):
        laws[i + 1] = add_draw(laws[i], p[:, i])
    return laws


def add_draw(law: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the law (m, k) of the number right with one more draw of probability p (m,), cut at k - 1."""
    out = law * (1 - p)[:, None]
    out[:, 1:] += law[:, :-1] * p[:, None]
    return out


def inclusion(p: np.ndarray, strata: Strata) -> np.ndarray:
    """Return pi (n_rollouts,): the probability that a rollout is right given its group's number.

    pi_i = p_i P(K without i = R - 1) / P(K = R); p from `draw_probabilities`.
    """
    pi = np.empty(len(p))
    for _, rows, right in strata.compositions():
        pi[rows] = _inclusion(p[rows], right)
    return pi


def _inclusion(p: np.ndarray, right: int) -> np.ndarray:
    heads, tails = _heads(p, right), _heads(p[:, ::-1], right)[::-1]
    # tails[i] is the law of what stands after the first i; together they leave rollout i out
    without = np.einsum("imk,imk->mi", heads[:-1, :, :right], tails[1:, :, :right][:, :, ::-1])
    return p * without / heads[-1, :, right][:, None]


def covariances(p: np.ndarray, pi: np.ndarray, strata: Strata) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield groups (m,), their rollouts (m, n) and the covariance (m, n, n) of their verdicts, a part at a time.

    Exact up to MAX_EXACT rollouts: C_ij = P(i and j right) - pi_i pi_j. Above, C_ij = -c_i c_j / sum c (Hájek), with c
    such that the variances C_ii = c_i - c_i^2 / sum c are the exact pi_i (1 - pi_i).
    """
    for groups, rows, right in strata.compositions():
        size = rows.shape[1]
        at_once = max(1, (1 << 22) // (size * max(size, right + 1)))
        for first in range(0, len(groups), at_once):
            part = slice(first, first + at_once)
            block = rows[part]
            known = pi[block]
            covariance = _exact(p[block], known, right) if size <= MAX_EXACT else _hajek(known)
            yield groups[part], block, covariance


def _exact(p: np.ndarray, pi: np.ndarray, right: int) -> np.ndarray:
    m, n = p.shape
    heads, tails = _heads(p, right), _heads(p[:, ::-1], right)[::-1]
    total = heads[-1, :, right]
    both = np.zeros((m, n, n))
    # given[:, i]: the law of the number right so far, other than i, together with i being right
    given = np.zeros((m, n, right))
    for j in range(n):
        if right > 1:
            met = np.einsum("mik,mk->mi", given[:, :j, : right - 1], tails[j + 1, :, : right - 1][:, ::-1])
            both[:, :j, j] = met * (p[:, j] / total)[:, None]
        given[:, :j] = add_draw(given[:, :j].reshape(-1, right), np.repeat(p[:, j], j)).reshape(m, j, right)
        given[:, j] = heads[j, :, :right] * p[:, j, None]
    both += both.transpose(0, 2, 1)
    at = np.arange(n)
    both[:, at, at] = pi
    return both - pi[:, :, None] * pi[:, None, :]


def _hajek(pi: np.ndarray) -> np.ndarray:
    n = pi.shape[1]
    variance = c = pi * (1 - pi)
    # this converges, for labels are negatively associated: no variance exceeds the sum of the others
    for _ in range(50):
        total = np.maximum(c.sum(1, keepdims=True), 1e-300)
        c = variance + c**2 / total
    out = -c[:, :, None] * c[:, None, :] / total[:, :, None]
    at = np.arange(n)
    out[:, at, at] = variance
    return out


def draw_verdicts(p: np.ndarray, strata: Strata, times: int, random: np.random.Generator) -> np.ndarray:
    """Draw verdicts (n_rollouts, times) uint8 from the law: rollout by rollout, given how many are still to come."""
    out = np.empty((len(p), times), np.uint8)
    for _, rows, right in strata.compositions():
        out[rows] = _draw(p[rows], right, times, random)
    return out


def _draw(p: np.ndarray, right: int, times: int, random: np.random.Generator) -> np.ndarray:
    m, n = p.shape
    tails = _heads(p[:, ::-1], right)[::-1]
    out = np.empty((m, n, times), np.uint8)
    missing = np.full((m, times), right)
    row = np.arange(m)[:, None]
    for i in range(n):
        chance = np.zeros((m, right + 1))
        np.divide(p[:, i, None] * tails[i + 1, :, :-1], tails[i, :, 1:], out=chance[:, 1:], where=tails[i, :, 1:] > 0)
        out[:, i] = random.random((m, times)) < chance[row, missing]
        missing -= out[:, i]
    return out


def subset_laws(
    p: np.ndarray, strata: Strata, group: np.ndarray, size: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the laws of the number of right rollouts inside subsets of groups, end to end, and where each begins.

    group, size (n_subsets,): the group and the number of rollouts of each; place (sum of size,): its rollouts, counted
    inside the group. A law has k + 1 values, k = min(R, size):
    P(T = t) = P(K inside = t) P(K outside = R - t) / P(K = R).
    """
    lengths = np.minimum(strata.n_right[group], size) + 1
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ends = np.cumsum(size)
    laws = np.empty(starts[-1])
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(len(strata.sizes) + 1))
    for groups, rows, right in strata.compositions():
        counts = first[groups + 1] - first[groups]
        subsets, row_of = order[runs(first[groups], counts)], np.repeat(np.arange(len(groups)), counts)
        at_once = max(1, (1 << 21) // (rows.shape[1] + 2 * right + 2))
        for start in range(0, len(subsets), at_once):
            part, part_rows = subsets[start : start + at_once], row_of[start : start + at_once]
            inside = np.zeros((len(part), rows.shape[1]), bool)
            inside[np.repeat(np.arange(len(part)), size[part]), place[runs(ends[part] - size[part], size[part])]] = True
            law = _subset_laws(p[rows[part_rows]], inside, right)
            kept = np.arange(right + 1) < lengths[part, None]
            laws[runs(starts[part], lengths[part])] = law[kept]
    return laws, starts


def runs(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return start, start + 1, … of each run (n_runs,), one run after the other."""
    before = np.cumsum(length) - length
    return np.repeat(start - before, length) + np.arange(length.sum())


def _subset_laws(p: np.ndarray, inside: np.ndarray, right: int) -> np.ndarray:
    within, without = np.zeros((2, len(p), right + 1))
    within[:, 0] = without[:, 0] = 1
    for i in range(p.shape[1]):
        within = add_draw(within, np.where(inside[:, i], p[:, i], 0))
        without = add_draw(without, np.where(inside[:, i], 0, p[:, i]))
    law = within * without[:, ::-1]
    return law / law.sum(1, keepdims=True)
