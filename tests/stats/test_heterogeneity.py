"""Spread between prompts against literals, a library for meta-analysis, enumeration and simulation."""

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom, nchypergeom_fisher
from statsmodels.stats.contingency_tables import StratifiedTable
from statsmodels.stats.meta_analysis import combine_effects

from ktae_cli.stats import heterogeneity as module
from ktae_cli.stats.common_odds import fit_common_odds, law_moments
from ktae_cli.stats.heterogeneity import heterogeneity, homogeneity_p_values


def laws_of(n, right, size):
    """Return the hypergeometric laws of cells, end to end, and their starts; each kind is computed once."""
    known = {(r, s): hypergeom.pmf(np.arange(min(r, s) + 1), n, r, s) for r, s in {*zip(right, size, strict=True)}}
    laws = [known[kind] for kind in zip(right, size, strict=True)]
    return np.concatenate(laws), np.concatenate([[0], np.cumsum([len(law) for law in laws])])


def draw_units(seed, n_units, n_prompts, log_odds, n=8):
    """Draw units in one group a prompt, with log odds ratios that broadcast to (n_units, n_prompts)."""
    random = np.random.default_rng(seed)
    unit, prompt = np.repeat(np.arange(n_units), n_prompts), np.tile(np.arange(n_prompts), n_units)
    right, size = random.integers(1, n, (2, len(unit)))
    odds = np.exp(np.broadcast_to(log_odds, (n_units, n_prompts)).ravel())
    with_unit = nchypergeom_fisher.rvs(n, right, size, odds, random_state=random)
    laws, starts = laws_of(n, right.tolist(), size.tolist())
    tables = np.array([[with_unit, size - with_unit], [right - with_unit, n - right - size + with_unit]])
    return with_unit, laws, starts, unit, prompt, tables.reshape(2, 2, n_units, n_prompts)


def p_of(with_unit, laws, starts, unit, prompt, draws=200, seed=0):
    common = fit_common_odds(with_unit, laws, starts, unit, int(unit.max()) + 1)
    return homogeneity_p_values(with_unit, laws, common, starts, unit, prompt, np.random.default_rng(seed), draws)


def breslow_day(tables):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array([StratifiedTable(tables[:, :, i]).test_equal_odds().pvalue for i in range(tables.shape[2])])


def test_groups_of_a_prompt_add_up_before_the_spread_is_taken():
    # prompt 0: U 1 of V .5 in two groups; prompt 7: U -1 of V .5; a cell that cannot vary says nothing
    score, variance = np.array([0.25, -1.0, 3.0, 0.75]), np.array([0.25, 0.5, 0.0, 0.25])
    found = heterogeneity(score, variance, np.zeros(4, int), np.array([0, 7, 3, 0]), 1)
    # Q = 1 / .5 + 1 / .5 = 4; tau-squared = (4 - 1) / (1 - .5 / 1)
    assert [column[0] for column in found] == [0, 4, 6, 2]


def test_log_odds_are_pooled_by_variance():
    found = heterogeneity(np.array([1.0, 1.0]), np.array([0.5, 1.5]), np.zeros(2, int), np.array([0, 1]), 1)
    # 2 / 2; Q = (1 - .5)^2 / .5 + (1 - 1.5)^2 / 1.5, less than k - 1
    assert found.log_odds[0] == 1
    assert found.q[0] == pytest.approx(0.5 + 1 / 6)
    assert found.tau_squared[0] == 0


def test_one_prompt_has_no_spread_and_none_has_nothing():
    found = heterogeneity(
        np.array([1.0, 1.0, 0.0]), np.array([0.5, 0.5, 0.0]), np.array([0, 0, 1]), np.zeros(3, int), 3
    )
    assert found.n_prompts.tolist() == [1, 0, 0]
    assert found.q == pytest.approx([0, np.nan, np.nan], nan_ok=True)
    assert found.log_odds == pytest.approx([2, np.nan, np.nan], nan_ok=True)
    assert np.isnan(found.tau_squared).all()
    assert len(heterogeneity(*np.zeros((2, 0)), *np.zeros((2, 0), int), 0).q) == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.1, 3))
def test_spread_is_that_of_a_meta_analysis(seed, n_prompts, scale):
    random = np.random.default_rng(seed)
    variance, score = random.uniform(0.1, 2, n_prompts), random.normal(0, scale, n_prompts)
    found = heterogeneity(score, variance, np.zeros(n_prompts, int), random.permutation(n_prompts), 1)
    with np.errstate(invalid="ignore"):  # its interval fails where its tau-squared is negative
        theirs = combine_effects(score / variance, 1 / variance, method_re="dl")
    assert found.log_odds[0] == pytest.approx(theirs.mean_effect_fe)
    assert found.q[0] == pytest.approx(theirs.q)
    assert found.tau_squared[0] == pytest.approx(max(theirs.tau2, 0))


