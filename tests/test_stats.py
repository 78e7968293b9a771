"""Measures of 2x2 tables and sums within groups, against other libraries, exact fractions and literals."""

import warnings
from fractions import Fraction
from functools import cache
from math import comb

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_effectsize

from ktae_cli.stats import tables
from ktae_cli.stats.cohens_h import half_cohens_h
from ktae_cli.stats.fisher import EXACT_UP_TO, fisher_p_values
from ktae_cli.stats.information_gain import information_gain
from ktae_cli.stats.released_float32 import float32_cells
from ktae_cli.stats.segments import moments_within_groups
from ktae_cli.stats.tables import exact_cells, look_up
from ktae_cli.stats.term_frequency import bounded_direction, length_scale, ratio_direction, term_frequency


def all_tables(n_correct, n_incorrect):
    """Return correct_with and incorrect_with of every table of a composition."""
    return np.mgrid[: n_correct + 1, : n_incorrect + 1].reshape(2, -1)


def random_tables(n, smallest, largest, seed=0):
    """Draw tables (correct_with, incorrect_with, n_correct, n_incorrect)."""
    random = np.random.default_rng(seed)
    sizes = random.integers(smallest, largest + 1, (n, 2))
    return [(int(random.integers(a + 1)), int(random.integers(b + 1)), int(a), int(b)) for a, b in sizes]


@cache
def scipy_p(a, b, n_correct, n_incorrect) -> float:
    return scipy.stats.fisher_exact([[a, b], [n_correct - a, n_incorrect - b]]).pvalue


def fisher_of(a, b, n_correct, n_incorrect):
    """Return the two p-values of one table."""
    two_sided, point = fisher_p_values(np.array([a]), np.array([b]), n_correct, n_incorrect)
    return two_sided[0], point[0]


def exact_p(a, b, n_correct, n_incorrect) -> tuple[Fraction, Fraction]:
    """Return the two p-values by summing whole numbers of ways."""
    c, total = a + b, comb(n_correct + n_incorrect, a + b)
    ways = [comb(n_correct, k) * comb(n_incorrect, c - k) for k in range(c + 1)]
    return Fraction(sum(w for w in ways if w <= ways[a]), total), Fraction(ways[a], total)


