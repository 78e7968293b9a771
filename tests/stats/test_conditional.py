"""The law of the labels inside a group, against every labelling, the hypergeometric law, and large frequencies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ktae_cli.stats import conditional
from ktae_cli.stats.conditional import (
    Strata,
    covariances,
    draw_probabilities,
    draw_verdicts,
    inclusion,
    runs,
    subset_laws,
)
from tests.stats.enumeration import labellings, law_of_count, moments, split, strata_and_odds

EXTREME = st.sampled_from([-30.0, -8.0, 0.0, 1.0, 30.0])


def moments_of(log_odds, strata):
    """Return pi by group, and the covariance of each group."""
    p = draw_probabilities(log_odds, strata)
    pi = inclusion(p, strata)
    found = {}
    for groups, _, covariance in covariances(p, pi, strata):
        found.update(zip(groups.tolist(), covariance, strict=True))
    return split(pi, strata), [found[g] for g in range(len(strata.sizes))]


def laws_of(log_odds, strata, held):
    """Return the law of the right rollouts among those held (n_rollouts,) in each group; none may hold 0."""
    parts = split(held, strata)
    place = np.concatenate([np.flatnonzero(part) for part in parts])
    size = np.array([int(part.sum()) for part in parts])
    p = draw_probabilities(log_odds, strata)
    laws, starts = subset_laws(p, strata, np.arange(len(size)), size, place)
    return np.split(laws, starts[1:-1])


def check_moments(strata, log_odds, tolerance):
    pis, cs = moments_of(log_odds, strata)
    for part, right, pi, c in zip(split(log_odds, strata), strata.n_right, pis, cs, strict=True):
        mean, covariance = moments(part, int(right))
        np.testing.assert_allclose(pi, mean, atol=tolerance)
        np.testing.assert_allclose(c, covariance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(strata_and_odds(max_groups=4))
def test_moments_are_those_of_all_labellings(case):
    check_moments(*case, 1e-12)


@settings(max_examples=50, deadline=None)
@given(strata_and_odds(odds=EXTREME))
def test_moments_stay_exact_at_extreme_odds(case):
    check_moments(*case, 1e-10)


@settings(max_examples=60, deadline=None)
@given(strata_and_odds(), st.data())
def test_laws_of_subsets_are_those_of_all_labellings(case, data):
    strata, log_odds = case
    held = np.array(data.draw(st.lists(st.booleans(), min_size=len(log_odds), max_size=len(log_odds))))
    held[strata.starts] |= np.add.reduceat(held.astype(int), strata.starts) == 0
    for g, law in enumerate(laws_of(log_odds, strata, held)):
        alone = Strata(strata.sizes[g : g + 1], strata.n_right[g : g + 1])
        expected = law_of_count(split(log_odds, strata)[g], split(held, strata)[g], alone)
        np.testing.assert_allclose(law, [expected.get(t, 0) for t in range(len(law))], rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize(("n", "right", "held"), [(8, 4, 3), (50, 7, 20), (50, 43, 30), (200, 1, 60), (200, 120, 199)])
def test_equal_odds_give_the_hypergeometric_law(n, right, held):
    strata, inside = Strata(np.array([n]), np.array([right])), np.arange(n) < held
    (law,) = laws_of(np.full(n, 7.0), strata, inside)
    expected = stats.hypergeom(n, right, held).pmf(np.arange(min(right, held) + 1))
    np.testing.assert_allclose(law, expected, rtol=1e-10)
    if n <= conditional.MAX_EXACT:
        _, (c,) = moments_of(np.zeros(n), strata)
        expected = np.full((n, n), -right * (n - right) / n**2 / (n - 1))
        np.fill_diagonal(expected, right * (n - right) / n**2)
        np.testing.assert_allclose(c, expected, atol=1e-13)


def test_one_certain_rollout_leaves_the_others_out():
    strata = Strata(np.array([5]), np.array([1]))
    (pi,), (c,) = moments_of(np.array([40.0, 0, 0, 0, 0]), strata)
    np.testing.assert_allclose(pi, [1, 0, 0, 0, 0], atol=1e-15)
    np.testing.assert_allclose(c, 0, atol=1e-15)


def test_all_but_one_right_is_a_draw_of_the_wrong_one():
    # the wrong one is drawn with odds 1 / w: 1, 1/2, 1/4 over 7/4
    strata = Strata(np.array([3]), np.array([2]))
    (pi,), _ = moments_of(np.log([1.0, 2, 4]), strata)
    np.testing.assert_allclose(1 - pi, [4 / 7, 2 / 7, 1 / 7], atol=1e-14)


@pytest.mark.parametrize("odds", [[0.0, 3000, -3000, 5], [800.0, 800, -800, 0], [-1e6, 1e6, 1e6, -1e6]])
def test_odds_beyond_the_range_of_floats_decide(odds):
    strata = Strata(np.array([4, 4]), np.array([2, 2]))
    (pi, other), _ = moments_of(np.array(odds + [0.0] * 4), strata)
    best = np.argsort(odds)[-2:]
    assert np.isfinite(pi).all() and pi[best].sum() == pytest.approx(2, abs=0.01)
    np.testing.assert_allclose(other, 0.5)


def test_common_factors_of_the_odds_cancel():
    strata, log_odds = Strata(np.array([6, 5]), np.array([2, 4])), np.random.default_rng(0).normal(size=11)
    shift = np.repeat([500.0, -700.0], [6, 5])
    for ours, theirs in zip(moments_of(log_odds + shift, strata), moments_of(log_odds, strata), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(strata_and_odds(max_groups=4), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_rollouts_does_not_matter(case, random):
    strata, log_odds = case
    groups = list(range(len(strata.sizes)))
    random.shuffle(groups)
    orders = [random.sample(range(n), n) for n in strata.sizes[groups].tolist()]
    moved = Strata(strata.sizes[groups], strata.n_right[groups])
    parts = split(log_odds, strata)
    pis, cs = moments_of(log_odds, strata)
    moved_pis, moved_cs = moments_of(np.concatenate([parts[g][o] for g, o in zip(groups, orders, strict=True)]), moved)
    for g, order, pi, c in zip(groups, orders, moved_pis, moved_cs, strict=True):
        np.testing.assert_allclose(pi, pis[g][order], atol=1e-12)
        np.testing.assert_allclose(c, cs[g][np.ix_(order, order)], atol=1e-12)


@pytest.mark.parametrize("right", [2, 20, 64, 120])
def test_covariance_of_large_groups_is_close_to_the_exact_one(monkeypatch, right):
    strata, log_odds = Strata(np.array([128]), np.array([right])), np.random.default_rng(1).normal(size=128)
    _, (exact,) = moments_of(log_odds, strata)
    monkeypatch.setattr(conditional, "MAX_EXACT", 127)
    _, (approximate,) = moments_of(log_odds, strata)
    assert not np.array_equal(exact, approximate)
    np.testing.assert_allclose(approximate, exact, atol=0.01 * np.diag(exact).max())
    np.testing.assert_allclose(approximate.sum(1), 0, atol=1e-12)
    for held in (np.arange(128) < 20, log_odds > 0):
        assert held @ approximate @ held == pytest.approx(held @ exact @ held, rel=0.03)


@pytest.mark.parametrize("odds", [[0.0] * 6, [2.0, -1, 0.5, 0, -2, 1], [30.0, 0, 0, 0, 0, -30]])
@pytest.mark.parametrize("right", [1, 3, 5])
def test_draws_follow_the_law(odds, right):
    times = 20_000
    strata = Strata(np.array([2, 6, 3]), np.array([1, right, 1]))
    log_odds = np.array([1.0, -1, *odds, 0, 0, 0])
    drawn = draw_verdicts(draw_probabilities(log_odds, strata), strata, times, np.random.default_rng(right))
    for labels_drawn, part, n_right in zip(split(drawn, strata), split(log_odds, strata), strata.n_right, strict=True):
        labels, probability = labellings(part, int(n_right))
        powers = 2 ** np.arange(len(part))
        found = np.bincount((powers @ labels_drawn).astype(int), minlength=1 << len(part))
        seen = found[(labels @ powers).astype(int)]
        assert seen.sum() == times
        likely = probability * times > 5
        if likely.sum() > 1:
            expected = probability[likely] / probability[likely].sum() * seen[likely].sum()
            assert stats.chisquare(seen[likely], expected).pvalue > 1e-3
        assert seen[~likely].sum() <= 20 + 2 * times * probability[~likely].sum()


def test_draws_are_repeated_by_their_seed():
    strata, p = Strata(np.array([8, 8]), np.array([3, 5])), np.repeat([3 / 8, 5 / 8], 8)
    first, again, other = (draw_verdicts(p, strata, 50, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert (np.add.reduceat(first, [0, 8]) == [[3], [5]]).all()


def test_draw_probabilities_sum_to_the_number_right():
    strata, log_odds = Strata(np.array([50, 16, 3]), np.array([1, 15, 2])), np.random.default_rng(2).normal(0, 4, 69)
    p = draw_probabilities(log_odds, strata)
    np.testing.assert_allclose(np.add.reduceat(p, strata.starts), [1, 15, 2], atol=1e-11)
    odds = np.log(p / (1 - p)) - log_odds
    for part in split(odds, strata):
        np.testing.assert_allclose(part, part[0], atol=1e-8)


def test_parts_of_many_groups_are_put_together(monkeypatch):
    strata = Strata(np.full(40, 5), np.tile([2, 3], 20))
    log_odds = np.random.default_rng(3).normal(size=200)
    pis, cs = moments_of(log_odds, strata)
    for g in (0, 1, 38, 39):
        mean, covariance = moments(log_odds[5 * g : 5 * g + 5], 2 + g % 2)
        np.testing.assert_allclose(pis[g], mean, atol=1e-12)
        np.testing.assert_allclose(cs[g], covariance, atol=1e-12)


def test_runs_count_up_from_each_start():
    assert runs(np.array([5, 0, 2]), np.array([2, 0, 3])).tolist() == [5, 6, 2, 3, 4]
    assert runs(np.zeros(0, int), np.zeros(0, int)).tolist() == []


def test_groups_of_one_kind_come_together():
    strata = Strata(np.array([2, 3, 2]), np.array([1, 2, 1]))
    found = [(groups.tolist(), rows.tolist(), right) for groups, rows, right in strata.compositions()]
    assert found == [([0, 2], [[0, 1], [5, 6]], 1), ([1], [[2, 3, 4]], 2)]
    assert strata.group.tolist() == [0, 0, 1, 1, 1, 2, 2]
