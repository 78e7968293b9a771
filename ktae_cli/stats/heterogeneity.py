"""Does a unit mean the same in every prompt? The spread of its log odds ratio between prompts, and a test of it."""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from ktae_cli.stats.common_odds import CommonOdds, law_moments

CELLS_AT_ONCE = 1 << 11
VALUES_AT_ONCE = 1 << 17


class Heterogeneity(NamedTuple):
    """Per unit (n_units,): pooled log odds ratio, Cochran's Q, tau-squared, and the prompts that tell (int64)."""

    log_odds: np.ndarray
    q: np.ndarray
    tau_squared: np.ndarray
    n_prompts: np.ndarray


def heterogeneity(
    score: np.ndarray, variance: np.ndarray, unit: np.ndarray, prompt: np.ndarray, n_units: int
) -> Heterogeneity:
    """Estimate how far the log odds ratio of each unit differs between prompts.

    One cell for each (unit, group), all arrays (n_cells,): score U = right rollouts with the unit less their expected
    number, and its variance V, under the law without an effect or that of `fit_common_odds`; unit and prompt are codes
    from 0. The U and V of a prompt's groups add up. With one-step estimates U / V of variance 1 / V in each prompt:
    log odds = sum U / sum V, counted from that of the law, Q = sum (U - log odds V)^2 / V,
    tau-squared = max(0, (Q - (k - 1)) / (sum V - sum V^2 / sum V)), k the prompts with V > 0.
    Units of one prompt have Q = 0 and tau-squared NaN, units of none NaN and k = 0.
    Small groups saturate: a true tau-squared of 1 in 140 groups of 8 has a median estimate near 0.55. Under the law
    without an effect it falls further, to 0.37 around an odds ratio of 2 and to 0 around 5; under the common odds ratio
    it stays.
    Source: DerSimonian and Laird (1986), Controlled Clinical Trials 7; Yusuf et al. (1985), Prog. Cardiovasc. Dis. 27,
    for the one-step estimates.
    """
    cells = _Nested.of(unit, prompt, variance > 0)
    v = cells.by_prompt(variance[cells.cell])
    total, k = cells.by_unit(v), cells.prompts_of_unit
    log_odds, q = _pool(score[cells.cell, None], v, cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = (q[:, 0] - (k - 1)) / (total - cells.by_unit(v**2) / total)
    out = np.full((3, n_units), np.nan)
    out[:, cells.unit] = log_odds[:, 0], q[:, 0], np.where(k > 1, np.maximum(excess, 0), np.nan)
    n_prompts = np.zeros(n_units, np.int64)
    n_prompts[cells.unit] = k
    return Heterogeneity(*out, n_prompts)


def homogeneity_p_values(
    right: np.ndarray,
    laws: np.ndarray,
    common: CommonOdds,
    starts: np.ndarray,
    unit: np.ndarray,
    prompt: np.ndarray,
    random: np.random.Generator,
    draws: int = 200,
) -> np.ndarray:
    """Return the p (n_units,) of a parametric bootstrap of Q under one odds ratio for all prompts.

    right, laws, starts, unit: as in `fit_common_odds`, which gives `common`; prompt (n_cells,) codes from 0. Each draw
    takes the count of every cell from its law under the common odds ratio; Q, with U and V under the law without an
    effect, is computed from it as from the observed counts: p = (1 + draws with Q at least the observed one) /
    (1 + draws). No p is below 1 / (1 + draws); NaN for units of fewer than two prompts.
    draws is at least 1. Time grows with cells x draws, memory does not.
    With one odds ratio of 1, 2 or 5 in all groups of 8, drawn at random, 3 to 7 % of units have p <= .05; the
    Breslow-Day test rejects 7 to 13 % of them at 20 groups, 12 to 19 % at 60 and 15 to 35 % at 140.
    Source: Davison and Hinkley (1997), Bootstrap methods and their application, ch. 4, for tests of this kind; no paper
    is known to put this statistic and this law together.
    """
    mean, variance = law_moments(laws, starts)
    below = _cumulative(common.laws, starts)
    lengths = np.diff(starts)
    p = np.full(len(common.log_odds), np.nan)
    for block in _Nested.of(unit, prompt, variance > 0).blocks():
        at = block.cell
        v = block.by_prompt(variance[at])
        observed = _pool((right - mean)[at, None], v, block)[1]
        reached = np.zeros(len(block.unit), np.int64)
        step = max(1, VALUES_AT_ONCE // len(at))
        for first in range(0, draws, step):
            u = random.random((len(at), min(step, draws - first)))
            drawn = _pool(_invert(u, below, starts[at], lengths[at]) - mean[at, None], v, block)[1]
            # what is equal but for rounding is as large
            reached += (drawn >= observed * (1 - 1e-9) - 1e-9).sum(1)
        p[block.unit] = np.where(block.prompts_of_unit > 1, (1 + reached) / (1 + draws), np.nan)
    return p


def _cumulative(laws: np.ndarray, starts: np.ndarray) -> np.ndarray:
    total = np.cumsum(laws)
    return total - np.repeat(total[starts[:-1]] - laws[starts[:-1]], np.diff(starts))


def _invert(u: np.ndarray, below: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return the counts whose cumulative laws the uniform u (n, draws) fall into."""
    count = np.zeros(u.shape)
    for t in range(int(length.max()) - 1):
        rows = np.flatnonzero(length > t + 1)
        count[rows] += u[rows] >= below[start[rows] + t, None]
    return count


class _Nested(NamedTuple):
    """Cells sorted by unit, then prompt: where each prompt begins among them, and each unit among the prompts."""

    cell: np.ndarray
    prompt_start: np.ndarray
    unit_start: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, unit: np.ndarray, prompt: np.ndarray, kept: np.ndarray) -> Self:
        cell = np.lexsort((prompt, unit))
        cell = cell[kept[cell]]
        new_unit = np.diff(unit[cell], prepend=-1) != 0
        prompt_start = np.flatnonzero(new_unit | (np.diff(prompt[cell], prepend=-1) != 0))
        unit_start = np.flatnonzero(new_unit[prompt_start])
        return cls(cell, prompt_start, unit_start, unit[cell[prompt_start[unit_start]]])

    @property
    def prompts_of_unit(self) -> np.ndarray:
        return np.diff(np.append(self.unit_start, len(self.prompt_start)))

    def by_prompt(self, values: np.ndarray) -> np.ndarray:
        return values if len(values) == len(self.prompt_start) else np.add.reduceat(values, self.prompt_start)

    def by_unit(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self.unit_start) if len(values) else values

    def blocks(self) -> Iterator[Self]:
        """Cut between units, CELLS_AT_ONCE cells or one unit at a time."""
        first = self.prompt_start[self.unit_start]
        units = np.append(np.flatnonzero(np.diff(first // CELLS_AT_ONCE, prepend=-1)), len(first))
        prompts = np.append(self.unit_start, len(self.prompt_start))[units]
        cells = np.append(self.prompt_start, len(self.cell))[prompts]
        for i in range(len(units) - 1):
            u, p, c = (slice(cuts[i], cuts[i + 1]) for cuts in (units, prompts, cells))
            yield type(self)(
                self.cell[c], self.prompt_start[p] - cells[i], self.unit_start[u] - prompts[i], self.unit[u]
            )


def _pool(score: np.ndarray, v: np.ndarray, cells: _Nested) -> tuple[np.ndarray, np.ndarray]:
    """Return sum U / sum V and Q of each unit (n_units, draws); score (n_cells, draws), v (n_prompts,)."""
    u = cells.by_prompt(score)
    sums, total = cells.by_unit(u), cells.by_unit(v)[:, None]
    return sums / total, np.maximum(cells.by_unit(u**2 / v[:, None]) - sums**2 / total, 0)