@pytest.mark.parametrize(("n_correct", "n_incorrect"), [(4, 4), (8, 8), (1, 7), (3, 5)])
def test_fisher_equals_scipy_on_every_table(n_correct, n_incorrect):
    a, b = all_tables(n_correct, n_incorrect)
    expected = [scipy_p(int(x), int(y), n_correct, n_incorrect) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(fisher_p_values(a, b, n_correct, n_incorrect)[0], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("largest", [24, 60])
def test_fisher_equals_scipy_on_random_tables(largest):
    for table in random_tables(250, 0, largest, seed=largest):
        assert fisher_of(*table)[0] == pytest.approx(scipy_p(*table), rel=1e-12, abs=0), table


def test_fisher_is_exact_on_every_table_of_up_to_24_rollouts():
    for n_correct in range(25):
        for n_incorrect in range(25 - n_correct):
            a, b = all_tables(n_correct, n_incorrect)
            pairs = zip(a.tolist(), b.tolist(), strict=True)
            expected = np.array([[float(p) for p in exact_p(x, y, n_correct, n_incorrect)] for x, y in pairs])
            found = np.stack(fisher_p_values(a, b, n_correct, n_incorrect), axis=1)
            np.testing.assert_array_equal(found, expected, err_msg=f"{n_correct} right, {n_incorrect} wrong")


@pytest.mark.parametrize("composition", [(8, 8), (3, 9), (16, 16), (30, 20)])
def test_point_probability_equals_the_hypergeometric_law(composition):
    a, b = all_tables(*composition)
    expected = scipy.stats.hypergeom.pmf(a, sum(composition), a + b, composition[0])
    np.testing.assert_allclose(fisher_p_values(a, b, *composition)[1], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "table", [(2, 2, 3, 3), (4, 4, 8, 8), (16, 16, 32, 32), (0, 0, 5, 3), (5, 3, 5, 3), (0, 5, 2, 14)]
)
def test_fisher_of_a_table_without_evidence_is_exactly_one(table):
    assert exact_p(*table)[0] == 1
    assert fisher_of(*table)[0] == 1.0


def test_fisher_counts_tied_tables_in():
    # of the two tables of 16 rollouts with the token, 1 * C(31, 16) and 1 * C(31, 15) ways are the same number
    assert exact_p(0, 16, 1, 31)[0] == 1
    assert fisher_of(0, 16, 1, 31)[0] == 1.0


def test_fisher_of_literal_tables():
    assert fisher_of(2, 0, 2, 2) == pytest.approx((1 / 3, 1 / 6), rel=1e-15)
    assert fisher_of(1, 2, 2, 2) == pytest.approx((1, 1 / 2), rel=1e-15)
    assert fisher_of(3, 1, 4, 4) == pytest.approx((34 / 70, 16 / 70), rel=1e-15)


def test_fisher_of_large_groups_equals_scipy():
    n_correct, n_incorrect = 700, 800
    assert n_correct + n_incorrect > EXACT_UP_TO
    a = np.array([0, 3, 350, 360, 420, 650, 700])
    b = np.array([1, 9, 400, 380, 300, 800, 800])
    two_sided, point = fisher_p_values(a, b, n_correct, n_incorrect)
    expected = [scipy_p(int(x), int(y), n_correct, n_incorrect) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(two_sided, expected, rtol=1e-9, atol=0)
    law = scipy.stats.hypergeom.pmf(a, n_correct + n_incorrect, a + b, n_correct)
    np.testing.assert_allclose(point, law, rtol=1e-9, atol=0)
    assert two_sided[2] == two_sided[-1] == 1.0


def test_fisher_does_not_change_at_the_limit_of_whole_numbers(monkeypatch):
    a, b = all_tables(20, 15)
    exact = fisher_p_values(a, b, 20, 15)
    monkeypatch.setattr("ktae_cli.stats.fisher.EXACT_UP_TO", 0)
    for by_logarithms, by_integers in zip(fisher_p_values(a, b, 20, 15), exact, strict=True):
        np.testing.assert_allclose(by_logarithms, by_integers, rtol=1e-10, atol=0)


def test_fisher_of_swapped_verdicts_is_the_same():
    for a, b, n_correct, n_incorrect in random_tables(100, 1, 40, seed=3):
        assert fisher_of(a, b, n_correct, n_incorrect) == fisher_of(b, a, n_incorrect, n_correct)


def entropy_of(*parts) -> float:
    return scipy.stats.entropy(np.array(parts, float), base=2)


@pytest.mark.parametrize("composition", [(4, 4), (8, 8), (1, 7), (5, 19), (16, 16)])
def test_information_gain_equals_the_mutual_information(composition):
    n_correct, n_incorrect = composition
    a, b = all_tables(n_correct, n_incorrect)
    # I(X; Y) = H(X) + H(Y) - H(X, Y)
    expected = [
        entropy_of(n_correct, n_incorrect)
        + entropy_of(x + y, n_correct + n_incorrect - x - y)
        - entropy_of(x, y, n_correct - x, n_incorrect - y)
        for x, y in zip(a, b, strict=True)
    ]
    found = information_gain(a, b, n_correct, n_incorrect)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)
    assert found.min() == 0.0


def test_information_gain_of_literal_tables():
    found = information_gain(np.array([2, 1, 0, 2]), np.array([0, 0, 2, 2]), 2, 2)
    np.testing.assert_allclose(found, [1, 0.311278, 1, 0], atol=5e-7)
    assert information_gain(np.array([3]), np.array([2]), 3, 3)[0] == pytest.approx(0.190875, abs=5e-7)


def test_information_gain_is_exactly_zero_without_association():
    for n_correct in range(13):
        for n_incorrect in range(13):
            a, b = all_tables(n_correct, n_incorrect)
            independent = a * n_incorrect == b * n_correct
            gain = information_gain(a, b, n_correct, n_incorrect)
            assert (gain[independent] == 0).all()
            assert (gain[~independent] > 0).all()


def test_information_gain_of_swapped_verdicts_is_the_same_to_the_last_bit():
    for n_correct in range(1, 13):
        for n_incorrect in range(1, 13):
            a, b = all_tables(n_correct, n_incorrect)
            gain = information_gain(a, b, n_correct, n_incorrect)
            np.testing.assert_array_equal(gain, information_gain(b, a, n_incorrect, n_correct))


@pytest.mark.parametrize("composition", [(0, 0), (3, 0), (0, 2)])
def test_measures_of_a_group_without_both_verdicts_say_nothing(composition):
    a, b = all_tables(*composition)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two_sided, point, gain, h = exact_cells(a, b, *composition)
    assert (two_sided == 1).all()
    assert (point == 1).all()
    assert (gain == 0).all()
    right, wrong = (np.arcsin(np.sqrt(x / max(n, 1))) for x, n in zip((a, b), composition, strict=True))
    np.testing.assert_allclose(h, right - wrong)


@pytest.mark.parametrize("composition", [(4, 4), (7, 9), (1, 15)])
def test_half_cohens_h_is_half_of_statsmodels(composition):
    a, b = all_tables(*composition)
    expected = proportion_effectsize(a / composition[0], b / composition[1]) / 2
    np.testing.assert_allclose(half_cohens_h(a, b, *composition), expected, rtol=0, atol=1e-15)


def test_half_cohens_h_spans_half_a_circle():
    found = half_cohens_h(np.array([2, 0, 1, 1]), np.array([0, 2, 1, 0]), 2, 2)
    np.testing.assert_allclose(found, [np.pi / 2, -np.pi / 2, 0, np.pi / 4], atol=1e-15)


def frequencies(correct_count, incorrect_count, tokens_correct, tokens_incorrect, k1=2.0, b=0.5):
    """Return TF_T and TF_F of one token in float64."""

    def one_side(count, own, other):
        own, other = torch.tensor([own]), torch.tensor([other])
        return term_frequency(torch.tensor([count]), length_scale(own, other, k1, b), k1).item()

    return (
        one_side(correct_count, tokens_correct, tokens_incorrect),
        one_side(incorrect_count, tokens_incorrect, tokens_correct),
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((2, 2), (0.443182, 0.362791)),
        ((0, 3), (0, 0.513158)),
        ((2, 0), (0.443182, 0)),
        ((1, 0), (0.239264, 0)),
        ((1, 2), (0.239264, 0.362791)),
    ],
)
def test_term_frequencies_of_the_worked_example(counts, expected):
    assert frequencies(*counts, 6, 7) == pytest.approx(expected, abs=5e-7)


def test_term_frequency_follows_its_parameters():
    # f = 3/10; k1 (1 - b + b 10/8) = 1.5 (0.25 + 0.75 10/8) = 1.78125; 2.5 f / (1.78125 + f)
    assert frequencies(3, 0, 10, 6, k1=1.5, b=0.75)[0] == pytest.approx(2.5 * 0.3 / (1.78125 + 0.3), rel=1e-12)
    assert frequencies(3, 0, 10, 6, k1=0)[0] == pytest.approx(1)
    assert frequencies(3, 3, 10, 6, b=0) == pytest.approx((3 * 0.3 / 2.3, 3 * 0.5 / 2.5))


@pytest.mark.parametrize("k1", [0.0, 2.0])
def test_term_frequency_of_a_class_without_tokens_is_zero(k1):
    assert frequencies(0, 3, 0, 6, k1=k1, b=1.0)[0] == 0
    assert frequencies(0, 0, 0, 0, k1=k1, b=1.0) == (0, 0)


def test_ratio_direction_of_the_worked_example():
    tf_correct = torch.tensor([0.44318182, 0, 0.44318182, 0.2392638], dtype=torch.float64)
    tf_incorrect = torch.tensor([0.3627907, 0.51315789, 0, 0.3627907], dtype=torch.float64)
    found = ratio_direction(tf_correct.clone(), tf_incorrect.clone(), 1e-5)
    assert found[0] == pytest.approx(0.4030, abs=5e-5)
    assert found[1] == pytest.approx(-51315.789, abs=1e-2)
    assert found[2] == pytest.approx(44318.182, abs=1e-2)
    assert found[3] == pytest.approx(-1.6421 + 0.785398, abs=5e-5)
    assert torch.equal(ratio_direction(tf_incorrect, tf_correct, 1e-5), -found)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20))
