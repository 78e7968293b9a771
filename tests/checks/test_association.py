"""Rank AUC and correlation within groups against literals, scipy and a slow count of pairs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ktae_cli.association import Comparisons, compare_within_groups, rank_auc, within_group_correlation

ROWS = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), max_size=30)


def columns(rows):
    scores, positive, group = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(scores, float), np.array(positive, bool), np.array(group, int)


def test_auc_counts_pairs_of_a_group_and_ties_one_half():
    found = compare_within_groups(
        np.array([3.0, 1.0, 1.0, 9.0, 0.0]), np.array([1, 1, 0, 0, 1], bool), np.array([0, 0, 0, 1, 1])
    )
    assert (found.wins, found.pairs) == (1.5, 3)
    assert found.auc == 0.5


def test_auc_without_both_kinds_is_not_a_number():
    assert math.isnan(rank_auc(np.array([1.0, 2.0]), np.array([True, True])))
    assert math.isnan(rank_auc(np.zeros(0), np.zeros(0, bool)))
    assert Comparisons().z == 0


@given(ROWS)
def test_wins_are_those_of_a_count_of_all_pairs(rows):
    scores, positive, group = columns(rows)
    wins = pairs = 0.0
    for s, p, g in zip(scores, positive, group, strict=True):
        for other, q, h in zip(scores, positive, group, strict=True):
            if p and not q and g == h:
                pairs += 1
                wins += 1.0 if s > other else 0.5 if s == other else 0.0
    found = compare_within_groups(scores, positive, group)
    assert (found.wins, found.pairs) == (wins, pairs)


@given(ROWS)
def test_z_of_one_group_is_that_of_scipy(rows):
    scores, positive, _ = columns(rows)
    found = compare_within_groups(scores, positive, np.zeros(len(scores), int))
    if not found.pairs or len(set(scores)) == 1:
        assert found.z == 0
        return
    reference = stats.mannwhitneyu(scores[positive], scores[~positive], method="asymptotic", use_continuity=False)
    assert reference.statistic == found.wins
    assert 2 * stats.norm.sf(abs(found.z)) == pytest.approx(reference.pvalue, abs=1e-12)


@given(ROWS, st.integers(0, 3))
def test_groups_add_up(rows, cut):
    scores, positive, group = columns(rows)
    parts = [compare_within_groups(scores[k], positive[k], group[k]) for k in (group < cut, group >= cut)]
    assert parts[0].merge(parts[1]) == pytest.approx(compare_within_groups(scores, positive, group))


def test_correlation_is_taken_within_groups():
    # Within each group y falls as x rises; over both together it rises.
    x, group = np.array([0.0, 1, 2, 10, 11, 12]), np.array([0, 0, 0, 1, 1, 1])
    y = np.array([2.0, 1, 0, 22, 21, 20])
    assert within_group_correlation(x, y, group) == pytest.approx(-1)
    assert within_group_correlation(x, y, np.zeros(6, int)) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert math.isnan(within_group_correlation(x, np.ones(6), group))
