"""The verdicts modelled by length: statsmodels' conditional logit, the score equations, and what cannot be fitted."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.stats import length_fit
from ktae_cli.stats.conditional import Strata, draw_probabilities, draw_verdicts
from ktae_cli.stats.length_fit import RIDGE, exchangeable, fit_length, length_basis
from tests.stats.enumeration import draw_right, moments, split


def draw_case(seed, n_groups=40, size=8, slope=1.5):
    """Return strata, lengths, truncation flags and labels that get likelier with less length."""
    random = np.random.default_rng(seed)
    strata = Strata(np.full(n_groups, size), random.integers(1, size, n_groups))
    length = np.exp(random.normal(5, 0.5, n_groups * size) + np.repeat(random.normal(0, 0.5, n_groups), size))
    p = draw_probabilities(-slope * np.log(length), strata)
    return strata, length.astype(np.int64), length > 250, draw_verdicts(p, strata, 1, random)[:, 0]


def test_slopes_are_those_of_conditional_logit(monkeypatch):
    from statsmodels.discrete.conditional_models import ConditionalLogit

    monkeypatch.setattr(length_fit, "RIDGE", 1e-12)
    strata, length, truncated, right = draw_case(1, n_groups=16, size=5)
    basis = length_basis(length, truncated, strata)
    fit = fit_length(right, basis, strata)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = ConditionalLogit(right, basis, groups=strata.group).fit(gtol=1e-8, disp=False)
    np.testing.assert_allclose(fit.slopes, theirs.params, atol=5e-4)
    np.testing.assert_allclose(np.linalg.inv(fit.information), theirs.cov_params(), rtol=5e-3, atol=1e-5)


def test_ridge_moves_the_slopes_by_little():
    strata, length, truncated, right = draw_case(3)
    basis = length_basis(length, truncated, strata)
    fit = fit_length(right, basis, strata)
    error = np.sqrt(np.diag(np.linalg.inv(fit.information)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_fit, "RIDGE", 1e-12)
        free = fit_length(right, basis, strata)
    assert (abs(fit.slopes - free.slopes) < 1e-2 * error).all() and not np.array_equal(fit.slopes, free.slopes)


def score_of(fit, right, strata):
    """Return the gradient of the penalised likelihood in units of its standard error (k,)."""
    start = exchangeable(strata)
    prior = RIDGE * length_fit._information(start.p, start.pi, fit.basis, strata)
    gradient = fit.basis.T @ (right - fit.pi) - prior @ fit.slopes
    return gradient / np.sqrt(np.maximum(np.diag(fit.information + prior), 1e-300))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(2, 9), st.sampled_from([0.0, 1.0, 6.0, 40.0]))
def test_score_equations_hold(seed, n_groups, size, slope):
    strata, length, truncated, right = draw_case(seed, n_groups, size, slope)
    fit = fit_length(right, length_basis(length, truncated, strata), strata)
    np.testing.assert_allclose(score_of(fit, right, strata), 0, atol=1e-4)
    np.testing.assert_allclose(np.add.reduceat(fit.pi, strata.starts), strata.n_right, atol=1e-9)
    assert 0 <= fit.overlap < 2 and np.isfinite(fit.slopes).all()


def test_information_is_the_covariance_of_the_scores():
    strata, length, truncated, right = draw_case(5, n_groups=5, size=6)
    fit = fit_length(right, length_basis(length, truncated, strata), strata)
    total = np.zeros_like(fit.information)
    for g, log_odds in enumerate(split(fit.basis @ fit.slopes, strata)):
        mean, covariance = moments(log_odds, int(strata.n_right[g]))
        basis = fit.basis[strata.group == g]
        total += basis.T @ covariance @ basis
        np.testing.assert_allclose(fit.pi[strata.group == g], mean, atol=1e-12)
    np.testing.assert_allclose(fit.information, total, rtol=1e-10)


def test_order_of_groups_and_rollouts_does_not_matter():
    strata, length, truncated, right = draw_case(6, n_groups=12)
    fit = fit_length(right, length_basis(length, truncated, strata), strata)
    random = np.random.default_rng(0)
    groups = random.permutation(12)
    order = np.concatenate([8 * g + random.permutation(8) for g in groups])
    moved = Strata(strata.sizes[groups], strata.n_right[groups])
    again = fit_length(right[order], length_basis(length[order], truncated[order], moved), moved)
    np.testing.assert_allclose(again.slopes, fit.slopes, rtol=1e-7)
    np.testing.assert_allclose(again.pi, fit.pi[order], atol=1e-9)


def test_length_that_separates_the_classes_leaves_no_overlap():
    strata = Strata(np.full(30, 6), np.full(30, 3))
    length = np.tile([100, 120, 140, 300, 330, 360], 30)
    fit = fit_length(np.tile([1, 1, 1, 0, 0, 0], 30), length_basis(length, np.zeros(180), strata), strata)
    assert fit.overlap < 0.01 and np.isfinite(fit.slopes).all()
    assert (fit.pi.reshape(30, 6)[:, :3] > 0.99).all()


@pytest.mark.parametrize("n_groups", [0, 3])
def test_equal_lengths_leave_the_labels_exchangeable(n_groups):
    strata = Strata(np.full(n_groups, 4), np.full(n_groups, 1))
    basis = length_basis(np.full(4 * n_groups, 77), np.zeros(4 * n_groups), strata)
    fit = fit_length(draw_right(strata, np.random.default_rng(0)) if n_groups else np.zeros(0), basis, strata)
    assert basis.shape == (4 * n_groups, 0)
    assert fit.pi.tolist() == [0.25] * (4 * n_groups) and fit.overlap == 1


def test_a_flag_alone_is_a_column():
    strata = Strata(np.array([4, 4]), np.array([1, 2]))
    basis = length_basis(np.full(8, 77), np.arange(8) % 4 == 0, strata)
    assert basis.shape == (8, 1) and len(set(basis[:4, 0].round(12).tolist())) == 2


def test_basis_is_centred_in_each_group_and_has_one_scale():
    strata, length, truncated, _ = draw_case(7)
    basis = length_basis(length, truncated, strata)
    np.testing.assert_allclose(np.add.reduceat(basis, strata.starts), 0, atol=1e-10)
    np.testing.assert_allclose(basis.T @ basis / len(basis), np.eye(5), atol=1e-10)


def test_slope_of_one_flag_by_hand():
    # one right of two in each group, one of the two flagged: the flagged one is right in 3 of 4 groups, slope log 3
    strata = Strata(np.full(400, 2), np.ones(400, int))
    flag = np.tile([1.0, 0.0], 400)
    right = np.where(np.repeat(np.arange(400) % 4 == 0, 2), 1 - flag, flag)
    fit = fit_length(right, flag[:, None], strata)
    assert fit.slopes == pytest.approx(np.log(3), rel=1e-3)
    assert fit.overlap == pytest.approx(0.75, abs=1e-3)  # 3/4 of 1/4 over 1/2 of 1/2
