"""Resampled prompts against literals, scipy and a slow loop over the same draws."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from ktae_cli.stats import resampling
from ktae_cli.stats.resampling import draw_weights, percentile_interval, prompt_stability, rank_down


def draw_cells(seed, n_units, n_prompts, share=0.5):
    random = np.random.default_rng(seed)
    unit, prompt = np.nonzero(random.random((n_units, n_prompts)) < share)
    return random.normal(0, 1, len(unit)).round(1), random.integers(1, 4, len(unit)) / 2, unit, prompt


def slow_stability(score, variance, unit, prompt, n_units, n_prompts, random, draws, tail):
    signs, ranks = np.zeros((n_units, draws)), np.zeros((n_units, draws))
    for draw in range(draws):
        drawn = draw_weights(n_prompts, 1, random)[0]
        z = np.zeros(n_units)
        for u in range(n_units):
            at = unit == u
            total, spread, seen = (
                np.sum(w) for w in (score[at] * drawn[prompt[at]], variance[at] * drawn[prompt[at]], score[at])
            )
            z[u] = round(abs(total) / np.sqrt(spread), 7) if spread else 0
            signs[u, draw] = (1 + np.sign(np.round(total, 7)) * np.sign(np.round(seen, 7))) / 2
        ranks[:, draw] = rankdata(-z, method="min")
    ranks.sort(axis=1)
    beyond = int(tail * draws)
    return signs.mean(1), ranks[:, beyond], ranks[:, draws - 1 - beyond]


def test_weights_are_draws_with_replacement():
    weights = draw_weights(5, 4000, np.random.default_rng(0))
    assert weights.shape == (4000, 5)
    assert (weights.sum(1) == 5).all()
    # each is binomial (5, 1/5): variance .8
    assert weights.var(0) == pytest.approx([0.8] * 5, abs=0.08)


def test_a_prompt_that_is_not_drawn_is_a_tie():
    # of two prompts, the first is left out in one of four resamples
    found = prompt_stability(
        np.array([1.0, -2.0, 2.0]), np.ones(3), np.array([0, 1, 1]), np.array([0, 0, 1]), 3, 2,
        np.random.default_rng(0), 20_000,
    )  # fmt: skip
    assert found.sign[0] == pytest.approx(3 / 4 + 1 / 8, abs=0.01)
    assert found.sign[1:].tolist() == [0.5, 0.5]


def test_tied_units_share_the_best_rank():
    assert rank_down(np.array([[3.0, 1.0, 3.0 + 1e-12, 0.0, 1.0], [0, 0, 0, 0, 0]])).tolist() == [
        [1, 3, 1, 5, 3],
        [1, 1, 1, 1, 1],
    ]


def test_ranks_of_units_that_never_change_places():
    unit, prompt = np.repeat(np.arange(4), 5), np.tile(np.arange(5), 4)
    score = np.repeat([0.5, -1.0, 0.1, 0.5], 5)
    found = prompt_stability(score, np.ones(20), unit, prompt, 4, 5, np.random.default_rng(0), 100)
    assert found.rank_low.tolist() == found.rank_high.tolist() == [2, 1, 4, 2]
    assert found.sign.tolist() == [1, 1, 1, 1]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.sampled_from([0.0, 0.05, 0.2]))
def test_stability_is_that_of_a_loop_over_the_same_draws(seed, n_units, n_prompts, tail):
    cells = (*draw_cells(seed, n_units, n_prompts), n_units, n_prompts)
    found = prompt_stability(*cells, np.random.default_rng(1), 30, tail)
    expected = slow_stability(*cells, np.random.default_rng(1), 30, tail)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs)


def test_the_size_of_the_parts_changes_nothing(monkeypatch):
    cells = (*draw_cells(0, 40, 12), 40, 12)
    whole = prompt_stability(*cells, np.random.default_rng(1), 200)
    monkeypatch.setattr(resampling, "VALUES_AT_ONCE", 300)
    parts = prompt_stability(*cells, np.random.default_rng(1), 200)
    for ours, theirs in zip(parts, whole, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_memory_does_not_grow_with_the_draws(monkeypatch):
    monkeypatch.setattr(resampling, "VALUES_AT_ONCE", 1 << 14)
    cells = (*draw_cells(0, 400, 30), 400, 30)

    def peak(draws):
        tracemalloc.start()
        prompt_stability(*cells, np.random.default_rng(1), draws, 0.01)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)
    assert peak(2000) < 1.6 * peak(400)


def test_a_percentile_interval_leaves_out_what_is_not_a_number():
    assert percentile_interval(np.append(np.arange(101.0), np.nan), 0.9) == pytest.approx((5, 95))
    assert np.isnan(percentile_interval(np.array([np.nan]))).all()
