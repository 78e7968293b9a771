"""Figures that are functions of sums over prompts, with intervals from resampled prompts."""

from collections.abc import Callable

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95
OPEN = 0.025
"""Where the figure does not exist in a larger share of the resamples, no interval is given."""

Estimate = dict[str, float | None]


def sums_by_prompt(values: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """Add values (n_sums, n_groups) over the groups of each prompt (n_groups,): (n_sums, n_prompts)."""
    found, number = np.unique(prompt, return_inverse=True)
    return np.stack([np.bincount(number, row, len(found)) for row in values])


def resample(sums: np.ndarray, random: np.random.Generator, times: int = RESAMPLES) -> np.ndarray:
    """Return the sums (n_sums, times) over prompts drawn with replacement from those of sums (n_sums, n_prompts)."""
    n_prompts = sums.shape[1]
    drawn = np.empty((len(sums), times))
    for time in range(times):
        counts = np.bincount(random.integers(0, n_prompts, n_prompts), minlength=n_prompts)
        drawn[:, time] = sums @ counts
    return drawn


def with_interval(figure: Callable[[np.ndarray], np.ndarray], sums: np.ndarray, drawn: np.ndarray) -> Estimate:
    """Return the value of figure and its 95 % interval, the percentiles over the resamples.

    figure: sums (n_sums, …) -> (…), NaN where it does not exist; sums (n_sums, n_prompts), drawn (n_sums, times).
    What does not exist is None; the interval also where there are less than two prompts, or where the figure does not
    exist in more than OPEN of the resamples.
    Source: Efron and Tibshirani (1993), An introduction to the bootstrap, ch. 13.
    """
    value, around = figure(sums.sum(1)), figure(drawn)
    low = high = None
    known = around[np.isfinite(around)]
    if np.isfinite(value) and sums.shape[1] > 1 and len(known) >= (1 - OPEN) * len(around):
        low, high = (_short(bound) for bound in np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return {"value": _short(value) if np.isfinite(value) else None, "low": low, "high": high}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
