"""Is a unit worth as much in one set of rollouts as in another? The exact test of one odds ratio against the other."""

from typing import NamedTuple

import numpy as np

from ktae_cli.stats.common_odds import fit_common_odds
from ktae_cli.stats.pooled_law import pooled_laws, two_sided

UNITS_AT_ONCE = 256


class CountLaws(NamedTuple):
    """Cells of one set of rollouts: right rollouts that hold the unit, their laws without an effect, and the unit.

    right, unit (n_cells,); laws, starts: as `subset_laws` returns them.
    """

    right: np.ndarray
    laws: np.ndarray
    starts: np.ndarray
    unit: np.ndarray


def odds_change_p_values(first: CountLaws, second: CountLaws, n_units: int) -> tuple[np.ndarray, np.ndarray]:
    """Return p and mid-p (n_units,) of the same log odds ratio of a unit in both sets of independent groups.

    S and T, the counts of the first and of the second set, have laws P1 and P2 that an effect tilts by e^(theta t).
    Given S + T the tilt cancels: P(T = t | s) is proportional to P1(s - t) P2(t), at any common theta; the fitted one
    keeps the products from vanishing. p is the sum over counts no likelier than T; 1 where only one count is possible.
    The test is Fisher's conditional argument, ours in this use.
    """
    laws, counts = _tilted_together(first, second, n_units)
    p, mid = np.ones(n_units), np.full(n_units, 0.5)
    total = counts[0] + counts[1]
    most_first, most_second = (np.diff(begin) - 1 for _, begin in laws)
    low = np.maximum(total - most_first, 0)
    sizes = np.minimum(total, most_second) - low + 1
    by_size = np.argsort(sizes, kind="stable")
    for at in range(0, n_units, UNITS_AT_ONCE):
        chunk = by_size[at : at + UNITS_AT_ONCE]
        t = low[chunk, None] + np.arange(int(sizes[chunk].max()))
        kept = np.arange(t.shape[1]) < sizes[chunk, None]
        theirs = _at(laws[0], chunk, total[chunk, None] - t, kept)
        ours = _at(laws[1], chunk, t, kept)
        law = ours * theirs
        law /= np.maximum(law.sum(1, keepdims=True), 1e-300)
        found = two_sided(np.where(kept, law, np.inf))
        observed = (counts[1] - low)[chunk]
        p[chunk], mid[chunk] = (values[np.arange(len(chunk)), observed] for values in found)
    return p, mid


def _tilted_together(first: CountLaws, second: CountLaws, n_units: int) -> tuple[list, list[np.ndarray]]:
    """Return the law of each set's count under the odds ratio that fits both, and the counts (n_units,) of each."""
    both = [np.concatenate([ours, theirs]) for ours, theirs in zip(first, second, strict=True)]
    starts = np.concatenate([first.starts, first.starts[-1] + second.starts[1:]])
    tilted = fit_common_odds(both[0], both[1], starts, both[3], n_units).laws
    parts = tilted[: first.starts[-1]], tilted[first.starts[-1] :]
    laws = [pooled_laws(law, set_.starts, set_.unit, n_units) for law, set_ in zip(parts, (first, second), strict=True)]
    counts = [np.bincount(set_.unit, set_.right, n_units).astype(np.int64) for set_ in (first, second)]
    return laws, counts


def _at(law: tuple[np.ndarray, np.ndarray], units: np.ndarray, count: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the probabilities of counts (n, width) of units (n,), 0 off kept."""
    values, begin = law
    return np.where(kept, values[np.where(kept, begin[units, None] + count, 0)], 0)
