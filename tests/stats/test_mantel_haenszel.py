"""Pooled odds ratios and the CMH statistic against literals and statsmodels."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import StratifiedTable

from ktae_cli.stats.mantel_haenszel import cmh_chi_square, mantel_haenszel

TABLE = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda n: st.tuples(st.integers(0, n[0]), st.integers(0, n[1]), st.just(n[0]), st.just(n[1]))
)
UNITS = st.lists(st.lists(TABLE, min_size=1, max_size=6), min_size=1, max_size=4)


def cells_of(units):
    """Return (correct_with, incorrect_with, n_correct, n_incorrect, unit, n_units) of lists of tables."""
    rows = [(*table, unit) for unit, tables in enumerate(units) for table in tables]
    return *np.array(rows, np.int64).reshape(-1, 5).T, len(units)


def reference(tables):
    return StratifiedTable([[[a, b], [n1 - a, n0 - b]] for a, b, n1, n0 in tables])


def test_odds_ratio_and_statistic_of_two_groups_by_hand():
    # Group 1: a 3, b 1, c 1, d 3; group 2: a 1, b 1, c 1, d 3 of n = 6.
    cells = cells_of([[(3, 1, 4, 4), (1, 1, 2, 4)]])
    # R = 9/8 + 3/6, S = 1/8 + 1/6
    r, s = 9 / 8 + 1 / 2, 1 / 8 + 1 / 6
    p, q = (6 / 8, 4 / 6), (2 / 8, 2 / 6)
    variance = (
        (p[0] * 9 / 8 + p[1] / 2) / (2 * r * r)
        + (p[0] / 8 + q[0] * 9 / 8 + p[1] / 6 + q[1] / 2) / (2 * r * s)
        + (q[0] / 8 + q[1] / 6) / (2 * s * s)
    )
    found = mantel_haenszel(*cells)
    assert found.odds_ratio[0] == pytest.approx(39 / 7)
    assert found.low[0] == pytest.approx(39 / 7 * math.exp(-1.959963984540054 * math.sqrt(variance)))
    assert found.high[0] == pytest.approx(39 / 7 * math.exp(1.959963984540054 * math.sqrt(variance)))
    # a - E: 3 - 2 and 1 - 2/3; V: 4 4 4 4 / (64 7) and 2 4 2 4 / (36 5)
    assert cmh_chi_square(*cells)[0] == pytest.approx((4 / 3) ** 2 / (4 / 7 + 16 / 45))


@pytest.mark.parametrize(
    ("table", "odds_ratio"),
    [((2, 0, 2, 2), math.inf), ((0, 2, 2, 2), 0.0), ((2, 2, 2, 2), math.nan), ((0, 0, 2, 2), math.nan)],
)
def test_a_ratio_without_a_variance_has_no_interval(table, odds_ratio):
    found = mantel_haenszel(*cells_of([[table]]))
    assert found.odds_ratio[0] == pytest.approx(odds_ratio, nan_ok=True)
    assert math.isnan(found.low[0])
    assert math.isnan(found.high[0])


def test_a_unit_without_cells_or_without_variation_is_not_a_number():
    cells = cells_of([[(2, 2, 2, 2)], []])
    assert np.isnan(mantel_haenszel(*cells).odds_ratio).tolist() == [True, True]
    assert np.isnan(cmh_chi_square(*cells)).tolist() == [True, True]


def test_the_level_sets_the_width_of_the_interval():
    cells = cells_of([[(3, 1, 4, 4), (1, 1, 2, 4)]])
    wide, narrow = mantel_haenszel(*cells, level=0.99), mantel_haenszel(*cells, level=0.5)
    # normal quantiles of .995 and .75
    assert math.log(wide.high[0] / wide.low[0]) / math.log(narrow.high[0] / narrow.low[0]) == pytest.approx(
        2.5758293035489004 / 0.6744897501960817
    )


@settings(max_examples=60, deadline=None)
@given(UNITS)
def test_every_unit_is_that_of_statsmodels(units):
    cells = cells_of(units)
    found, chi_square = mantel_haenszel(*cells, level=0.9), cmh_chi_square(*cells)
    for at, tables in enumerate(units):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = reference(tables)
            ends = theirs.oddsratio_pooled_confint(alpha=0.1)
            assert found.odds_ratio[at] == pytest.approx(theirs.oddsratio_pooled, rel=1e-8, nan_ok=True)
            assert chi_square[at] == pytest.approx(theirs.test_null_odds().statistic, rel=1e-8, abs=1e-20, nan_ok=True)
        if 0 < found.odds_ratio[at] < math.inf:
            assert (found.low[at], found.high[at]) == pytest.approx(ends, rel=1e-8)
