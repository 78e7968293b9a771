"""How well a score tells right from wrong rollouts of a group, with the uncertainty that lies in the prompts."""

from typing import NamedTuple

import numpy as np

from ktae_cli.association import compare_within_groups
from ktae_cli.stats.resampling import draw_weights, percentile_interval


class IntervalAuc(NamedTuple):
    """The AUC within groups, and the ends of its interval."""

    auc: float
    low: float
    high: float


def auc_within_groups(
    scores: np.ndarray,
    right: np.ndarray,
    group: np.ndarray,
    prompt: np.ndarray,
    random: np.random.Generator,
    draws: int = 1000,
    level: float = 0.95,
) -> IntervalAuc:
    """Return how often a right rollout has a larger score than a wrong one of its group, ties one half.

    scores (n,) numbers without NaN, right (n,) bool, group and prompt (n,) codes from 0, a group inside one prompt.
    AUC = wins / pairs over all groups, as `compare_within_groups` counts them; the interval is that of the percentiles
    of the AUC over resamples of the prompts. NaN without a pair; resamples without a pair are left out.
    """
    order = np.argsort(prompt, kind="stable")
    prompts = np.split(order, np.flatnonzero(np.diff(prompt[order])) + 1)
    found = [
        compare_within_groups(scores[rows], right[rows], np.unique(group[rows], return_inverse=True)[1])
        for rows in prompts
    ]
    wins, pairs = np.array([part.wins for part in found]), np.array([part.pairs for part in found])
    weights = draw_weights(len(found), draws, random)
    with np.errstate(invalid="ignore"):
        return IntervalAuc(
            float(np.divide(wins.sum(), pairs.sum())),
            *percentile_interval((weights @ wins) / (weights @ pairs), level),
        )
