"""The pooled test: scipy and statsmodels where labels are exchangeable, all labellings, and labels drawn again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ktae_cli.stats import pooled_tests as module
from ktae_cli.stats.conditional import Strata, draw_verdicts
from ktae_cli.stats.length_fit import exchangeable, fit_length, length_basis
from ktae_cli.stats.pooled_score import cells_of
from ktae_cli.stats.pooled_tests import family_wise_p, pooled_tests, smallest_p
from tests.stats.enumeration import draw_right, law_of_count, moments, split, strata_and_odds, two_sided


def draw_case(seed, n_groups=30, size=8, n_units=20):
    """Return strata, labels, lengths, and what units hold (n_units, n_rollouts): the longer a rollout, the more."""
    random = np.random.default_rng(seed)
    strata = Strata(np.full(n_groups, size), random.integers(1, size, n_groups))
    length = np.exp(random.normal(6, 0.5, n_groups * size))
    rate = 10 ** random.uniform(-4.5, -2.5, n_units)
    held = random.random((n_units, len(length))) < 1 - np.exp(-rate[:, None] * length)
    return strata, draw_right(strata, random), length.astype(np.int64), held


def fit_of(strata, right, length):
    return fit_length(right, length_basis(length, np.zeros(len(length)), strata), strata)


def pool(held, right, strata, fit):
    return pooled_tests(cells_of(*np.nonzero(held), right, strata), fit, strata, len(held))


@settings(max_examples=30, deadline=None)
@given(strata_and_odds(max_size=6), st.integers(0, 2**32 - 1))
def test_exact_p_is_that_of_all_labellings_under_the_fitted_law(case, seed):
    strata, _ = case
    random = np.random.default_rng(seed)
    right, length = draw_right(strata, random), random.integers(10, 60, strata.sizes.sum())
    held = random.random((3, len(right))) < 0.4
    for fit in (exchangeable(strata), fit_of(strata, right, length)):
        tests = pool(held, right, strata, fit)
        for unit, x in enumerate(held):
            varies = np.repeat(_varies(x, strata), strata.sizes)
            law = law_of_count(fit.basis @ fit.slopes + 0 * right, x & varies, strata)
            count = int(right[x & varies].sum())
            assert tests.exact[unit] and tests.count[unit] == count
            assert tests.expected[unit] == pytest.approx(sum(t * p for t, p in law.items()), abs=1e-10)
            assert (tests.p[unit], tests.p_mid[unit]) == pytest.approx(two_sided(law, count), rel=1e-6, abs=1e-12)


def _varies(held, strata):
    share = np.add.reduceat(held.astype(int), strata.starts)
    return (share > 0) & (share < strata.sizes)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.data())
def test_one_group_is_fishers_exact_test(n, data):
    right = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), np.uint8)
    held = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    if not 0 < right.sum() < n:
        return
    strata = Strata(np.array([n]), np.array([int(right.sum())]))
    tests = pool(held[None], right, strata, exchangeable(strata))
    table = [[np.sum(right[held] == value), np.sum(right[~held] == value)] for value in (1, 0)]
    assert tests.p[0] == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-8)


def test_squared_z_is_the_cochran_mantel_haenszel_chi_square(monkeypatch):
    from statsmodels.stats.contingency_tables import StratifiedTable

    monkeypatch.setattr(module, "EXACT_BELOW", 0.0)
    strata, right, _, held = draw_case(0)
    tests = pool(held, right, strata, exchangeable(strata))
    for unit, x in enumerate(held):
        tables = []
        for y, inside in zip(split(right, strata), split(x, strata), strict=True):
            if 0 < inside.sum() < len(inside):
                tables.append([[np.sum(inside & (y == 1)), np.sum(~inside & (y == 1))],
                               [np.sum(inside & (y == 0)), np.sum(~inside & (y == 0))]])  # fmt: skip
        theirs = StratifiedTable(np.array(tables, float).transpose(1, 2, 0)).test_null_odds(correction=False)
        assert tests.z[unit] ** 2 == pytest.approx(theirs.statistic, rel=1e-8)
        assert tests.p[unit] == pytest.approx(theirs.pvalue, rel=1e-8)
        assert tests.p_mid[unit] == tests.p[unit]


def test_variance_is_less_by_what_the_length_model_explains():
    strata, right, length, held = draw_case(1)
    fit = fit_of(strata, right, length)
    tests = pool(held, right, strata, fit)
    log_odds = split(fit.basis @ fit.slopes, strata)
    covariance = np.zeros((len(right), len(right)))
    for g, start in enumerate(strata.starts):
        own = slice(start, start + strata.sizes[g])
        covariance[own, own] = moments(log_odds[g], int(strata.n_right[g]))[1]
    b = fit.basis
    for unit, x in enumerate(held.astype(float)):
        cross = x @ covariance @ b
        left = x @ covariance @ x - cross @ np.linalg.inv(b.T @ covariance @ b) @ cross
        assert tests.variance[unit] == pytest.approx(left, rel=1e-8)
        assert tests.z[unit] == pytest.approx(x @ (right - fit.pi) / np.sqrt(left), rel=1e-8)


def test_variance_of_the_count_is_that_of_refitted_labels():
    strata, _, length, held = draw_case(2, n_groups=40, n_units=6)
    strata = Strata(strata.sizes, np.full(40, 3))
    right = draw_right(strata, np.random.default_rng(1))
    fit = fit_of(strata, right, length)
    tests = pool(held, right, strata, fit)
    drawn = draw_verdicts(fit.p, strata, 120, np.random.default_rng(0))
    surplus = np.stack([held @ (y - fit_of(strata, y, length).pi) for y in drawn.T])
    np.testing.assert_allclose(surplus.var(0), tests.variance, rtol=0.3)
    np.testing.assert_allclose(surplus.mean(0) / np.sqrt(tests.variance), 0, atol=0.25)


def test_what_length_decides_has_no_evidence():
    strata, right, length, _ = draw_case(3)
    held = np.stack([np.zeros(len(right), bool), np.ones(len(right), bool)])
    for fit in (exchangeable(strata), fit_of(strata, right, length)):
        tests = pool(held, right, strata, fit)
        assert (tests.z.tolist(), tests.p.tolist(), tests.p_mid.tolist()) == ([0, 0], [1, 1], [0.5, 0.5])


def test_a_flag_of_the_length_model_has_no_evidence_beyond_it(monkeypatch):
    strata, right, length, _ = draw_case(4)
    flag = length > 600
    fit = fit_length(right, length_basis(length, flag, strata), strata)
    for exact_below in (0.0, 1e9):
        monkeypatch.setattr(module, "EXACT_BELOW", exact_below)
        tests = pool(flag[None], right, strata, fit)
        assert tests.p[0] > 0.9 and abs(tests.count[0] - tests.expected[0]) < 0.05


def test_no_units_and_no_groups_give_no_tests():
    empty = np.zeros(0, int)
    strata = Strata(empty, empty)
    tests = pooled_tests(cells_of(empty, empty, np.zeros(0, np.uint8), strata), exchangeable(strata), strata, 0)
    assert (len(tests.p), len(tests.z), len(tests.p_mid)) == (0, 0, 0)


def test_order_of_groups_and_rollouts_does_not_matter():
    strata, right, length, held = draw_case(5)
    random = np.random.default_rng(0)
    groups = random.permutation(len(strata.sizes))
    order = np.concatenate([strata.starts[g] + random.permutation(strata.sizes[g]) for g in groups])
    moved = Strata(strata.sizes[groups], strata.n_right[groups])
    for fit, again in (
        (exchangeable(strata), exchangeable(moved)),
        (fit_of(strata, right, length), fit_of(moved, right[order], length[order])),
    ):
        ours, theirs = pool(held, right, strata, fit), pool(held[:, order], right[order], moved, again)
        assert ours.exact.any() and not ours.exact.all()
        for name in ("count", "expected", "variance", "z", "p", "p_mid"):
            np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), rtol=1e-6, atol=1e-9)


def test_smallest_p_of_draws_is_that_of_each_draw_tested(monkeypatch):
    strata, right, length, held = draw_case(6)
    family = np.arange(len(held)) % 3 > 0
    for fit in (exchangeable(strata), fit_of(strata, right, length)):
        tests = pool(held, right, strata, fit)
        monkeypatch.setattr(module, "DRAWS_AT_ONCE", 7)
        found = smallest_p(tests, strata, family, 17, np.random.default_rng(0))
        random = np.random.default_rng(0)
        drawn = np.concatenate([draw_verdicts(fit.p, strata, n, random) for n in (7, 7, 3)], axis=1)
        for smallest, labels in zip(found, drawn.T, strict=True):
            # a draw's count has the law of the fit less what refitting its slopes would explain
            surplus = held @ (labels - fit.pi)
            if len(fit.slopes):
                surplus = surplus - tests.slopes @ (fit.basis.T @ (labels - fit.pi))
            z = surplus / np.sqrt(tests.variance)
            expected = np.where(tests.exact, pool(held, labels, strata, fit).p, 2 * stats.norm.sf(abs(z)))
            assert smallest == pytest.approx(expected[family].min(), rel=1e-6)


def test_p_of_the_observed_labels_is_their_p():
    strata, right, length, held = draw_case(7)
    fit = fit_of(strata, right, length)
    tests = pool(held, right, strata, fit)
    again = tests.p_of(tests.count[:, None].astype(float), fit.basis.T @ (right - fit.pi)[:, None])
    np.testing.assert_allclose(again[:, 0], tests.p, rtol=0.02)


def test_smallest_p_of_an_empty_family_is_one():
    strata, right, _, held = draw_case(8)
    tests = pool(held, right, strata, exchangeable(strata))
    assert smallest_p(tests, strata, np.zeros(len(held), bool), 3, np.random.default_rng(0)).tolist() == [1, 1, 1]


def test_family_wise_p_counts_draws_that_reach_as_low():
    smallest = np.array([0.2, 0.01, 0.03, 0.03])
    found = family_wise_p(np.array([0.001, 0.01, 0.03 * (1 - 1e-12), 0.05, 1.0]), smallest)
    assert found.tolist() == [1 / 5, 2 / 5, 4 / 5, 4 / 5, 1]
