"""The exact quantile by step, against torch's, numpy's and literals, however the values are cut."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.stats.quantile import StepQuantile, codes_of, values_of

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def gather(parts, q):
    """Return the merged two passes over parts: lists of (step, values of one rollout)."""
    known = None
    while known is None or not known.complete:
        merged = None
        for rows in parts:
            step = torch.tensor([s for s, _ in rows], dtype=torch.int64)
            lengths = torch.tensor([len(v) for _, v in rows], dtype=torch.int64)
            values = torch.tensor([x for _, v in rows for x in v], dtype=torch.float32)
            part = StepQuantile(step, lengths, values, q, known)
            merged = part if merged is None else merged.merge(part)
        known = merged
    return known


def quantile(values, q):
    return gather([[(0, values)]], q).of(None, 1).item()


def exact(values, q):
    """Interpolate between two sorted values, float32 in, float32 out."""
    ordered = np.sort(np.array(values, np.float32)).astype(np.float64)
    return np.float32(np.quantile(ordered, q))


def test_quantile_of_the_worked_example():
    assert quantile([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 2.0], 0.8) == pytest.approx(0.72)


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([3], 0.8, 3), ([1, 2], 0.5, 1.5), ([5, 5, 5], 0.8, 5), ([4, 1, 3], 0, 1), ([4, 1, 3], 1, 4),
        ([-2, -1, 1], 0.25, -1.5),
    ],
)  # fmt: skip
def test_quantile_of_a_few_values(values, q, expected):
    assert quantile(values, q) == pytest.approx(expected)


@pytest.mark.parametrize("rho", [0.1, 0.3, 0.7, 0.9])
def test_a_rank_that_is_a_whole_number_takes_that_value(rho):
    values = [i / 7 for i in range(11)]
    assert quantile(values, 1 - rho) == np.float32(values[round((1 - rho) * 10)])


@settings(max_examples=60, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_equals_numpys(values, q):
    found, expected = quantile(values, q), exact(values, q)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5 * np.ptp(np.array(values, np.float64)) + 1e-38)


@pytest.mark.parametrize("size", [1, 2, 999, 20_001])
@pytest.mark.parametrize("q", [0.8, 0.5, 0.123])
def test_quantile_equals_torchs(size, q):
    values = np.random.default_rng(size).exponential(0.4, size).astype(np.float32)
    expected = torch.quantile(torch.from_numpy(values).double(), q).float().item()
    assert quantile(values.tolist(), q) == pytest.approx(expected, rel=2e-7)


def test_quantile_is_the_same_bits_for_any_cut_and_order():
    random = np.random.default_rng(0)
    rows = [(int(random.integers(0, 3)), random.exponential(0.5, random.integers(0, 40)).tolist()) for _ in range(60)]
    step = torch.tensor([0, 1, 2, 7])
    whole = gather([rows], 0.8).of(step, 4)
    shuffled = [rows[i] for i in random.permutation(60)]
    for parts in ([rows[:1], rows[1:]], [[row] for row in rows], [shuffled[i::7] for i in range(7)]):
        assert torch.equal(gather(parts, 0.8).of(step, 4), whole)
    for s in range(3):
        assert whole[s].item() == pytest.approx(exact([x for t, v in rows if t == s for x in v], 0.8), rel=1e-6)
    assert whole[3] == math.inf, "a step without values"


def test_many_steps_in_one_part_are_counted_apart():
    random = np.random.default_rng(1)
    rows = [(10**12 * i - 50, random.normal(0, 1, 5).tolist()) for i in range(200)]
    found = gather([rows], 0.3).of(torch.tensor([s for s, _ in rows]), 200).tolist()
    assert found == pytest.approx([exact(v, 0.3) for _, v in rows], rel=1e-6, abs=1e-7)


def test_parts_are_joined_before_they_grow_too_many(monkeypatch):
    monkeypatch.setattr("ktae_cli.stats.quantile.COMPACT_AT", 20)
    random = np.random.default_rng(2)
    rows = [(i % 2, random.choice([0.1, 0.2, 0.3, 0.5], 9).tolist()) for i in range(50)]
    pool = gather([[row] for row in rows], 0.8)
    assert len(pool.coarse.parts) < 10
    for s in (0, 1):
        found = pool.of(torch.tensor([s]), 1).item()
        assert found == exact([x for t, v in rows if t == s for x in v], 0.8)


def test_quantile_of_nothing_is_out_of_reach():
    assert gather([[(0, [])]], 0.8).of(None, 2).tolist() == [math.inf, math.inf]
    assert gather([[]], 0.8).of(None, 0).tolist() == []


@given(st.lists(FLOATS, min_size=2, max_size=30))
def test_codes_are_in_the_order_of_the_values(values):
    array = np.array(values, np.float32)
    codes = codes_of(torch.from_numpy(array)).numpy().astype(np.int64)
    assert np.array_equal(np.sign(codes[:-1] - codes[1:]), np.sign(np.sign(array[:-1].astype(np.float64) - array[1:])))
    assert np.array_equal(values_of(codes), array)
