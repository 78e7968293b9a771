"""AUC within groups and its interval over prompts."""

import math

import numpy as np
import pytest

from ktae_cli.stats.auc import auc_within_groups


def draw_scores(seed, n_prompts, shift):
    """Draw two groups of 8, half right, for each prompt, groups and prompts in mixed order."""
    random = np.random.default_rng(seed)
    group = random.permutation(np.repeat(np.arange(2 * n_prompts), 8))
    right = np.zeros(len(group), bool)
    for g in range(2 * n_prompts):
        right[np.flatnonzero(group == g)[:4]] = True
    prompt = group % n_prompts
    return random.normal(0, 1, len(group)) + shift * right + 10 * prompt, right, group, prompt


def test_prompts_are_weighted_by_their_pairs():
    # prompt 0: one pair, won; prompt 1: two groups, three pairs, one won, one tied
    scores = np.array([2.0, 1.0, 5.0, 5.0, 1.0, 0.0, 3.0])
    right = np.array([1, 0, 1, 0, 1, 0, 1], bool)
    group = np.array([0, 0, 9, 9, 4, 4, 9])
    found = auc_within_groups(scores, right, group, np.array([0, 0, 1, 1, 1, 1, 1]), np.random.default_rng(0), 4000)
    assert found.auc == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    # resamples: prompt 0 alone 1, both 2.5 / 4, prompt 1 alone 1.5 / 3
    assert (found.low, found.high) == (0.5, 1)


def test_one_prompt_alone_cannot_vary():
    scores, right, group, _ = draw_scores(0, 1, 1.0)
    found = auc_within_groups(scores, right, group, np.zeros(len(group), int), np.random.default_rng(0))
    assert found.low == found.auc == found.high


def test_without_a_pair_there_is_no_auc():
    one = np.ones(1)
    found = auc_within_groups(one, one > 0, np.zeros(1, int), np.zeros(1, int), np.random.default_rng(0))
    assert all(math.isnan(value) for value in found)
    empty = np.zeros(0)
    assert math.isnan(auc_within_groups(empty, empty > 0, *np.zeros((2, 0), int), np.random.default_rng(0)).auc)


def test_a_score_that_says_nothing_is_covered_and_one_that_tells_is_above_one_half():
    nothing = [auc_within_groups(*draw_scores(i, 30, 0.0), np.random.default_rng(i), 300) for i in range(100)]
    assert 87 <= sum(found.low <= 0.5 <= found.high for found in nothing) <= 100
    telling = auc_within_groups(*draw_scores(0, 30, 1.0), np.random.default_rng(0), 300)
    assert telling.low > 0.6
    # normal scores one standard deviation apart: Phi(1 / sqrt 2)
    assert telling.low < 0.7602 < telling.high


def test_a_seed_gives_the_same_interval():
    case = draw_scores(3, 10, 0.3)
    assert auc_within_groups(*case, np.random.default_rng(5)) == auc_within_groups(*case, np.random.default_rng(5))
