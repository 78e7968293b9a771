"""`ktae inspect`: the facts of a file, also of one that cannot be scored."""

import json

import pyarrow as pa
import pytest

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
