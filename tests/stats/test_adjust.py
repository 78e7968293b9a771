"""Families of tests against literals, statsmodels and a slow search."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from ktae_cli.stats.adjust import benjamini_hochberg, can_reject, smallest_p_values

NAN = np.nan
P_VALUES = st.lists(st.one_of(st.just(NAN), st.sampled_from([0.001, 0.01, 0.05]), st.floats(0, 1)), max_size=30)


def test_q_by_hand_leaves_out_what_is_not_a_number():
    # m = 4: .01 x 4 / 1, .03 x 4 / 2 = .06, .04 x 4 / 3 = .0533, 1; .03 takes the smaller one of .04
    found = benjamini_hochberg(np.array([0.04, NAN, 0.01, 1.0, 0.03]))
    assert found == pytest.approx([0.16 / 3, NAN, 0.04, 1, 0.16 / 3], nan_ok=True)


@pytest.mark.parametrize("p", [[], [NAN, NAN]])
def test_an_empty_family_has_no_q(p):
    assert np.isnan(benjamini_hochberg(np.array(p))).all()


@settings(max_examples=150, deadline=None)
@given(P_VALUES)
def test_q_is_that_of_statsmodels(p):
    p = np.array(p, np.float64)
    inside = ~np.isnan(p)
    found = benjamini_hochberg(p)
    assert (np.isnan(found) == ~inside).all()
    if inside.any():
        np.testing.assert_allclose(found[inside], multipletests(p[inside], method="fdr_bh")[1], rtol=1e-12, atol=0)


def test_the_smallest_p_of_each_unit_is_found():
    assert smallest_p_values(np.array([0.2, 1, 0.3, 1, 0.1, 0.5]), np.array([0, 3, 4, 6])).tolist() == [0.2, 1, 0.1]
    assert len(smallest_p_values(np.zeros(0), np.array([0]))) == 0


def test_tests_that_could_never_reject_are_left_out():
    # k = 1: three of .05 or less; k = 2: two of .025 or less, so two stay although a third could reach .05
    assert can_reject(np.array([0.02, 0.5, 0.04, NAN, 0.001])).tolist() == [True, False, False, False, True]
    # k = 3: all three of .0167 or less
    assert can_reject(np.array([0.01, 0.015, 0.0166])).all()
    assert not can_reject(np.array([0.06, 1.0])).any()
    assert can_reject(np.zeros(0)).tolist() == []


@settings(max_examples=150, deadline=None)
@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.2]))
def test_what_stays_is_that_of_a_search_over_k(p, level):
    k = 1
    while sum(x <= level / k for x in p) > k:
        k += 1
    assert can_reject(np.array(p, np.float64), level).tolist() == [x <= level / k for x in p]