def test_bounded_direction_is_antisymmetric_and_within_half_a_circle(pairs):
    tf_correct, tf_incorrect = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    found = bounded_direction(tf_correct, tf_incorrect)
    assert torch.equal(bounded_direction(tf_incorrect, tf_correct), -found)
    assert (found.abs() <= torch.pi / 2).all()
    assert (found[tf_correct == tf_incorrect] == 0).all()


def test_bounded_direction_of_literal_frequencies():
    found = bounded_direction(torch.tensor([1.0, 0, 3, 0, 2]), torch.tensor([0, 1.0, 1, 0, 2]))
    # 3 : 1 is asin sqrt(3/4) - asin sqrt(1/4) = pi/3 - pi/6
    np.testing.assert_allclose(found, [np.pi / 2, -np.pi / 2, np.pi / 6, 0, 0], atol=1e-6)


def entries_of(compositions):
    """Return every table of some groups as entries: group, correct_with, incorrect_with, n_correct, n_incorrect."""
    each = [all_tables(*composition) for composition in compositions]
    group = np.concatenate([np.full(a.size, g) for g, (a, _) in enumerate(each)])
    a, b = (np.concatenate([pair[side] for pair in each]) for side in (0, 1))
    n_correct, n_incorrect = np.array(compositions).T
    shuffled = np.random.default_rng(0).permutation(len(group))
    return [torch.from_numpy(x) for x in (group[shuffled], a[shuffled], b[shuffled], n_correct, n_incorrect)]


