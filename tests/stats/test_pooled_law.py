"""The exact pooled p: against all labellings of all groups, and scipy's Fisher test where there is one group."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ktae_cli.stats import pooled_law
from ktae_cli.stats.conditional import Strata, draw_probabilities, subset_laws
from ktae_cli.stats.pooled_law import pooled_p_values
from tests.stats.enumeration import law_of_count, split, strata_and_odds, two_sided


def tables(units, log_odds, strata):
    """Return p and mid-p of every count of each unit; a unit is what it holds (n_rollouts,) bool."""
    unit, group, size, place = [], [], [], []
    for u, held in enumerate(units):
        for g, part in enumerate(split(held, strata)):
            if part.any():
                unit.append(u)
                group.append(g)
                size.append(part.sum())
                place.append(np.flatnonzero(part))
    p = draw_probabilities(log_odds, strata)
    laws, starts = subset_laws(
        p, strata, np.array(group, int), np.array(size, int), np.concatenate([np.zeros(0, int), *place])
    )
    p, mid, begin = pooled_p_values(laws, starts, np.array(unit, int), len(units))
    return np.split(p, begin[1:-1]), np.split(mid, begin[1:-1])


@settings(max_examples=60, deadline=None)
@given(strata_and_odds(max_size=6), st.data())
def test_p_and_mid_p_are_those_of_all_labellings(case, data):
    strata, log_odds = case
    flags = st.lists(st.booleans(), min_size=len(log_odds), max_size=len(log_odds))
    units = [np.array(unit) for unit in data.draw(st.lists(flags, min_size=1, max_size=4))]
    for unit, p, mid in zip(units, *tables(units, log_odds, strata), strict=True):
        law = law_of_count(log_odds, unit, strata)
        for count in law:
            assert (p[count], mid[count]) == pytest.approx(two_sided(law, count), rel=1e-9)
        unreachable = [count for count in range(len(p)) if count not in law]
        assert (p[unreachable] < 1e-12).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.data())
def test_one_group_of_equal_odds_is_fishers_exact_test(n, data):
    right, held = data.draw(st.integers(1, n - 1)), data.draw(st.integers(1, n - 1))
    strata = Strata(np.array([n]), np.array([right]))
    (p,), _ = tables([np.arange(n) < held], np.zeros(n), strata)
    for count in range(max(0, held + right - n), min(held, right) + 1):
        table = [[count, right - count], [held - count, n - held - right + count]]
        assert p[count] == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-8)


def test_ties_count_in_full_and_by_half_in_the_mid_p():
    # two groups, each one right of two, the unit in one rollout of each: T is 0, 1, 2 with 1/4, 1/2, 1/4
    strata = Strata(np.array([2, 2]), np.array([1, 1]))
    (p,), (mid,) = tables([np.array([True, False, True, False])], np.zeros(4), strata)
    np.testing.assert_allclose(p, [0.5, 1, 0.5], rtol=1e-14)
    np.testing.assert_allclose(mid, [0.25, 0.75, 0.25], rtol=1e-14)


def test_ties_are_found_through_rounding():
    # T is symmetric over 30 groups, so that both ends of every pair have the same p, whatever the rounding
    strata = Strata(np.full(30, 4), np.full(30, 2))
    (p,), (mid,) = tables([np.tile([True, False, False, False], 30)], np.zeros(120), strata)
    np.testing.assert_allclose(p, p[::-1], rtol=1e-13)
    np.testing.assert_allclose(p, [stats.binomtest(t, 30).pvalue for t in range(31)], rtol=1e-10)
    point = stats.binom(30, 0.5).pmf(np.arange(31))
    np.testing.assert_allclose(mid, p - np.where(np.arange(31) == 15, 0.5, 1) * point, rtol=1e-10)


def test_a_unit_without_a_law_has_no_evidence():
    strata = Strata(np.array([4]), np.array([2]))
    nothing, one = np.zeros(4, bool), np.arange(4) == 0
    ps, mids = tables([nothing, one, nothing], np.zeros(4), strata)
    assert [p.tolist() for p in ps] == [[1], [1, 1], [1]]
    assert [mid.tolist() for mid in mids] == [[0.5], [0.5, 0.5], [0.5]]
    ps, mids = tables([np.zeros(4, bool)], np.zeros(4), strata)
    assert (ps[0].tolist(), mids[0].tolist()) == ([1], [0.5])


def test_no_units_give_empty_tables():
    p, mid, begin = pooled_p_values(np.zeros(0), np.zeros(1, int), np.zeros(0, int), 0)
    assert (len(p), len(mid), begin.tolist()) == (0, 0, [0])


def test_parts_and_the_order_of_units_do_not_matter(monkeypatch):
    random = np.random.default_rng(0)
    strata = Strata(np.full(12, 8), random.integers(1, 8, 12))
    log_odds = random.normal(size=96)
    units = [random.random(96) < share for share in random.uniform(0, 0.6, 30)]
    whole = tables(units, log_odds, strata)
    monkeypatch.setattr(pooled_law, "UNITS_AT_ONCE", 4)
    reversed_parts = tables(units[::-1], log_odds, strata)
    for ours, theirs in zip(reversed_parts, whole, strict=True):
        for a, b in zip(ours[::-1], theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
