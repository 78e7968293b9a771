"""`ktae score` as a whole: options, the summary, metadata, re-scoring, and what happens to the input's columns."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.plan import ScoreOptions
from ktae_cli.scoring import score_table
from tests.rollout_files import HIGH, LOW, four, ktae, refusal, score, tokens_of, write

SUMMARY = [
    "rollouts", "tokens", "groups", "groups_mixed", "groups_all_correct", "groups_all_wrong", "groups_singleton",
    "unscored", "truncated", "estimators", "output", "token_table", "schema_version", "seconds", "tokens_per_second",
]  # fmt: skip


def metadata(path) -> dict:
    return json.loads(pq.read_metadata(path).metadata[b"ktae"])


# --- the summary ----------------------------------------------------------------------------------------------------


def test_json_summary_has_the_documented_keys_and_numbers(tmp_path, capsys):
    table = pa.concat_tables(
        [
            four(group_id=["mixed"] * 4, finish_reason=["length", "stop", None, "length"]),
            four(group_id=["right"] * 4, reward=[1.0, 1.0, 1.0, None], finish_reason=["stop"] * 4),
            four(group_id=["wrong", "wrong", "wrong", "one"], reward=[0.0] * 4, finish_reason=["stop"] * 4),
        ]
    )
    path, out = write(tmp_path / "in.parquet", table), tmp_path / "out.parquet"
    assert ktae("score", path, "-o", out, "--json", "-e", "ktae", "-e", "grpo(eps=1e-4)", "-q") == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert captured.err == ""
    assert list(summary) == SUMMARY
    assert {name: summary[name] for name in SUMMARY[:9]} == {
        "rollouts": 12, "tokens": 18, "groups": 4, "groups_mixed": 1, "groups_all_correct": 1, "groups_all_wrong": 1,
        "groups_singleton": 1, "unscored": 1, "truncated": 2,
    }  # fmt: skip
    assert summary["estimators"] == ["ktae", "grpo(eps=0.0001)"]
    assert (summary["output"], summary["token_table"]) == (str(out), str(tmp_path / "out.tokens.parquet"))
    assert summary["schema_version"] == 1 and summary["seconds"] > 0 and summary["tokens_per_second"] > 0


def test_skipped_rows_count_as_unscored(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(response_ids=[[1], None, [3], [1]], reward=[1.0, 0.0, None, 0.0]))
    assert ktae("score", path, "--on-error", "skip", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["unscored"] == 2
    assert "1 row(s) left unscored" in captured.err and "1 row(s) have no reward" in captured.err


def test_stdout_stays_empty_and_quiet_says_nothing(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    assert ktae("score", path) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "4 rollouts, 6 tokens, 1 groups: 1 mixed" in captured.err
    assert ktae("score", path, "--force", "-q") == 0
    assert capsys.readouterr() == ("", "")


# --- what is written ------------------------------------------------------------------------------------------------


def test_advantages_are_float32_lists_as_long_as_the_ids(tmp_path):
    scored = score(tmp_path, four(response_mask=[[True, False], None, [True], [False]]))
    for name in ("advantages", "key_weight"):
        assert scored.schema.field(name).type == pa.list_(pa.float32())
        assert [len(row) for row in scored[name].to_pylist()] == [2, 2, 1, 1]
        assert scored[name][0].as_py()[1] == scored[name][3].as_py()[0] == 0.0


def test_every_input_column_comes_out_with_its_type_and_values(tmp_path):
    table = four(
        text=["", "a\0b", None, "🐕"],
        binary=[b"\xff\x00", None, b"", b"x"],
        small=pa.array([1, None, -3, 4], pa.int8()),
        when=pa.array([1, None, 3, 4], pa.timestamp("us", tz="UTC")),
        money=pa.array([None, 1, 2, 3]).cast(pa.decimal128(22, 2)),
        floats=[float("nan"), None, -0.0, float("inf")],
        nested=[{"a": [1, None], "b": {"c": "x"}}, None, {"a": None, "b": None}, {"a": [], "b": {"c": None}}],
        pairs=pa.array([[("k", 1.0)], [], None, [("l", None)]], pa.map_(pa.string(), pa.float64())),
        lists=[[[1], []], None, [], [None]],
        strings=pa.array([["a"], None, [None], []], pa.large_list(pa.large_string())),
        old_log_probs=pa.array([[-1.0, float("-inf")], [float("nan"), -2.0], [-3.0], None], pa.list_(pa.float32())),
        nothing=pa.nulls(4),
        view=pa.array(["v", None, "", "long enough not to be inlined"], pa.string_view()),
    )
    scored = score(tmp_path, table)
    read = pq.read_table(tmp_path / "in.parquet")
    assert scored.column_names == [*read.column_names, "advantages", "key_weight"]
    for name in read.column_names:
        assert scored.schema.field(name).type == read.schema.field(name).type, name
        assert str(scored[name].to_pylist()) == str(read[name].to_pylist()), name
        assert scored[name].null_count == read[name].null_count, name


def test_columns_added_writes_the_ids_and_ours_alone(tmp_path):
    scored = score(tmp_path, four(note=["x"] * 4), "--columns", "added", "-e", "ktae", "-e", "grpo")
    assert scored.column_names == [
        "group_id", "rollout_id", "advantages", "key_weight", "adv_ktae", "key_weight_ktae", "adv_grpo",
    ]  # fmt: skip
    assert scored["rollout_id"].to_pylist() == ["a", "b", "c", "d"]
    assert metadata(tmp_path / "out.parquet")["columns"] == {"group_id": "group_id", "rollout_id": "rollout_id"}


def test_columns_added_takes_ids_from_mapped_columns(tmp_path):
    table = four(group_id=None, rollout_id=None, uid=[7, 7, 7, 7], run=[10, 11, 12, 13])
    scored = score(tmp_path, table, "--columns", "added", "--map", "rollout_id=run")
    assert scored["group_id"].to_pylist() == ["7"] * 4
    assert scored["rollout_id"].to_pylist() == ["10", "11", "12", "13"]


def test_token_table_names_ids_in_order_with_counts(tmp_path):
    score(tmp_path, pa.concat_tables([four(group_id=["x"] * 4), four(group_id=["a"] * 4)]))
    rows = tokens_of(tmp_path).to_pylist()
    assert [(row["group_id"], row["token_id"]) for row in rows] == [(g, t) for g in "xa" for t in (1, 2, 3)]
    first = rows[0]
    # Token 1: in the right rollout and in one of three wrong ones. p of [[1, 0], [1, 2]] is 1 on both sides.
    assert [first[name] for name in ("correct_with", "incorrect_with", "n_correct", "n_incorrect")] == [1, 1, 1, 3]
    assert first["p_value"] == 1.0
    assert first["effect"] == pytest.approx(np.pi / 2 - np.arcsin(np.sqrt(1 / 3)))
    # Entropy of 1 in 4 less half the entropy of 1 in 2.
    assert first["information_gain"] == pytest.approx(0.8112781 - 0.5, abs=1e-6)
    assert first["spec"] == "ktae" and first["token"] is None


def test_no_tokens_out_and_tokens_out(tmp_path):
    path, out = write(tmp_path / "in.parquet", four()), tmp_path / "out.parquet"
    assert ktae("score", path, "-o", out, "--no-tokens-out") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "out.parquet"]
    assert metadata(out)["token_table"] is None
    assert ktae("score", path, "-o", out, "--force", "--tokens-out", tmp_path / "t.parquet") == 0
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 3
    assert metadata(out)["token_table"]["name"] == "t.parquet"


def test_rollout_level_estimators_write_no_token_table(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    assert ktae("score", path, "-e", "grpo", "--json") == 0
    assert json.loads(capsys.readouterr().out)["token_table"] is None
    assert not (tmp_path / "in.scored.tokens.parquet").exists()


# --- metadata -------------------------------------------------------------------------------------------------------


def test_metadata_tells_what_was_computed_from_what(tmp_path):
    table = four(correct=[True, False, False, None], finish_reason=["stop", "length", "stop", "stop"])
    options = ["-e", "ktae(base=grpo(ddof=0),top=0.5)", "--correct-threshold", 0.25, "--truncated", "zero"]
    score(tmp_path, table, *options)
    found = metadata(tmp_path / "out.parquet")
    spec = found["estimators"][0]
    assert (found["schema_version"], found["reader"], found["truncated"]) == (1, "parquet", "zero")
    assert (spec["spec"], spec["columns"]) == ("ktae(base=grpo(ddof=0),top=0.5)", ["advantages", "key_weight"])
    assert (spec["parameters"]["top"], spec["parameters"]["alpha"], spec["parameters"]["base"]) == (
        0.5,
        1.0,
        "grpo(ddof=0)",
    )
    assert found["correct_threshold"] == 0.25 and found["counts"]["truncated"] == 1 and found["counts"]["groups"] == 1
    footer = (tmp_path / "in.parquet").read_bytes()
    length = int.from_bytes(footer[-8:-4], "little")
    assert found["inputs"] == [
        {"name": "in.parquet", "footer_sha256": hashlib.sha256(footer[-8 - length : -8]).hexdigest()}
    ]
    tokens = (tmp_path / "out.tokens.parquet").read_bytes()
    assert found["token_table"] == {"name": "out.tokens.parquet", "sha256": hashlib.sha256(tokens).hexdigest()}


def test_metadata_states_scale_and_deviation(tmp_path):
    score(tmp_path, four(), "-e", "grpo")
    assert metadata(tmp_path / "out.parquet")["estimators"][0]["parameters"] == {
        "eps": 1e-6,
        "ddof": 1,
        "singleton": "zero",
        "aggregation": "none",
        "aggregation_length": 0,
    }


def test_metadata_holds_no_absolute_path_and_no_time(tmp_path):
    first = [score(tmp_path, four()) and (tmp_path / "out.parquet").read_bytes()]
    (tmp_path / "elsewhere").mkdir()
    score(tmp_path / "elsewhere", four())
    first.append((tmp_path / "elsewhere" / "out.parquet").read_bytes())
    assert first[0] == first[1]
    assert str(tmp_path).encode() not in first[0] and b"seconds" not in first[0]


# --- names that are ours --------------------------------------------------------------------------------------------


def test_reserved_input_columns_move_aside_with_a_notice(tmp_path, capsys):
    names = ["advantages", "key_weight", "adv_mine", "ratio_x", "kl_loss", "mask_extra", "grad_weight_z"]
    table = four(**{name: [float(i)] * 4 for i, name in enumerate(names)}, adventure=["kept"] * 4)
    scored = score(tmp_path, table)
    for i, name in enumerate(names):
        assert scored[f"input_{name}"].to_pylist() == [float(i)] * 4
    assert scored["adventure"].to_pylist() == ["kept"] * 4
    assert scored["advantages"][0].as_py()[0] == pytest.approx(HIGH + scored["key_weight"][0].as_py()[0])
    assert "input column 'kl_loss' is kept as 'input_kl_loss'" in capsys.readouterr().err


def test_reserved_name_finds_a_free_one(tmp_path):
    scored = score(tmp_path, four(advantages=[1] * 4, input_advantages=[2] * 4))
    assert scored["input_advantages"].to_pylist() == [2] * 4
    assert scored["input_input_advantages"].to_pylist() == [1] * 4


def test_rollout_id_of_an_unfit_type_is_kept_aside(tmp_path):
    scored = score(tmp_path, four(rollout_id=[0.5, 1.5, 2.5, 3.5]))
    assert scored["input_rollout_id"].to_pylist() == [0.5, 1.5, 2.5, 3.5]
    assert scored["rollout_id"].to_pylist() == [f"in.parquet:{row}" for row in range(4)]


def test_scoring_again_replaces_our_columns(tmp_path):
    table = four(rollout_id=None, group_id=None, prompt=["p"] * 4)
    first = score(tmp_path, table, "-e", "ktae", "-e", "grpo")
    (tmp_path / "out.parquet").rename(tmp_path / "again.parquet")
    second = score(tmp_path, [tmp_path / "again.parquet"], "-e", "dr_grpo")
    assert second.column_names == [
        "reward", "response_ids", "prompt", "group_id", "rollout_id", "advantages",
    ]  # fmt: skip
    assert second["advantages"].to_pylist() == [[0.75, 0.75], [-0.25, -0.25], [-0.25], [-0.25]]
    for name in ("group_id", "rollout_id"):
        assert second[name].to_pylist() == first[name].to_pylist()
    (tmp_path / "out.parquet").rename(tmp_path / "third.parquet")
    third = score(tmp_path, [tmp_path / "third.parquet"], "-e", "ktae", "-e", "grpo")
    assert third.select(first.column_names).equals(first)


def test_scoring_a_directory_of_scored_files_replaces_our_columns(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("a", "b"):
        path = write(tmp_path / f"{name}.parquet", four(group_id=[name] * 4))
        assert ktae("score", path, "-o", tmp_path / "run" / f"{name}.parquet", "-e", "grpo", "-q") == 0
    again = score(tmp_path, [tmp_path / "run"], "-e", "dr_grpo")
    assert again.column_names == ["group_id", "rollout_id", "reward", "response_ids", "advantages"]
    assert again["advantages"][4].as_py() == [0.75, 0.75]
    write(tmp_path / "run" / "c.parquet", four(group_id=["c"] * 4))
    mixed = score(tmp_path, [tmp_path / "run"], "-e", "dr_grpo")
    assert mixed["input_advantages"].to_pylist()[8:] == [None] * 4
    assert mixed["input_advantages"][0].as_py() == pytest.approx([HIGH, HIGH])


@pytest.mark.parametrize("value", [b"5", b'"text"', b"[]"])
def test_foreign_metadata_under_our_key_is_left_alone(tmp_path, value):
    scored = score(tmp_path, four(advantages=[1] * 4).replace_schema_metadata({b"ktae": value}))
    assert scored["input_advantages"].to_pylist() == [1] * 4


# --- text alone -----------------------------------------------------------------------------------------------------

TOKENIZER = Path(__file__).parents[1] / "sample_data" / "tokenizer.json"


@pytest.mark.skipif(not TOKENIZER.is_file(), reason="no sample tokenizer")
def test_text_is_encoded_with_a_tokenizer_and_marked(tmp_path, capsys):
    from tokenizers import Tokenizer

    texts = ["1+1=2", "no", "", "x"]
    table = four(response_ids=None, completion=texts)
    scored = score(tmp_path, table, "--tokenizer", TOKENIZER, "-e", "grpo")
    expected = [item.ids for item in Tokenizer.from_file(str(TOKENIZER)).encode_batch(texts, add_special_tokens=False)]
    assert scored["response_ids"].to_pylist() == expected
    assert scored["retokenized"].to_pylist() == [True] * 4
    assert scored["completion"].to_pylist() == texts
    assert [len(row) for row in scored["advantages"].to_pylist()] == [len(ids) for ids in expected]
    assert "they may differ from the sampled ids" in capsys.readouterr().err


@pytest.mark.skipif(not TOKENIZER.is_file(), reason="no sample tokenizer")
def test_ids_are_the_truth_where_text_disagrees(tmp_path):
    table = four(response=["something else"] * 4)
    scored = score(tmp_path, table, "--tokenizer", TOKENIZER)
    assert scored["response_ids"].to_pylist() == [[1, 2], [2, 3], [3], [1]]
    assert "retokenized" not in scored.column_names


# --- options --------------------------------------------------------------------------------------------------------


def test_strict_stops_on_a_group_of_one(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(group_id=["g", "g", "g", "one"]))
    assert "--strict" in refusal(capsys, tmp_path, "score", path, "--strict")


def test_strict_stops_on_shared_rollout_ids(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(group_id=["a", "a", "b", "b"], rollout_id=["1", "2", "1", "2"]))
    assert "--strict, nothing is written: 2 rollout_id(s)" in refusal(capsys, tmp_path, "score", path, "--strict")


def test_strict_passes_a_clean_file(tmp_path):
    assert score(tmp_path, four(), "--strict").num_rows == 4


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    table = pa.concat_tables([four(group_id=None, uid=["a"] * 4), four(group_id=None, uid=["b"] * 4)]).take(
        [0, 4, 1, 5, 2, 6]
    )
    path = write(tmp_path / "in.parquet", table)
    assert ktae("score", path, "--dry-run", "-e", "ktae") == 0
    err = capsys.readouterr().err
    for line in (
        "group_id <- uid", "group key: uid", "6 rollouts in 2 groups, two passes",
        "estimator ktae: needs response_ids, reward", "advantages, key_weight", "nothing is written",
    ):  # fmt: skip
        assert line in err
    assert [p.name for p in tmp_path.iterdir()] == ["in.parquet"]


def test_eos_id_takes_the_weight_of_an_id(tmp_path):
    scored = score(tmp_path, four(), "-e", "ktae(zero_ids=eos)", "--eos-id", 1)
    weight = scored["key_weight"].to_pylist()
    assert weight[0][0] == weight[3][0] == 0.0 and weight[0][1] != 0


def test_frame_is_scored_in_memory(tmp_path):
    table = four().slice(1, 3)
    scored = score_table(table, ScoreOptions(estimators=("dr_grpo",)))
    assert scored["advantages"].to_pylist() == [[0.0, 0.0], [0.0], [0.0]]
    whole = score_table(
        four(response_ids=pa.array([[1, 2], [2, 3], [3], [1]], pa.list_view(pa.int32()))), ScoreOptions(("grpo",))
    )
    assert [row[0] for row in whole["advantages"].to_pylist()] == pytest.approx([HIGH, LOW, LOW, LOW])
    assert list(tmp_path.iterdir()) == []
