"""One odds ratio for all cells of a unit: the laws of their counts tilted by it, and its estimate."""

from typing import NamedTuple

import numpy as np

FARTHEST = 12.0
"""Largest log odds ratio fitted: where every count is the largest it can be, no finite one fits."""


class CommonOdds(NamedTuple):
    """Log odds ratio of each unit (n_units,), and the law of each cell under it, as `subset_laws` lays laws out."""

    log_odds: np.ndarray
    laws: np.ndarray


def fit_common_odds(
    right: np.ndarray, laws: np.ndarray, starts: np.ndarray, unit: np.ndarray, n_units: int
) -> CommonOdds:
    """Fit the log odds ratio of each unit by the conditional likelihood of its counts: sum E T = sum T.

    right (n_cells,): right rollouts with the unit, T; laws, starts: the laws of T without an effect, as `subset_laws`
    returns them; unit (n_cells,) codes from 0. Under a log odds ratio b, P(T = t) is proportional to law(t) e^(b t).
    Newton's method in steps of at most 1, cut at ±FARTHEST; 0 for a unit without a cell that can vary. It does not
    circle: T is a sum of independent draws of log odds b + c_j, so the slope of E T changes at most e-fold in a step.
    Source: Breslow and Day (1980), Statistical methods in cancer research, vol. 1, ch. 7.
    """
    log_odds, tilted = np.zeros(n_units), laws
    observed = np.bincount(unit, right, n_units)
    for _ in range(100):
        mean, variance = law_moments(tilted, starts)
        excess, information = observed - np.bincount(unit, mean, n_units), np.bincount(unit, variance, n_units)
        step = np.zeros(n_units)
        np.divide(excess, information, out=step, where=information > 0)
        moved = np.clip(log_odds + np.clip(step, -1, 1), -FARTHEST, FARTHEST)
        if np.abs(moved - log_odds).max(initial=0) < 1e-10:
            break
        log_odds = moved
        tilted = tilt(laws, starts, log_odds[unit])
    return CommonOdds(log_odds, tilted)


def law_moments(laws: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance (n_laws,) of laws of whole numbers from 0, laid end to end."""
    lengths = np.diff(starts)
    t = _values(starts)
    mean = np.add.reduceat(laws * t, starts[:-1])
    return mean, np.add.reduceat(laws * (t - np.repeat(mean, lengths)) ** 2, starts[:-1])


def tilt(laws: np.ndarray, starts: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Return the laws with every P(T = t) multiplied by e^(log_odds t) and scaled to sum 1; log_odds (n_laws,)."""
    lengths = np.diff(starts)
    with np.errstate(divide="ignore"):
        log = np.log(laws) + np.repeat(log_odds, lengths) * _values(starts)
    out = np.exp(log - np.repeat(np.maximum.reduceat(log, starts[:-1]), lengths))
    return out / np.repeat(np.add.reduceat(out, starts[:-1]), lengths)


def _values(starts: np.ndarray) -> np.ndarray:
    """Return 0, 1, … along each law."""
    return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
