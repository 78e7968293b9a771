"""Tilted laws and the common odds ratio against literals, scipy and statsmodels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import contingency, hypergeom, nchypergeom_fisher

from ktae_cli.stats.common_odds import FARTHEST, fit_common_odds, law_moments, tilt


def laws_of(cells):
    """Return the hypergeometric laws of cells (rollouts, right, size), values from 0, end to end, and their starts."""
    laws = [hypergeom.pmf(np.arange(min(right, size) + 1), n, right, size) for n, right, size in cells]
    return np.concatenate(laws), np.concatenate([[0], np.cumsum([len(law) for law in laws])])


def draw_cells(seed, n_cells, sizes=(2, 9)):
    random = np.random.default_rng(seed)
    n = random.integers(*sizes, n_cells)
    cells = [(int(m), int(random.integers(1, m)), int(random.integers(1, m))) for m in n]
    return cells, np.array([hypergeom.rvs(*cell, random_state=random) for cell in cells])


def test_moments_of_laws_by_hand():
    mean, variance = law_moments(np.array([0.5, 0.5, 0.25, 0.5, 0.25]), np.array([0, 2, 5]))
    assert mean == pytest.approx([0.5, 1])
    assert variance == pytest.approx([0.25, 0.5])


def test_a_law_tilted_by_the_log_of_three():
    # (1/4, 1/2, 1/4) times 1, 3, 9 over 16/4
    found = tilt(np.array([0.25, 0.5, 0.25, 1.0]), np.array([0, 3, 4]), np.array([np.log(3), 5]))
    assert found == pytest.approx([1 / 16, 6 / 16, 9 / 16, 1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(-40, 40))
def test_tilted_laws_are_fishers_noncentral_ones(seed, tenths):
    log_odds = tenths / 10  # scipy aborts the process where the odds differ from 1 by rounding alone
    cells, _ = draw_cells(seed, 3)
    laws, starts = laws_of(cells)
    found = tilt(laws, starts, np.full(3, log_odds))
    for at, cell in enumerate(cells):
        law = found[starts[at] : starts[at + 1]]
        np.testing.assert_allclose(law, nchypergeom_fisher.pmf(np.arange(len(law)), *cell, np.exp(log_odds)), atol=1e-9)


def test_the_odds_ratio_of_one_table_is_scipys_conditional_one():
    laws, starts = laws_of([(12, 6, 5)])
    found = fit_common_odds(np.array([4]), laws, starts, np.array([0]), 1)
    expected = contingency.odds_ratio([[4, 1], [2, 5]], kind="conditional").statistic
    assert np.exp(found.log_odds[0]) == pytest.approx(expected, rel=1e-5)
    assert law_moments(found.laws, starts)[0] == pytest.approx([4])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_the_common_odds_ratio_meets_the_observed_sum(seed):
    cells, right = draw_cells(seed, 8)
    unit = np.repeat([0, 1], 4)
    laws, starts = laws_of(cells)
    found = fit_common_odds(right, laws, starts, unit, 3)
    assert found.log_odds[2] == 0
    for u in (0, 1):
        at = np.flatnonzero(unit == u)

        def excess(log_odds, at=at):
            mean, _ = law_moments(tilt(laws, starts, np.full(8, log_odds)), starts)
            return right[at].sum() - mean[at].sum()

        if excess(-FARTHEST) * excess(FARTHEST) < 0:
            assert found.log_odds[u] == pytest.approx(brentq(excess, -FARTHEST, FARTHEST, xtol=1e-12), abs=1e-6)
        else:
            assert abs(found.log_odds[u]) in (0, FARTHEST)


def test_a_count_at_its_limit_stops_at_the_farthest_value():
    laws, starts = laws_of([(8, 4, 2), (8, 4, 2)])
    found = fit_common_odds(np.array([2, 0]), laws, starts, np.array([0, 1]), 2)
    assert found.log_odds.tolist() == [FARTHEST, -FARTHEST]


def test_a_fit_far_from_no_effect_does_not_overshoot():
    # one of 100 right, one of 100 with the unit: the odds are e^b / 99, and 6 of 10 groups have both
    laws, starts = laws_of([(100, 1, 1)] * 10)
    found = fit_common_odds(np.repeat([1, 0], [6, 4]), laws, starts, np.zeros(10, int), 1)
    assert found.log_odds[0] == pytest.approx(np.log(99 * 6 / 4))


def test_nothing_to_fit_is_no_unit():
    empty = np.zeros(0)
    assert len(fit_common_odds(empty, empty, np.array([0]), np.zeros(0, int), 0).log_odds) == 0
