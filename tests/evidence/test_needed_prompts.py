"""How many prompts it would take: by planted effects, and against tests of prompts that are really added."""

import numpy as np
import pytest

from ktae_cli.evidence.needed_prompts import needed_prompts
from ktae_cli.stats.adjust import benjamini_hochberg
from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.length_fit import exchangeable
from ktae_cli.stats.pooled_score import cells_of
from ktae_cli.stats.pooled_tests import pooled_tests

SIZE, RIGHT = 8, 4


def needed(score, variance, n_prompts: int = 50):
    """Return the answer for units whose variance is spread evenly over the prompts."""
    variance = np.asarray(variance, float)
    spread = np.zeros(len(variance))
    random = np.random.default_rng(0)
    squares = variance**2 / n_prompts
    return needed_prompts(np.asarray(score, float), variance, squares, spread, n_prompts, SIZE, 0.05, random)


def test_a_stronger_effect_needs_fewer_prompts():
    # 40 units of z about 1, and one of log odds theta
    noise = np.where(np.arange(40) % 2, 1.0, -1.0) * np.sqrt(20)
    found = [needed([*noise, 20 * theta], [20.0] * 41)["prompts"] for theta in (0.4, 0.5, 0.7)]
    assert None not in found
    assert found[0] > found[1] > found[2] > 50


def test_without_an_effect_no_number_is_named():
    found = needed(np.zeros(30), np.full(30, 12.0))
    assert found["effects"] == 0 and found["prompts"] is None
    # nothing is there and nothing joins it but noise: at most the level and its sampling error over 200 draws
    assert all(point["any"] < 0.12 for point in found["curve"])


def test_the_curve_has_rising_numbers_once_and_says_nothing_from_one_prompt():
    assert [point["prompts"] for point in needed([9.0], [9.0], n_prompts=2)["curve"][:3]] == [3, 4, 6]
    assert needed([9.0], [9.0], n_prompts=1) == {"prompts": None, "curve": [], "group_sizes": [], "effects": 0.0}
    assert needed([0.0], [0.0])["curve"] == []


def test_group_sizes_keep_the_number_of_rollouts():
    found = needed([30.0, 4.0], [20.0, 20.0], n_prompts=64)["group_sizes"]
    assert [(point["group_size"], point["prompts"]) for point in found] == [
        (2, 256), (4, 128), (8, 64), (16, 32), (32, 16), (64, 8),
    ]  # fmt: skip
    # V' / V = 8/2 * 1/7 at groups of 2, 8/64 * 63/7 at 64
    assert found[0]["mean"] < found[-1]["mean"]


def groups_of(n_groups: int, effects: np.ndarray, random: np.random.Generator):
    """Draw groups in which units are present with log odds +- effect / 2; return who holds them, and the verdicts."""
    right = np.tile(np.arange(SIZE) < RIGHT, n_groups)
    chance = 1 / (1 + np.exp(-effects[:, None] * np.where(right, 0.5, -0.5)))
    return random.random(chance.shape) < chance, right.astype(np.uint8)


def pooled(held: np.ndarray, right: np.ndarray):
    """Return the pooled tests of units (n_units, n_rollouts) bool."""
    n_groups = len(right) // SIZE
    strata = Strata(np.full(n_groups, SIZE), np.full(n_groups, RIGHT))
    unit, rollout = np.nonzero(held)
    return pooled_tests(cells_of(unit, rollout, right, strata), exchangeable(strata), strata, len(held))


def test_the_curve_agrees_with_prompts_that_are_really_added():
    random = np.random.default_rng(7)
    expected, found = [], []
    for _ in range(40):
        effects = random.normal(0, 0.35, 40)
        held, right = groups_of(30, effects, random)
        tests = pooled(held, right)
        cells = tests.cells
        squares = np.bincount(cells.unit, tests.cell_variance**2, 40)
        answer = needed_prompts(
            tests.score, tests.variance, squares, np.zeros(40), 30, SIZE, 0.05, np.random.default_rng(1)
        )
        expected.append([point["mean"] for point in answer["curve"] if point["prompts"] in (60, 120)])
        row = []
        for times in (2, 4):
            more, also = groups_of(30 * (times - 1), effects, random)
            p = pooled(np.hstack([held, more]), np.append(right, also)).p
            row.append(int((benjamini_hochberg(p) <= 0.05).sum()))
        found.append(row)
    expected, found = np.array(expected), np.array(found)
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (found.mean(0) > 1).all()
    assert expected.mean(0) == pytest.approx(found.mean(0), abs=float(4 * error.max()))
    assert expected.mean(0) == pytest.approx(found.mean(0), rel=0.25)
