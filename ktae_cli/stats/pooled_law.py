"""Exact tests of a count summed over groups: the laws of the groups convolved, and the two-sided p of every count."""

import numpy as np

UNITS_AT_ONCE = 256

TIE = 1 + 1e-7
"""Counts whose probabilities agree to this factor are equally likely; what differs is rounding (scipy's tolerance)."""


def pooled_p_values(
    laws: np.ndarray, starts: np.ndarray, unit: np.ndarray, n_units: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (p, mid-p) of every count that a unit can reach, end to end, and where each unit's begin.

    laws, starts: as `subset_laws` returns them, one for each (unit, group); unit (n_laws,): the unit of each.
    The law of a unit's count T is the convolution of its groups' laws, groups being independent.
    p(t) = sum of P(T = s) over s no likelier than t; mid-p(t) = p(t) less half of the probability of all that is as
    likely as t.
    A unit without a law has T = 0 and p = 1, mid-p = 1/2.
    """
    law, begin = pooled_laws(laws, starts, unit, n_units)
    p, mid = np.empty((2, len(law)))
    sizes = np.diff(begin)
    by_size = np.argsort(sizes, kind="stable")
    for at in range(0, n_units, UNITS_AT_ONCE):
        chunk = by_size[at : at + UNITS_AT_ONCE]
        kept, places = _padded(begin, chunk)
        p[places], mid[places] = (found[kept] for found in two_sided(np.where(kept, _at(law, places, kept), np.inf)))
    return p, mid, begin


def pooled_laws(laws: np.ndarray, starts: np.ndarray, unit: np.ndarray, n_units: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P(T = t) of every count that a unit can reach, from 0, end to end, and where each unit's begin."""
    sizes = np.bincount(unit, np.diff(starts) - 1, n_units).astype(np.int64) + 1
    begin = np.concatenate([[0], np.cumsum(sizes)])
    by_unit = np.argsort(unit, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(unit, minlength=n_units))])
    found = np.empty(begin[-1])
    by_size = np.argsort(sizes, kind="stable")
    for at in range(0, n_units, UNITS_AT_ONCE):
        chunk = by_size[at : at + UNITS_AT_ONCE]
        kept, places = _padded(begin, chunk)
        found[places] = _convolved(laws, starts, by_unit, first, chunk, kept.shape[1])[kept]
    return found, begin


def _padded(begin: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which places of a table (n, longest) a chunk's units fill, and where these stand end to end."""
    sizes = begin[chunk + 1] - begin[chunk]
    width = np.arange(int(sizes.max(initial=0)))
    kept = width < sizes[:, None]
    return kept, (begin[chunk, None] + width)[kept]


def _at(values: np.ndarray, places: np.ndarray, kept: np.ndarray) -> np.ndarray:
    table = np.zeros(kept.shape)
    table[kept] = values[places]
    return table


def _convolved(
    laws: np.ndarray, starts: np.ndarray, by_unit: np.ndarray, first: np.ndarray, chunk: np.ndarray, width: int
) -> np.ndarray:
    """Return the laws of the chunk's units (n, width): one group of each unit is added at a time."""
    law = np.zeros((len(chunk), width))
    law[:, 0] = 1
    n_laws = first[chunk + 1] - first[chunk]
    for step in range(int(n_laws.max(initial=0))):
        rows = np.flatnonzero(n_laws > step)
        added = by_unit[first[chunk[rows]] + step]
        length = starts[added + 1] - starts[added]
        old, new = law[rows], np.zeros((len(rows), width))
        for t in range(int(length.max())):
            factor = np.where(t < length, laws[np.minimum(starts[added] + t, len(laws) - 1)], 0.0)
            new[:, t:] += factor[:, None] * old[:, : width - t]
        law[rows] = new
    return law


def two_sided(law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return p and mid-p of every value of laws (n, width); infinite places stand for no value."""
    order = np.argsort(law, axis=1, kind="stable")
    ascending = np.take_along_axis(law, order, 1)
    total = np.cumsum(np.where(np.isfinite(ascending), ascending, 0), axis=1)
    # a run of ties ends where the next value is larger; all of the run have the sum up to its end
    ends = np.ones(law.shape, bool)
    with np.errstate(invalid="ignore"):
        ends[:, :-1] = ascending[:, 1:] > ascending[:, :-1] * TIE
    at = np.where(ends, np.arange(law.shape[1]), law.shape[1])
    at = np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1]
    begins = np.concatenate([np.ones((len(law), 1), bool), ends[:, :-1]], axis=1)
    start = np.maximum.accumulate(np.where(begins, np.arange(law.shape[1]), 0), axis=1)
    p_ascending = np.take_along_axis(total, at, 1)
    before = np.concatenate([np.zeros((len(law), 1)), total], axis=1)
    tied = p_ascending - np.take_along_axis(before, start, 1)
    p, mid = np.empty((2, *law.shape))
    np.put_along_axis(p, order, np.minimum(p_ascending, 1), 1)
    np.put_along_axis(mid, order, np.minimum(p_ascending - tied / 2, 1), 1)
    return p, mid
