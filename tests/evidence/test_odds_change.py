"""The exact test of one odds ratio against another, against every way to give the labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from ktae_cli.stats.conditional import Strata, draw_probabilities, subset_laws
from ktae_cli.stats.odds_change import CountLaws, odds_change_p_values
from ktae_cli.stats.pooled_score import cells_of
from tests.stats.enumeration import draw_right, law_of_count, strata_and_odds, two_sided


def side(strata: Strata, log_odds, held: np.ndarray, right: np.ndarray) -> CountLaws:
    """Return what the test takes of one set of rollouts; held (n_units, n_rollouts) bool."""
    unit, rollout = np.nonzero(held)
    cells = cells_of(unit, rollout, right, strata)
    p = draw_probabilities(log_odds, strata)
    return CountLaws(cells.right, *subset_laws(p, strata, cells.group, cells.size, cells.place), cells.unit)


def by_enumeration(sides, unit: int) -> tuple[float, float]:
    """Return p and mid-p given the sum of both counts, from the laws over all labellings of both sets."""
    first, second = (law_of_count(log_odds, held[unit], strata) for strata, log_odds, held, _ in sides)
    counts = [int(right @ held[unit]) for _, _, held, right in sides]
    total = sum(counts)
    joint = {t: first.get(total - t, 0) * p for t, p in second.items() if total - t in first}
    weight = sum(joint.values())
    return two_sided({t: p / weight for t, p in joint.items()}, counts[1])


drawn_set = strata_and_odds(max_groups=2, max_size=5, odds=st.floats(-3, 3))


@settings(max_examples=40, deadline=None)
@given(drawn_set, drawn_set, st.integers(0, 10**6))
def test_p_is_that_of_all_labellings_given_the_sum(first, second, seed):
    random = np.random.default_rng(seed)
    sides = []
    for strata, log_odds in (first, second):
        held = random.random((3, len(log_odds))) < np.array([[0.3], [0.5], [0.8]])
        sides.append((strata, log_odds, held, draw_right(strata, random)))
    p, mid = odds_change_p_values(*(side(*s) for s in sides), 3)
    for unit in range(3):
        assert (p[unit], mid[unit]) == pytest.approx(by_enumeration(sides, unit), abs=1e-9)


def test_a_strong_common_effect_is_no_change():
    # all right rollouts of 300 groups of 8 hold the unit, and no wrong one: e^-1274 by chance, in both sets
    groups = 300
    law = hypergeom(8, 4, 4).pmf(np.arange(5))
    starts = 5 * np.arange(groups + 1)
    always = CountLaws(np.full(groups, 4), np.tile(law, groups), starts, np.zeros(groups, np.int64))
    never = always._replace(right=np.zeros(groups, np.int64))
    assert odds_change_p_values(always, always, 1)[0] == [1]
    assert odds_change_p_values(never, never, 1)[0] == [1]
    assert odds_change_p_values(always, never, 1)[0] < 1e-300


def test_a_unit_of_one_set_alone_has_no_change():
    one = CountLaws(np.array([1]), hypergeom(4, 2, 2).pmf(np.arange(3)), np.array([0, 3]), np.array([1]))
    none = CountLaws(np.zeros(0, np.int64), np.zeros(0), np.array([0]), np.zeros(0, np.int64))
    for pair in ((one, none), (none, one)):
        p, mid = odds_change_p_values(*pair, 3)
        assert p.tolist() == [1, 1, 1] and mid.tolist() == [0.5, 0.5, 0.5]
