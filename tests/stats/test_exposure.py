"""The Poisson model of presence: one cell by hand, scipy's root for the rates, and what it cannot be fitted to."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.exposure import exposure_p_values, exposure_scores
from ktae_cli.stats.pooled_score import cells_of
from tests.stats.enumeration import draw_right


def test_one_cell_by_hand():
    # lengths 1, 1, 2, 2; held by one short and one long: 2 (1 - q) + 2 (1 - q^2) = 2, q = (sqrt 5 - 1) / 2 = 0.618
    strata, right = Strata(np.array([4]), np.array([1])), np.array([1, 0, 0, 0], np.uint8)
    cells = cells_of(np.zeros(2, int), np.array([0, 2]), right, strata)
    score, variance = exposure_scores(cells, right, np.array([100, 100, 200, 200]), strata, 1)
    q = (5**0.5 - 1) / 2
    r = np.array([q, q - 1, q**2, q**2 - 1])
    np.testing.assert_allclose(score, q, rtol=1e-9)
    np.testing.assert_allclose(variance, 1 * 3 / (4 * 3) * (r**2).sum(), rtol=1e-9)
    p = exposure_p_values(cells, right, np.array([100, 100, 200, 200]), strata, 1)
    np.testing.assert_allclose(p, 2 * stats.norm.sf(q / np.sqrt((r**2).sum() / 4)), rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 9))
def test_scores_are_those_of_rates_found_by_bisection(seed, n_groups, size):
    random = np.random.default_rng(seed)
    strata = Strata(np.full(n_groups, size), random.integers(1, size, n_groups))
    right, length = draw_right(strata, random), random.integers(5, 500, n_groups * size)
    held = random.random((4, len(right))) < 0.4
    cells = cells_of(*np.nonzero(held), right, strata)
    found = exposure_scores(cells, right, length, strata, 4)
    score, variance = np.zeros((2, 4))
    for unit, group in zip(cells.unit, cells.group, strict=True):
        own = strata.group == group
        x, y, n = held[unit, own], right[own], size
        rate = optimize.brentq(lambda r, n=length[own], k=x.sum(): (1 - np.exp(-r * n)).sum() - k, 0, 30, xtol=1e-14)
        r = x - (1 - np.exp(-rate * length[own]))
        score[unit] += r[y == 1].sum() - y.mean() * r.sum()
        variance[unit] += y.sum() * (n - y.sum()) / (n * (n - 1)) * ((r - r.mean()) ** 2).sum()
    np.testing.assert_allclose(found, (score, variance), atol=1e-6)


def test_equal_lengths_give_the_test_without_length():
    random = np.random.default_rng(0)
    strata = Strata(np.full(10, 8), random.integers(1, 8, 10))
    right, held = draw_right(strata, random), random.random((5, 80)) < 0.5
    score, _ = exposure_scores(cells_of(*np.nonzero(held), right, strata), right, np.full(80, 9), strata, 5)
    share = np.repeat(strata.n_right / 8, 8)
    np.testing.assert_allclose(score, held @ (right - share), atol=1e-9)


def test_empty_rollouts_hold_nothing_and_the_others_may_all_hold_it():
    strata, right = Strata(np.array([3]), np.array([1])), np.array([0, 1, 0], np.uint8)
    cells = cells_of(np.zeros(2, int), np.array([0, 1]), right, strata)
    score, variance = exposure_scores(cells, right, np.array([5, 9, 0]), strata, 1)
    assert np.isfinite(variance).all() and abs(score[0]) < 1e-6
    assert exposure_p_values(cells, right, np.array([5, 9, 0]), strata, 1)[0] > 0.9


def test_no_cells_give_no_evidence():
    strata, right = Strata(np.array([2]), np.array([1])), np.array([0, 1], np.uint8)
    cells = cells_of(np.zeros(0, int), np.zeros(0, int), right, strata)
    assert exposure_p_values(cells, right, np.array([3, 4]), strata, 2).tolist() == [1, 1]