def looked_up(cells, entries):
    """Return the measures of each entry (n_measures, n_entries)."""
    found = look_up(cells, *entries)
    return torch.stack([found.of_entries(row) for row in found.measures]).numpy()


def measured(cells, group, correct_with, incorrect_with, n_correct, n_incorrect):
    """Return the same from each entry's own table."""
    each = zip(correct_with, incorrect_with, n_correct[group], n_incorrect[group], strict=True)
    return np.concatenate([cells(np.array([a]), np.array([b]), int(n), int(m)) for a, b, n, m in each], axis=1)


COMPOSITIONS = [(4, 4), (2, 6), (0, 3), (4, 4), (5, 1), (0, 0), (9, 7)]


@pytest.mark.parametrize("limit", [tables.GRID_LIMIT, 25, 0], ids=["all small", "one large", "all large"])
def test_looked_up_measures_equal_measured_ones(monkeypatch, limit):
    monkeypatch.setattr(tables, "GRID_LIMIT", limit)
    entries = entries_of(COMPOSITIONS)
    np.testing.assert_array_equal(looked_up(exact_cells, entries), measured(exact_cells, *entries))


def test_looked_up_measures_keep_the_arithmetic_of_their_cells():
    entries = entries_of([(4, 4), (3, 5)])
    found = looked_up(float32_cells, entries)
    assert np.array_equal(found, found.astype(np.float32))
    np.testing.assert_allclose(found[2:], measured(exact_cells, *entries)[2:], atol=1e-6)


def test_look_up_takes_no_entries():
    empty = torch.zeros(0, dtype=torch.int64)
    assert looked_up(exact_cells, [empty] * 5).shape == (4, 0)
    some = torch.tensor([3])
    assert looked_up(exact_cells, [empty, empty, empty, some, some]).shape == (4, 0)


def test_released_cells_are_float32_and_close_to_exact():
    a, b = all_tables(5, 4)
    found, exact = float32_cells(a, b, 5, 4), exact_cells(a, b, 5, 4)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[2], exact[2], atol=1e-6)
    np.testing.assert_allclose(found[3], exact[3], atol=1e-6)
    lost = exact[0] - found[0]
    assert (lost > -1e-6).all(), "float32 loses tied tables and never adds any"


VALUES = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.1, 0.7, 1.0])
GROUPS = st.lists(st.lists(VALUES, min_size=1, max_size=8), min_size=1, max_size=4)


def moments_of(groups):
    values = torch.tensor([value for group in groups for value in group], dtype=torch.float64)
    return moments_within_groups(values, torch.tensor([g for g, group in enumerate(groups) for _ in group]))


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.randoms(use_true_random=False))
def test_moments_do_not_depend_on_the_order_or_the_neighbours(groups, random):
    whole = moments_of(groups)
    for g, group in enumerate(groups):
        alone = moments_of([random.sample(group, len(group))])
        for one, all_of_them in zip(alone, whole, strict=True):
            assert torch.equal(one[0], all_of_them[g])


@settings(max_examples=150, deadline=None)
@given(GROUPS)
def test_moments_equal_numpy(groups):
    found = moments_of(groups)
    scale = [max(map(abs, group)) + 1e-300 for group in groups]
    np.testing.assert_array_less(np.abs(found.mean.numpy() - [np.mean(g) for g in groups]) / scale, 1e-14)
    for ddof in (0, 1):
        expected = [np.std(g, ddof=ddof) if len(g) > ddof else 0 for g in groups]
        np.testing.assert_array_less(np.abs(found.std(ddof).numpy() - expected) / scale, 1e-10)
    assert found.size.tolist() == [len(group) for group in groups]
    assert found.constant.tolist() == [max(group) == min(group) for group in groups]


def test_equal_values_are_constant_though_their_mean_is_rounded():
    groups = [[0.7] * 3, [0.1] * 10, [0.7, 0.7, np.nextafter(0.7, 1)], [0.3]]
    assert sum([0.1] * 10) / 10 != 0.1
    assert moments_of(groups).constant.tolist() == [True, True, False, True]


def test_variance_survives_a_large_offset():
    assert moments_of([[1e9, 1e9 + 1, 1e9 + 2]]).std(1).item() == pytest.approx(1, rel=1e-12)
