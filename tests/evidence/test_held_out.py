"""Do units predict verdicts of other prompts: a planted unit does, noise does not, and length has a line of its own."""

import numpy as np
import pytest

import ktae_cli
from ktae_cli.association import rank_auc
from ktae_cli.evidence.held_out import _overall
from ktae_cli.stats.resampling import draw_weights
from tests.evidence.rollouts import planted, table
from tests.rollout_files import write


def held_out(tmp_path, rollouts, **options):
    """Return the check of a table of rollouts."""
    path = write(tmp_path / "in.parquet", rollouts)
    return ktae_cli.tokens(path, **({"permutations": 10, "resamples": 300} | options))["held_out"]


def test_a_planted_unit_predicts_other_prompts(tmp_path):
    found = held_out(tmp_path, planted(140, 1, right=0.8, wrong=0.2))
    units, both, length = (found["within"][name] for name in ("units", "both", "length"))
    # id 1 alone decides 0.8 * 0.8 of the pairs and ties 0.32 of them: AUC 0.8, less what the noise of others takes
    assert 0.7 < units["auc"] < 0.85 and units["low"] > 0.6
    assert both["low"] > 0.6
    assert length["low"] < 0.55
    assert found["overall"]["units"]["low"] > 0.6


def test_a_unit_of_right_rollouts_alone_orders_every_pair(tmp_path):
    groups = [[([1, 2], 1.0), ([1, 3], 1.0), ([2, 4], 0.0), ([3, 4], 0.0)] for _ in range(20)]
    found = held_out(tmp_path, table(groups))
    assert found["within"]["units"] == {"auc": 1, "low": 1, "high": 1}
    assert found["overall"]["units"]["auc"] == 1
    # one of a rollout's three siblings is right where it is itself right, else two are: the pass rate points away
    assert found["overall"]["pass_rate"]["auc"] == 0


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_noise_predicts_nothing(tmp_path, seed):
    within = held_out(tmp_path, planted(120, seed, right=0.5, wrong=0.5))["within"]
    assert all(0.4 < values["auc"] < 0.6 for values in within.values())
    assert all(values["low"] - 0.02 <= 0.5 <= values["high"] + 0.02 for values in within.values())


def test_length_predicts_where_units_only_follow_it(tmp_path):
    random = np.random.default_rng(0)
    groups = []
    for _ in range(60):
        lengths = random.permutation([8, 12, 18, 27, 40, 60])
        groups.append([(random.integers(2, 30, n).tolist(), float(n < 20)) for n in lengths.tolist()])
    within = held_out(tmp_path, table(groups))["within"]
    assert within["length"] == {"auc": 1, "low": 1, "high": 1}
    assert within["units"]["low"] > 0.9
    assert within["both"]["auc"] == 1


def test_fewer_than_four_prompts_cannot_be_halved(tmp_path):
    assert held_out(tmp_path, planted(3, 1), min_groups=1) == {"within": None, "overall": None}


def test_the_overall_auc_is_that_of_ranks_in_every_resample():
    random = np.random.default_rng(5)
    score, right = np.round(random.normal(size=60), 1), random.random(60) < 0.4
    prompt = np.arange(60) // 6
    found = _overall(score, right, prompt, np.random.default_rng(1))
    assert found["auc"] == pytest.approx(rank_auc(score, right))
    drawn = []
    for times in draw_weights(10, 200, np.random.default_rng(1)):
        rows = np.concatenate([np.tile(np.flatnonzero(prompt == at), n) for at, n in enumerate(times.tolist())])
        drawn.append(rank_auc(score[rows], right[rows]))
    assert (found["low"], found["high"]) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))
