"""What a unit's presence scores: cells by hand, and their moments over all labellings."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.stats.conditional import Strata, draw_probabilities, inclusion
from ktae_cli.stats.length_fit import LengthFit
from ktae_cli.stats.pooled_score import cell_moments, cells_of
from tests.stats.enumeration import moments, split, strata_and_odds

STRATA = Strata(np.array([3, 4]), np.array([1, 2]))
RIGHT = np.array([0, 1, 0, 1, 1, 0, 0], np.uint8)


def test_cells_are_the_groups_in_which_a_unit_varies():
    # unit 0 in rollouts 0, 1 of group 0 and in all of group 1; unit 2 in 2 of group 0 and in 4, 6 of group 1
    unit, rollout = np.array([0, 0, 0, 0, 0, 0, 2, 2, 2]), np.array([0, 1, 3, 4, 5, 6, 2, 4, 6])
    cells = cells_of(unit, rollout, RIGHT, STRATA)
    assert cells.unit.tolist() == [0, 2, 2]
    assert cells.group.tolist() == [0, 0, 1]
    assert cells.size.tolist() == [2, 1, 2]
    assert cells.right.tolist() == [1, 0, 1]
    assert cells.place.tolist() == [0, 1, 2, 1, 3]


def test_no_pairs_and_no_groups_give_no_cells():
    empty = np.zeros(0, int)
    for strata, right in ((STRATA, RIGHT), (Strata(empty, empty), np.zeros(0, np.uint8))):
        cells = cells_of(empty, empty, right, strata)
        assert [len(part) for part in (cells.unit, cells.group, cells.size, cells.right, cells.place)] == [0] * 5


@settings(max_examples=50, deadline=None)
@given(strata_and_odds(max_groups=4), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_moments_of_cells_are_those_of_all_labellings(case, k, seed):
    strata, log_odds = case
    random = np.random.default_rng(seed)
    held, basis = random.random((3, len(log_odds))) < 0.5, random.normal(size=(len(log_odds), k))
    p = draw_probabilities(log_odds, strata)
    fit = LengthFit(p, inclusion(p, strata), basis, np.zeros(k), np.zeros((k, k)), 1.0)
    right = np.concatenate([np.arange(n) < r for n, r in zip(strata.sizes, strata.n_right, strict=True)])
    cells = cells_of(*np.nonzero(held), right.astype(np.uint8), strata)
    found = cell_moments(cells, fit, strata)
    at = 0
    for unit in range(3):
        for g, x in enumerate(split(held[unit], strata)):
            if not 0 < x.sum() < len(x):
                continue
            mean, covariance = moments(split(log_odds, strata)[g], int(strata.n_right[g]))
            assert (cells.unit[at], cells.group[at], cells.size[at]) == (unit, g, x.sum())
            assert cells.right[at] == (x & split(right, strata)[g]).sum()
            np.testing.assert_allclose(found.expected[at], x @ mean, atol=1e-12)
            np.testing.assert_allclose(found.variance[at], x @ covariance @ x, atol=1e-12)
            np.testing.assert_allclose(found.cross[at], x @ covariance @ basis[strata.group == g], atol=1e-12)
            at += 1
    assert at == len(cells.unit)
