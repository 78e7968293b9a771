"""Statistics of a step's batch: literals, exact oracles, and the same bits however the parts come together."""

import math
from fractions import Fraction
from functools import reduce

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.stats.pooled import StepCounts, WeightedValues

ROWS = st.lists(
    st.tuples(
        st.integers(-1, 2),
        st.sampled_from([0.0, -0.0, 0.1, 0.7, 1.0, 1 / 3, -1e6, 1e-9]) | st.floats(-1e12, 1e12),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=30,
)


def columns(rows):
    step, value, weight = zip(*rows, strict=True)
    return np.array(step), np.array(value), np.array(weight)


def moments_of(rows, step):
    steps = torch.tensor([step])
    return [float(part) for part in WeightedValues(*columns(rows)).moments(steps, 1)]


def test_moments_of_a_step_are_weighted_and_apart_from_the_other_steps():
    rows = [(0, 1.0, 3), (1, 5.0, 1), (0, 3.0, 1), (1, 5.0, 7)]
    # step 0: 1, 1, 1, 3; mean 1.5; squares 3 * .25 + 2.25 = 3 over 4 - 1
    assert moments_of(rows, 0) == [4, 1.5, 1.0]
    assert moments_of(rows, 1) == [8, 5.0, 0.0]
    assert moments_of(rows, 7) == [0, 0, 0]


def test_a_single_value_is_its_own_mean():
    assert moments_of([(0, 0.7, 3), (0, 0.7, 8)], 0) == [11, 0.7, 0.0]


def test_without_steps_everything_is_one_batch():
    pool = WeightedValues(np.zeros(2, int), np.array([1.0, 2.0]), np.array([1, 1]))
    assert pool.moments(None, 3).mean.tolist() == [1.5] * 3


@settings(max_examples=200, deadline=None)
@given(ROWS, st.randoms(), st.integers(1, 7))
def test_values_merge_to_the_same_bits_in_any_order_and_cut(rows, random, size):
    whole = WeightedValues(*columns(rows))
    shuffled = random.sample(rows, len(rows))
    parts = [WeightedValues(*columns(shuffled[i : i + size])) for i in range(0, len(rows), size)]
    merged = reduce(lambda a, b: a.merge(b), random.sample(parts, len(parts)))
    steps = torch.tensor([row[0] for row in rows])
    for ours, theirs in zip(merged.moments(steps, len(rows)), whole.moments(steps, len(rows)), strict=True):
        assert torch.equal(ours, theirs)


@settings(max_examples=200, deadline=None)
@given(ROWS)
def test_moments_are_those_of_exact_fractions(rows):
    for step in {row[0] for row in rows}:
        weight, mean, variance = moments_of(rows, step)
        values = [Fraction(v) for s, v, w in rows if s == step for _ in range(w)]
        assert weight == len(values)
        if values:
            exact = sum(values) / len(values)
            squares = sum((v - exact) ** 2 for v in values) / max(len(values) - 1, 1)
            largest = max(map(abs, values))
            assert math.isclose(mean, exact, rel_tol=1e-12, abs_tol=1e-15 * float(largest))
            assert math.isclose(variance, squares, rel_tol=1e-9, abs_tol=1e-28 * float(largest) ** 2 + 1e-300)


def test_values_are_compacted_to_the_distinct_ones(monkeypatch):
    monkeypatch.setattr("ktae_cli.stats.pooled.COMPACT_AT", 100)
    pool = WeightedValues(np.zeros(60, int), np.arange(60) % 3, np.ones(60, int))
    for _ in range(20):
        pool = pool.merge(WeightedValues(np.zeros(60, int), np.arange(60) % 3, np.ones(60, int)))
    assert sum(len(part[0]) for part in pool.parts) < 200
    assert [float(part) for part in pool.moments(None, 1)][:2] == [60 * 21, 1.0]


def test_counts_add_up_by_step_and_keep_the_largest():
    first = StepCounts(np.array([1, 0, 1]), {"n": np.array([2, 3, 4])}, {"longest": np.array([5, 1, 6])})
    second = StepCounts(np.array([2, 1]), {"n": np.array([1, 10])}, {"longest": np.array([9, 2])})
    both = first.merge(second)
    steps = torch.tensor([0, 1, 2, 1, 5])
    assert both.of("n", steps, 5).tolist() == [3, 16, 1, 16, 0]
    assert both.of("longest", steps, 5).tolist() == [1, 6, 9, 6, 0]
    assert first.of("n", None, 2).tolist() == [3, 3]
