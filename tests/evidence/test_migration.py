"""Pass rates of prompts between two inputs, against a table by hand and McNemar's test of another library."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from ktae_cli.evidence.incidence import Informative
from ktae_cli.evidence.migration import migration
from ktae_cli.stats.conditional import Strata


def rollouts(groups: list[tuple[int, list[int]]]) -> Informative:
    """Return groups of (prompt, verdicts)."""
    right = np.concatenate([verdicts for _, verdicts in groups]).astype(np.uint8)
    strata = Strata(np.array([len(v) for _, v in groups]), np.array([sum(v) for _, v in groups]))
    nothing = np.zeros(len(right))
    prompt = np.array([prompt for prompt, _ in groups])
    return Informative(strata, right, nothing, nothing > 0, prompt, np.arange(len(groups)), np.arange(len(right)))


def test_the_table_counts_prompts_over_all_their_groups():
    # prompt 1 has two groups in the first: 1 of 4 right
    first = rollouts([(1, [1, 0]), (1, [0, 0]), (2, [0, 0]), (3, [1, 1]), (4, [1, 0])])
    second = rollouts([(1, [1, 1, 1]), (2, [0, 1, 1]), (3, [0, 0]), (4, [1, 0])])
    found = migration(first, second, 200, 0)
    assert found["kinds"] == ["all wrong", "mixed", "all right"]
    # rows: the first input; 2 goes from all wrong to mixed, 1 and 4 from mixed, 3 from all right to all wrong
    assert found["table"] == [[0, 1, 0], [0, 1, 1], [1, 0, 0]]
    assert found["pass_rate"] == pytest.approx([(0.25 + 0 + 1 + 0.5) / 4, (1 + 2 / 3 + 0 + 0.5) / 4])
    assert found["change"] == pytest.approx((0.75 + 2 / 3 - 1 + 0) / 4)
    assert (found["gained"], found["lost"]) == (2, 1)
    assert found["p"] == 1
    assert found["low"] <= found["change"] <= found["high"]


@pytest.mark.parametrize("seed", range(4))
def test_p_is_mcnemars_and_the_interval_is_a_paired_bootstrap(seed):
    random = np.random.default_rng(seed)
    sides = []
    for chance in (0.4, 0.6):
        sides.append([(prompt, (random.random(4) < chance).astype(int).tolist()) for prompt in range(60)])
    found = migration(*map(rollouts, sides), 4000, 0)
    rates = np.array([[np.mean(v) for _, v in side] for side in sides])
    a, b = rates >= 0.5
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    assert found["p"] == pytest.approx(mcnemar(table, exact=True).pvalue)
    oracle = stats.bootstrap((rates[1] - rates[0],), np.mean, method="percentile", rng=seed).confidence_interval
    assert (found["low"], found["high"]) == pytest.approx((oracle.low, oracle.high), abs=0.012)


def test_the_same_rollouts_have_not_moved():
    side = rollouts([(1, [1, 0]), (2, [0, 0])])
    found = migration(side, side, 50, 0)
    assert (found["change"], found["low"], found["high"], found["gained"], found["p"]) == (0, 0, 0, 0, 1)
