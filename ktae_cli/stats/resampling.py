"""What stays when the prompts are drawn anew: the sign of a unit's score, its rank, and percentile intervals."""

from typing import NamedTuple

import numpy as np

VALUES_AT_ONCE = 1 << 21

NOTHING = 1e-9
"""Sums of scores closer to 0 are 0, and |z| closer to each other are tied: the difference is rounding."""


class Stability(NamedTuple):
    """Per unit (n_units,): share of resamples that keep its sign (float64), and the interval of its rank (int64)."""

    sign: np.ndarray
    rank_low: np.ndarray
    rank_high: np.ndarray


def draw_weights(n_prompts: int, draws: int, random: np.random.Generator) -> np.ndarray:
    """Return how often each prompt is drawn in n_prompts draws with replacement (draws, n_prompts) int64."""
    return random.multinomial(n_prompts, np.full(n_prompts, 1 / max(n_prompts, 1)), draws)


def prompt_stability(
    score: np.ndarray,
    variance: np.ndarray,
    unit: np.ndarray,
    prompt: np.ndarray,
    n_units: int,
    n_prompts: int,
    random: np.random.Generator,
    draws: int = 1000,
    tail: float = 0.05,
) -> Stability:
    """Resample the prompts; return how often each unit keeps its sign and where it ranks.

    score U and variance V (n_cells,) of each (unit, prompt), entries of the same pair add up; unit and prompt codes
    from 0. A resample draws n_prompts prompts with replacement, all groups of a prompt together.
    sign: share of resamples in which sum U has the sign of the observed sum, a sum of 0 counting half; 1/2 where the
    observed sum is 0.
    rank: 1 + the units with a larger |z| = |sum U| / sqrt(sum V), so that tied units share the best of their ranks;
    z is 0 where a resample holds nothing of the unit. rank_low and rank_high are the ranks of a resample: at most a
    share `tail` of all lies below the one, and at most `tail` above the other.
    Ranks depend on which units are handed in. draws is at least 1; memory grows with their tails only.
    """
    from scipy.sparse import csr_array

    u, v = (csr_array((values, (unit, prompt)), (n_units, n_prompts)) for values in (score, variance))
    observed = _sign(u.sum(1))
    kept = np.zeros(n_units)
    beyond = int(tail * draws)
    lowest = np.full((n_units, beyond + 1), n_units + 1)
    highest = np.zeros((n_units, beyond + 1), np.int64)
    step = max(1, VALUES_AT_ONCE // max(n_units, 1))
    for first in range(0, draws, step):
        weights = draw_weights(n_prompts, min(step, draws - first), random).T.astype(np.float64)
        u_sum, v_sum = u @ weights, v @ weights
        kept += (1 + observed[:, None] * _sign(u_sum)).sum(1) / 2
        z = np.zeros(u_sum.shape)
        np.divide(np.abs(u_sum), np.sqrt(v_sum), out=z, where=v_sum > 0)
        rank = rank_down(z.T).T
        lowest = np.partition(np.hstack([lowest, rank]), beyond, 1)[:, : beyond + 1]
        highest = -np.partition(-np.hstack([highest, rank]), beyond, 1)[:, : beyond + 1]
    return Stability(kept / draws, lowest.max(1), highest.min(1))


def _sign(total: np.ndarray) -> np.ndarray:
    return np.where(np.abs(total) > NOTHING, np.sign(total), 0)


def rank_down(values: np.ndarray) -> np.ndarray:
    """Return 1 + the number of larger values in each row (n, m) int64; values within NOTHING of each other are tied."""
    order = np.argsort(-values, axis=1)
    falls = np.diff(np.take_along_axis(values, order, 1), axis=1) < -NOTHING
    rank = np.ones(values.shape, np.int64)
    rank[:, 1:] = np.maximum.accumulate(np.where(falls, np.arange(2, values.shape[1] + 1), 1), axis=1)
    out = np.empty_like(rank)
    np.put_along_axis(out, order, rank, 1)
    return out


def percentile_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the quantiles (1 - level) / 2 and (1 + level) / 2 of values (n,), NaN left out; NaN without a value.

    Source: Efron (1979), Ann. Statist. 7.
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return np.nan, np.nan
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
