"""`ktae inspect`: the facts of a file, also of one that cannot be scored."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import KtaeError
from ktae_cli.library import inspect
from tests.helpers import ROOT
from tests.rollout_files import four, ktae, refusal, score, write


def facts(capsys, *arguments) -> dict:
    capsys.readouterr()
    assert ktae("inspect", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def mixed() -> pa.Table:
    """Five groups: two mixed, one all right, one all wrong, one of a single rollout; rows of group 0 are apart."""
    sizes = [
        (0, 1.0, 5),
        (1, 1.0, 4),
        (1, 0.0, 2),
        (2, 1.0, 1),
        (2, 1.0, 1),
        (3, 0.0, 0),
        (3, 0.0, 9),
        (4, 1.0, 3),
        (0, 0.0, 1),
    ]
    return pa.table(
        {
            "uid": [group for group, _, _ in sizes], "score": [reward for _, reward, _ in sizes],
            "output_ids": [[1] * length for _, _, length in sizes], "finish_reason": ["stop", "length", None] * 3,
            "note": ["n"] * 9,
        }
    )  # fmt: skip


def test_json_facts_are_counted_by_hand(tmp_path, capsys):
    found = facts(capsys, write(tmp_path / "in.parquet", mixed(), row_group_size=2))
    assert found["rollouts"] == 9 and found["tokens"] == 26
    assert found["columns"] == {
        "group_id": "uid", "response_ids": "output_ids", "reward": "score", "finish_reason": "finish_reason",
    }  # fmt: skip
    assert found["group_key"] == ["uid"] and found["passes_through"] == ["note"]
    kinds = ("groups", "groups_mixed", "groups_all_correct", "groups_all_wrong", "groups_singleton")
    assert [found[name] for name in kinds] == [5, 2, 1, 1, 1]
    assert found["group_sizes"] == {"1": 1, "2": 4} and found["contiguous"] is False
    assert found["pass_rate"] == pytest.approx(5 / 9) and found["pass_rate_histogram"] == [1, 0, 0, 0, 0, 2, 0, 0, 0, 2]
    assert found["reward_values"] == {"0.0": 4, "1.0": 5} and found["reward_range"] == [0.0, 1.0]
    assert (found["length"]["min"], found["length"]["median"], found["length"]["max"]) == (0, 2, 9)
    assert found["length_right"]["max"] == 5 and found["length_wrong"]["max"] == 9
    assert (found["empty_responses"], found["truncated"], found["unscored"]) == (1, 3, 0)
    assert found["problem"] == "" and found["scored_with"] == []


def test_text_says_the_same(tmp_path, capsys):
    assert ktae("inspect", write(tmp_path / "in.parquet", mixed())) == 0
    captured = capsys.readouterr()
    for line in (
        "9 rollouts, 26 response tokens", "5 groups by uid: 2 mixed, 1 all right, 1 all wrong, 1 singletons",
        "group sizes: 2 (4 groups), 1 (1 groups); rows of groups are apart", "pass rate: 0.556, 0 verdicts unknown",
        "rewards: 0 (4), 1 (5)", "cut at the length limit: 3", "response_ids  <- output_ids", "passed through: note",
    ):  # fmt: skip
        assert line in captured.out
    assert captured.err == ""


def test_unknown_rewards_and_verdicts_are_counted(tmp_path, capsys):
    table = four(reward=[1.0, None, float("nan"), 0.25], correct=[True, None, None, False])
    found = facts(capsys, write(tmp_path / "in.parquet", table))
    assert (found["unscored"], found["verdict_unknown"], found["pass_rate"]) == (2, 2, 0.5)
    assert found["reward_values"] == {"0.25": 1, "1.0": 1}


def test_threshold_decides_without_a_verdict(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=[1.0, 0.6, 0.5, 0.0]))
    assert facts(capsys, path)["pass_rate"] == 0.75
    assert facts(capsys, path, "--correct-threshold", 0.5)["pass_rate"] == 0.5


def test_many_reward_values_are_shown_as_a_range(tmp_path, capsys):
    n = 20
    table = pa.table({"uid": [0] * n, "reward": [i / 10 - 1 for i in range(n)], "response_ids": [[1]] * n})
    found = facts(capsys, write(tmp_path / "in.parquet", table))
    assert found["reward_values"] is None and found["reward_range"] == [-1.0, pytest.approx(0.9)]


def test_file_that_cannot_be_scored_is_shown_with_its_problem(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(group_id=None, response_ids=None, reward=None))
    found = facts(capsys, path)
    assert "no group column" in found["problem"] and found["rollouts"] == 4
    assert found["estimators"]["ktae"] == ["response_ids", "reward"] and found["pass_rate"] is None
    assert ktae("inspect", path) == 0
    captured = capsys.readouterr()
    assert "4 rollouts, no token ids" in captured.out and "cannot be scored as it is: no group column" in captured.err


def test_needs_of_estimators_follow_the_columns(tmp_path, capsys):
    found = facts(capsys, write(tmp_path / "in.parquet", four(reward=None, correct=[True, False, False, False])))
    assert found["estimators"]["ktae"] == [] and found["estimators"]["grpo"] == []
    found = facts(capsys, write(tmp_path / "in.parquet", four(response_ids=None)))
    assert found["estimators"]["ktae"] == ["response_ids"] and found["estimators"]["grpo"] == ["response_ids"]


def test_row_that_cannot_be_read_is_named(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=["1", "0", "good", "0"]), row_group_size=1)
    found = facts(capsys, path)
    assert "in.parquet, row 2: reward is 'good'" in found["unreadable"] and found["unscored"] == 1


def test_warnings_of_the_groups_are_shown(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(group_id=["1", "2", "3", "4"], prompt=["p"] * 4))
    assert "every row is a group of its own" in facts(capsys, path)["warnings"][0]
    assert ktae("inspect", path) == 0
    assert "warning: every row is a group of its own" in capsys.readouterr().err


def test_scored_file_tells_its_estimators(tmp_path, capsys):
    score(tmp_path, four(), "-e", "ktae(top=0.5)", "-e", "grpo")
    assert facts(capsys, tmp_path / "out.parquet")["scored_with"] == ["ktae(top=0.5)", "grpo"]


def test_mapping_options_reach_inspect(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(info=[{"r": 2.0}] * 4, k=["a", "a", "b", "b"]))
    found = facts(capsys, path, "--map", "reward=info.r", "--group-by", "k")
    assert found["reward_values"] == {"2.0": 4} and found["groups"] == 2
    assert "group_id" in found["passes_through"] and "info" not in found["passes_through"]


def test_file_without_rows_is_shown(tmp_path, capsys):
    found = facts(capsys, write(tmp_path / "in.parquet", four().slice(0, 0)))
    assert (found["rollouts"], found["groups"], found["tokens"], found["length"]) == (0, 0, 0, None)
    assert ktae("inspect", tmp_path / "in.parquet") == 0


def test_several_files_are_one_input(tmp_path, capsys):
    paths = [write(tmp_path / f"{i}.parquet", four(group_id=["g"] * 4)) for i in range(3)]
    found = facts(capsys, *paths)
    assert (found["rollouts"], found["groups"], found["contiguous"]) == (12, 1, True)


@pytest.mark.parametrize("options", [["--map", "reward=nope"], ["--group-by", "nope"], ["--map", "nope"]])
def test_bad_options_exit_2(tmp_path, capsys, options):
    assert "nope" in refusal(capsys, tmp_path, "inspect", write(tmp_path / "in.parquet", four()), *options)


def test_missing_file_exits_2(tmp_path, capsys):
    assert "none.parquet: no such file" in refusal(capsys, tmp_path, "inspect", tmp_path / "none.parquet")


def test_infinite_rewards_are_bad_rows_and_the_json_stays_valid(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=[1.0, float("inf"), float("-inf"), 0.0]))
    assert ktae("inspect", path, "--json") == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["reward_values"] == {"0.0": 1, "1.0": 1} and found["reward_range"] == [0.0, 1.0]
    assert (found["unscored"], found["verdict_unknown"], found["pass_rate"]) == (2, 2, 0.5)
    assert "row 1: reward is inf" in found["unreadable"]


def test_names_cannot_act_on_the_terminal(tmp_path, capsys):
    name = "a\x1b]0;title\x07\u202eb\nc"
    path = write(tmp_path / "in\x1b[31m.parquet", four(**{name: [1] * 4, "reward": ["1", "0", "bad", "0"]}))
    for options in ([], ["--json"]):
        assert ktae("inspect", path, *options) == 0
        captured = capsys.readouterr()
        assert not set("\x1b\x07\u202e") & set(captured.out + captured.err)
    assert json.loads(captured.out)["passes_through"] == [name]
    assert ktae("inspect", path) == 0
    assert "passed through: a␛]0;title␇\\u202eb⏎c\n" in capsys.readouterr().out


def test_reward_of_unfit_type_is_a_problem_not_an_error(tmp_path, capsys):
    found = facts(capsys, write(tmp_path / "in.parquet", four(reward=[[1.0]] * 4)))
    assert found["problem"].startswith("column 'reward' is list<") and found["groups"] == 1
    assert "reward" in found["passes_through"] and found["estimators"]["grpo"] == ["reward"]


def test_groups_count_trajectories_as_score_does(tmp_path, capsys):
    table = pa.table(
        {
            "group_id": ["p", "p", "p", "q", "q", "r", "r", "s", "s"],
            "rollout_id": ["a", "a", "b", "a", "a", None, None, "a", "b"],
            "reward": [None, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, None],
            "response_ids": [[1]] * 9,
        }
    )
    path = write(tmp_path / "in.parquet", table)
    found = facts(capsys, path)
    assert found["group_sizes"] == {"1": 1, "2": 3}
    kinds = ("groups", "groups_mixed", "groups_all_correct", "groups_all_wrong", "groups_singleton")
    assert [found[name] for name in kinds] == [4, 2, 0, 0, 2]
    assert ktae("score", path, "-o", tmp_path / "out.parquet", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert [summary[name] for name in kinds] == [4, 2, 0, 0, 2]


P_OLD, P_NEW = [0.5, 0.25, 0.8, 0.1], [0.6, 0.2, 0.8, 0.3]  # ratios 1.2, 0.8, 1, 3


def with_log_probs(**columns) -> pa.Table:
    """Two rollouts of two tokens with the log-probs of two policies; the third and fourth cannot be compared."""
    old, new = ([math.log(p) for p in probabilities] for probabilities in (P_OLD, P_NEW))
    base = {
        "response_ids": [[1, 2], [2, 3], [3], [1]],
        "old_log_probs": [old[:2], old[2:], None, [float("-inf")]],
        "log_probs": [new[:2], new[2:], [-1.0], [-1.0]],
    }
    return four(**(base | columns))


def test_off_policy_facts_are_in_json_and_in_text(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", with_log_probs())
    found = facts(capsys, path, "--clip", "0.9:1.28")["off_policy"]
    assert (found["clip"], found["cap"], found["mask"], found["key_threshold"]) == ([0.9, 1.28], 2.0, [0.5, 2.0], None)
    pair = found["pairs"]["old_new"]
    assert pair["chi_square"] == pytest.approx(2.02) and pair["k1"] == pytest.approx(-math.log(2.88) / 4)
    assert (pair["old"], pair["new"], pair["skipped"]) == ("old_log_probs", "log_probs", 2)
    assert ktae("inspect", path, "--clip", "0.9:1.28") == 0
    out = capsys.readouterr().out
    for line in (
        "old to new policy: r = exp(log_probs - old_log_probs)\n  4 tokens of 2 rollouts\n",
        f"rollouts that cannot be compared: 2, the first: {path}, row 2: old_log_probs is null\n",
        "mean k1 -0.264, mean k3 0.236, chi-square 2.02\n",
        "ratio: median 1, 5 % to 95 % 0.8 to 3, 1 % to 99 % 0.8 to 3, min 0.8, max 3\n",
        "outside the clip 0.9 to 1.28: 25.00 % below, 25.00 % above\n",
        "weights truncated at 2: mean 1.25, 25.00 % cut; masked outside 0.5 to 2: mean 0.75, 25.00 % zero\n",
        "effective sample size: 0.79 of the rollouts (whole-rollout weights); of the tokens of a rollout median 0.881, "
        "min 0.8\n",
        "mean k3 by tenth of the response: 0.0088 - - - - 0.46 - - - -\n",
        f"largest |log r|\n    {path}, row 1, position 1, token 3: ratio 3\n",
    ):
        assert line in out


def test_engine_trainer_and_later_policy_have_sections_of_their_own(tmp_path, capsys):
    engine = [[-1.0, -1.0], [-1.0, -1.0], [-1.0], [-1.0]]
    path = write(tmp_path / "in.parquet", with_log_probs(rollout_log_probs=engine))
    found = facts(capsys, path)["off_policy"]["pairs"]
    assert list(found) == ["engine_trainer", "old_new"]
    assert found["engine_trainer"]["k1"] == pytest.approx(-1 - math.log(0.5 * 0.25 * 0.8 * 0.1) / 4)
    assert found["old_new"]["k1"] == pytest.approx(-math.log(2.88) / 4) and found["old_new"]["note"] == ""
    path = write(tmp_path / "in.parquet", with_log_probs(rollout_log_probs=engine, old_log_probs=None))
    found = facts(capsys, path)["off_policy"]["pairs"]
    assert list(found) == ["old_new"] and found["old_new"]["k1"] == pytest.approx(-1 - (math.log(0.0288) - 2) / 6)
    assert ktae("inspect", path) == 0
    assert "r = exp(log_probs - rollout_log_probs) (no old_log_probs: the engine's" in capsys.readouterr().out


def test_input_without_two_policies_says_what_gives_the_facts(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", with_log_probs(log_probs=None))
    assert facts(capsys, path)["off_policy"] is None
    assert ktae("inspect", path) == 0
    assert "off-policy facts: none; they need rollout_log_probs with old_log_probs, or" in capsys.readouterr().out
    line = refusal(capsys, tmp_path, "inspect", path, "-o", tmp_path / "out.parquet")
    assert "needs rollout_log_probs with old_log_probs" in line and "columns found: group_id, rollout_id" in line


def test_off_policy_columns_are_written_on_request(tmp_path, capsys):
    path, out = write(tmp_path / "in.parquet", with_log_probs()), tmp_path / "out.parquet"
    assert facts(capsys, path, "-o", out, "--mask", "0.9:2")["off_policy"]["output"] == str(out)
    table = pq.read_table(out)
    names = ("ratio", "k1", "k3", "truncated_weight", "masked_weight", "sequence_ratio", "ess")
    assert table.column_names == ["group_id", "rollout_id", *[f"{name}_old_new" for name in names]]
    assert table.schema.field("ratio_old_new").type == pa.list_(pa.float32())
    rows = table.to_pylist()
    assert [(row["group_id"], row["rollout_id"]) for row in rows] == [("g", name) for name in "abcd"]
    assert rows[1]["ratio_old_new"] == pytest.approx([1, 3]) and rows[1]["ess_old_new"] == pytest.approx(0.8)
    assert rows[1]["truncated_weight_old_new"] == pytest.approx([1, 2])
    assert rows[0]["masked_weight_old_new"] == pytest.approx([1.2, 0])
    assert rows[0]["sequence_ratio_old_new"] == pytest.approx(math.sqrt(0.96))
    assert [row["k3_old_new"] for row in rows[2:]] == [None, None]
    metadata = json.loads(pq.read_metadata(out).metadata[b"ktae"])
    assert metadata["off_policy"]["mask"] == [0.9, 2.0] and metadata["inputs"][0]["name"] == "in.parquet"
    first = out.read_bytes()
    assert "exists already" in refusal(capsys, tmp_path, "inspect", path, "-o", out, "--mask", "0.9:2")
    assert ktae("inspect", path, "-o", out, "--mask", "0.9:2", "--force") == 0
    assert out.read_bytes() == first and f"-> {out}" in capsys.readouterr().err


def test_off_policy_columns_of_groups_made_of_two_columns(tmp_path, capsys):
    table = with_log_probs(group_id=None, rollout_id=None, step=[1, 1, 2, 2], problem_id=["p", "q", "p", "q"])
    assert ktae("inspect", write(tmp_path / "in.parquet", table), "-o", tmp_path / "out.parquet") == 0
    out = pq.read_table(tmp_path / "out.parquet")
    assert out["group_id"].to_pylist() == ["1/p", "1/q", "2/p", "2/q"]
    assert out["rollout_id"].to_pylist() == [f"in.parquet:{i}" for i in range(4)]


def test_off_policy_columns_of_an_input_without_groups_have_no_group_id(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", with_log_probs(group_id=None))
    assert ktae("inspect", path, "-o", tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet")["group_id"].to_pylist() == [None] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clip", "0.8"], "--clip 0.8: expected LOW:HIGH"), (["--clip", "1:0"], "clip 1:0: expected two numbers"),
        (["--clip", "nan:2"], "clip nan:2"), (["--mask", "a:b"], "--mask a:b: expected LOW:HIGH"),
        (["--mask", "-1:2"], "mask -1:2"), (["--cap", "0"], "cap 0: expected a number above 0"),
        (["--cap", "inf"], "cap inf"), (["--key-threshold", "nan"], "key threshold nan"),
        (["-o", "-"], "-o -: inspect writes a Parquet file"), (["-o", "SELF", "--force"], "is an input"),
        (["-o", "no/such/out.parquet"], "no such directory"), (["--map", "log_probs=reward"], "expected list<float32>"),
    ],
)  # fmt: skip
def test_bad_off_policy_options_exit_2(tmp_path, capsys, options, message):
    path = write(tmp_path / "in.parquet", with_log_probs())
    chosen = [path if option == "SELF" else option for option in options]
    assert message in refusal(capsys, tmp_path, "inspect", path, *chosen)


def test_input_that_breaks_while_it_is_read_leaves_no_columns(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", with_log_probs(group_id=["g", "g", None, "g"]))
    refusal(capsys, tmp_path, "inspect", path, "-o", tmp_path / "out.parquet")


def test_scored_file_compares_key_tokens_with_the_rest(tmp_path, capsys):
    score(tmp_path, with_log_probs(old_log_probs=[[-1.0, -1.0], [-1.0, -1.0], [-1.0], [-1.0]]))
    weights = pq.read_table(tmp_path / "out.parquet")["key_weight"].combine_chunks().flatten().to_numpy()
    threshold = float(np.abs(weights).max())
    found = facts(capsys, tmp_path / "out.parquet", "--key-threshold", threshold)["off_policy"]
    pair = found["pairs"]["old_new"]
    log_ratio = np.concatenate([np.log(P_NEW) + 1, [0, 0]])
    assert pair["key"]["tokens"] == (np.abs(weights) >= threshold).sum() and pair["rest"]["tokens"] > 0
    assert pair["key"]["k1"] == pytest.approx(-log_ratio[np.abs(weights) >= threshold].mean())
    assert pair["rest"]["k1"] == pytest.approx(-log_ratio[np.abs(weights) < threshold].mean())
    assert ktae("inspect", tmp_path / "out.parquet") == 0
    assert "key tokens, |key_weight| >= 0.5: " in capsys.readouterr().out


def test_place_of_a_token_cannot_act_on_the_terminal(tmp_path, capsys):
    path = write(tmp_path / "in\x1b[31m.parquet", with_log_probs())
    assert ktae("inspect", path) == 0
    captured = capsys.readouterr()
    assert "in␛[31m.parquet, row 1, position 1" in captured.out and "\x1b" not in captured.out + captured.err


def test_sample_data_shows_how_far_its_policies_lie_apart(capsys):
    sample = pq.read_table(ROOT / "sample_data" / "rollouts.parquet")
    new, old = (sample[name].combine_chunks().flatten().to_numpy() for name in ("log_probs", "old_log_probs"))
    log_ratio = new.astype(np.float64) - old
    found = facts(capsys, ROOT / "sample_data" / "rollouts.parquet")["off_policy"]["pairs"]["old_new"]
    assert found["tokens"] == len(log_ratio) and found["skipped"] == 0
    assert found["k1"] == pytest.approx(-log_ratio.mean())
    assert found["chi_square"] == pytest.approx(np.exp(2 * log_ratio).mean() - 1)
    assert found["ratio"]["max"] == pytest.approx(np.exp(log_ratio.max()))


def test_library_writes_columns_of_a_path_and_none_of_a_frame(tmp_path):
    path = write(tmp_path / "in.parquet", with_log_probs())
    assert inspect(path, output=tmp_path / "out.parquet")["off_policy"]["output"] == str(tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 4
    with pytest.raises(KtaeError, match="of a frame nothing is written"):
        inspect(with_log_probs(), output=tmp_path / "other.parquet")
    assert inspect(with_log_probs())["off_policy"]["pairs"]["old_new"]["first_skipped"].startswith("row 2: ")
