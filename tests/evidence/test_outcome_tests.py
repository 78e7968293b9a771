"""The test against a real outcome: its moments over all orders of the residuals, its residuals from statsmodels."""

import itertools

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.length_fit import length_basis
from ktae_cli.stats.outcome_tests import outcome_tests, smallest_outcome_p
from ktae_cli.stats.pooled_score import cells_of

N_UNITS = 3


def drawn(sizes: list[int], seed: int):
    """Draw an outcome, a length and the units of rollouts in groups of these sizes."""
    random = np.random.default_rng(seed)
    strata = Strata(np.array(sizes), np.ones(len(sizes), np.int64))
    n = sum(sizes)
    length = random.integers(1, 60, n)
    held = random.random((N_UNITS, n)) < 0.5
    outcome = np.round(random.normal(size=n) + length / 30, 2)
    unit, rollout = np.nonzero(held)
    return strata, length, held, outcome, cells_of(unit, rollout, np.zeros(n, np.uint8), strata)


def orders(values: np.ndarray, strata: Strata) -> np.ndarray:
    """Return the values in every order inside groups (n_orders, n)."""
    parts = [list(itertools.permutations(part)) for part in np.split(values, strata.starts[1:])]
    return np.array([np.concatenate(way) for way in itertools.product(*parts)])


def varying(held: np.ndarray, strata: Strata) -> np.ndarray:
    """Return the indicators (n_units, n), 0 in groups in which a unit does not vary."""
    share = np.stack([np.bincount(strata.group, row) for row in held]) / strata.sizes
    return held * ((share > 0) & (share < 1))[:, strata.group]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(2, 4), min_size=1, max_size=2), st.integers(0, 10**6))
def test_the_variance_is_that_over_all_orders(sizes, seed):
    strata, _, held, outcome, cells = drawn(sizes, seed)
    tests = outcome_tests(cells, outcome, np.zeros((len(outcome), 0)), strata, N_UNITS)
    x = varying(held, strata)
    scores = orders(tests.residual, strata) @ x.T
    assert tests.score == pytest.approx(x @ tests.residual)
    assert scores.mean(0) == pytest.approx(np.zeros(N_UNITS), abs=1e-12)
    assert tests.variance == pytest.approx(scores.var(0), abs=1e-12)
    z = np.divide(tests.score, np.sqrt(tests.variance), out=np.zeros(N_UNITS), where=tests.variance > 0)
    assert tests.p == pytest.approx(2 * norm.sf(np.abs(z)))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_given_length_residuals_are_those_of_least_squares(seed):
    strata, length, held, outcome, cells = drawn([4, 4, 3], seed)
    basis = length_basis(length, np.zeros(len(length), bool), strata)[:, :2]
    tests = outcome_tests(cells, outcome, basis, strata, N_UNITS)
    dummies = (strata.group[:, None] == np.arange(3)).astype(float)
    design = np.hstack([dummies, basis])
    assert tests.residual == pytest.approx(sm.OLS(outcome, design).fit().resid, abs=1e-9)
    # what the basis explains of a unit's presence is taken out of it: the variance over all orders is of what is left
    x = varying(held, strata).astype(float)
    left = np.stack([sm.OLS(row, design).fit().resid for row in x])
    expected = (orders(tests.residual, strata) @ left.T).var(0)
    plain = (orders(tests.residual, strata) @ x.T).var(0)
    assert tests.variance == pytest.approx(np.where(expected > 1e-6 * plain, expected, 0), rel=1e-6, abs=1e-9)


def test_the_smallest_p_is_drawn_from_all_orders():
    strata, _, held, outcome, cells = drawn([6], 3)
    tests = outcome_tests(cells, outcome, np.zeros((6, 0)), strata, N_UNITS)
    z = np.abs(orders(tests.residual, strata) @ varying(held, strata).T) / np.sqrt(tests.variance)
    exact = 2 * norm.sf(z.max(1))
    found = smallest_outcome_p(tests, strata, np.ones(N_UNITS, bool), 4000, np.random.default_rng(0))
    for p in np.unique(np.round(exact, 6)):
        share = (exact <= p * 1.001).mean()
        assert (found <= p * 1.001).mean() == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 4000) + 1e-9)


def test_an_outcome_that_length_explains_leaves_nothing():
    strata, length, _, _, cells = drawn([6, 6, 6], 5)
    basis = length_basis(length, np.zeros(18, bool), strata)
    outcome = 2 * basis[:, 0] + np.repeat([1.0, 5.0, 9.0], 6)
    assert outcome_tests(cells, outcome, basis, strata, N_UNITS).residual == pytest.approx(np.zeros(18), abs=1e-9)
