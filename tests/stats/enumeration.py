"""Every way to give the right labels of a group, and of several groups: what the fast laws are held against."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from ktae_cli.stats.conditional import Strata


def labellings(log_odds, right: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all labellings (n_sets, n) of one group with that many right ones, and their probabilities (n_sets,)."""
    sets = list(itertools.combinations(range(len(log_odds)), right))
    labels = np.zeros((len(sets), len(log_odds)))
    for row, chosen in enumerate(sets):
        labels[row, list(chosen)] = 1
    weight = np.array([math.fsum(log_odds[i] for i in chosen) for chosen in sets])
    weight = np.exp(weight - weight.max())
    return labels, weight / math.fsum(weight)


def split(values, strata: Strata) -> list[np.ndarray]:
    """Cut a value per rollout into groups."""
    return np.split(np.asarray(values), strata.starts[1:])


def moments(log_odds, right: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (n,) and the covariance (n, n) of a group's labels."""
    labels, probability = labellings(log_odds, right)
    mean = probability @ labels
    return mean, (labels.T * probability) @ labels - np.outer(mean, mean)


def law_of_count(log_odds, held, strata: Strata) -> dict[int, float]:
    """Return the probability of each number of right rollouts among those held, over all labellings of all groups."""
    groups = [labellings(part, int(right)) for part, right in zip(split(log_odds, strata), strata.n_right, strict=True)]
    counts = [labels @ inside for (labels, _), inside in zip(groups, split(held, strata), strict=True)]
    law: dict[int, float] = {}
    for way in itertools.product(*(range(len(count)) for count in counts)):
        total = int(sum(count[i] for count, i in zip(counts, way, strict=True)))
        law[total] = law.get(total, 0) + math.prod(p[i] for (_, p), i in zip(groups, way, strict=True))
    return law


def two_sided(law: dict[int, float], count: int) -> tuple[float, float]:
    """Return the p and the mid-p of a count."""
    observed = law[count]
    p = math.fsum(x for x in law.values() if x <= observed * (1 + 1e-7))
    tied = math.fsum(x for x in law.values() if observed / (1 + 1e-7) <= x <= observed * (1 + 1e-7))
    return min(p, 1), p - tied / 2


def draw_right(strata: Strata, random: np.random.Generator) -> np.ndarray:
    """Draw labels (n_rollouts,) uint8 with the given numbers of right ones."""
    return np.concatenate(
        [random.permutation(np.arange(n) < r) for n, r in zip(strata.sizes, strata.n_right, strict=True)]
    ).astype(np.uint8)


@st.composite
def strata_and_odds(draw, max_groups: int = 3, max_size: int = 7, odds=None) -> tuple[Strata, np.ndarray]:
    """Draw mixed groups and log odds (n_rollouts,), equal in one of three."""
    odds = st.floats(-6, 6) if odds is None else odds
    sizes = draw(st.lists(st.integers(2, max_size), min_size=1, max_size=max_groups))
    n_right = [draw(st.integers(1, size - 1)) for size in sizes]
    n = sum(sizes)
    equal = draw(st.integers(0, 2)) == 0
    log_odds = [0.0] * n if equal else draw(st.lists(odds, min_size=n, max_size=n))
    return Strata(np.array(sizes), np.array(n_right)), np.array(log_odds)