def test_p_is_the_share_of_counts_as_far_apart_under_the_common_law():
    n, right, size, observed = 8, (4, 3, 5), (4, 4, 2), np.array([4, 1, 2])
    laws, starts = laws_of(n, right, size)
    unit, prompt = np.zeros(3, int), np.array([0, 1, 1])
    common = fit_common_odds(observed, laws, starts, unit, 1)
    mean, variance = law_moments(laws, starts)

    def q(counts):
        return heterogeneity(np.array(counts) - mean, variance, unit, prompt, 1).q[0]

    exact = 0.0
    for counts in itertools.product(*(range(k) for k in np.diff(starts))):
        if q(counts) >= q(observed) - 1e-9:
            exact += np.prod([common.laws[at + t] for at, t in zip(starts, counts, strict=False)])
    draws = 20_000
    found = p_of(observed, laws, starts, unit, prompt, draws)[0]
    assert 0.01 < exact < 0.99
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / draws) + 1e-4)


def test_opposite_effects_have_the_smallest_p_and_a_limit_the_largest():
    signs = np.where(np.arange(60) % 2, 3.0, -3.0)
    with_unit, laws, starts, unit, prompt, _ = draw_units(1, 2, 60, signs)
    assert p_of(with_unit, laws, starts, unit, prompt, 99).tolist() == [0.01, 0.01]
    largest = np.diff(starts) - 1
    assert p_of(largest, laws, starts, unit, prompt, 99).min() > 0.5


def test_fewer_than_two_prompts_have_no_p():
    laws, starts = laws_of(8, [4, 4], [4, 4])
    assert np.isnan(p_of(np.array([4, 0]), laws, starts, np.array([0, 0]), np.array([5, 5]))).all()
    laws, starts = laws_of(8, [4, 4], [4, 8])
    assert np.isnan(p_of(np.array([4, 4]), laws, starts, np.array([0, 0]), np.array([0, 1]))).all()


def test_a_seed_gives_the_same_p_and_cuts_only_other_draws(monkeypatch):
    *case, prompt, _ = draw_units(2, 12, 15, 0.5)
    case.append(prompt // 2)
    whole = p_of(*case, draws=1000)
    assert whole.tolist() == p_of(*case, draws=1000).tolist()
    monkeypatch.setattr(module, "CELLS_AT_ONCE", 7)
    monkeypatch.setattr(module, "VALUES_AT_ONCE", 1000)
    # the difference of two shares of 1000 draws has a standard deviation of at most .0224
    assert np.abs(p_of(*case, draws=1000) - whole).max() < 0.09


@pytest.mark.parametrize("log_odds", [0.0, 0.7])
def test_homogeneous_units_in_groups_of_8_are_rejected_at_the_level(log_odds):
    *case, tables = draw_units(3, 400, 60, log_odds)
    found = p_of(*case)
    # .05 within three standard deviations of a share of 400 units
    assert 0.017 <= np.mean(found <= 0.05) <= 0.083
    assert np.mean(found <= 0.5) == pytest.approx(0.5, abs=0.075)
    # what Breslow and Day's test does with the same tables
    theirs = breslow_day(tables[:, :, :200])
    assert np.mean(theirs[~np.isnan(theirs)] <= 0.05) > 0.1


def test_large_groups_agree_with_breslow_and_day():
    *case, tables = draw_units(4, 60, 10, np.random.default_rng(0).normal(0, 0.2, (60, 10)), n=400)
    found, theirs = p_of(*case, draws=1000), breslow_day(tables)
    # tables with a nearly empty cell stay apart
    assert np.corrcoef(found, theirs)[0, 1] > 0.9
    assert np.median(np.abs(found - theirs)) < 0.05


def test_the_common_law_keeps_the_spread_around_a_large_odds_ratio():
    with_unit, laws, starts, unit, prompt, _ = draw_units(5, 200, 60, np.log(5))
    common = fit_common_odds(with_unit, laws, starts, unit, 200)

    def excess(law):
        mean, variance = law_moments(law, starts)
        found = heterogeneity(with_unit - mean, variance, unit, prompt, 200)
        return np.mean(found.q - (found.n_prompts - 1))

    # Q - (k - 1) is 0 on average where nothing differs; of 59 degrees of freedom
    assert abs(excess(common.laws)) < 3
    assert excess(laws) < -8


def test_memory_does_not_grow_with_the_draws():
    case = draw_units(6, 100, 50, 0.0)[:5]
    p_of(*case, draws=10)

    def peak(draws):
        tracemalloc.start()
        p_of(*case, draws=draws)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(1000) < 1.5 * peak(200)
