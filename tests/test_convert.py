"""`ktae convert`: any dump becomes canonical Parquet that other programs read."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ktae_cli
from ktae_cli.readers._rows import CANONICAL
from ktae_cli.writers import parquet as writer
from tests.helpers import ROOT
from tests.rollout_files import HIGH, LOW, four, ktae, refusal, score, write

TOKENIZER = ROOT / "sample_data" / "tokenizer.json"
ROWS = [
    {"uid": "a", "completion": "x y", "completion_ids": [1, 2], "score": 1.0, "acc": True, "note": {"k": 1}},
    {"uid": "a", "completion": "z", "completion_ids": [3], "score": 0.0, "acc": False, "note": None},
    {"uid": "b", "completion": "x", "completion_ids": [1], "score": 0.0, "acc": None, "note": [1, "2"]},
]


def lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def convert(directory: Path, rows, *options) -> pa.Table:
    source = lines(directory / "in.jsonl", rows) if isinstance(rows, list) else rows
    assert ktae("convert", source, "-o", directory / "out.parquet", "--force", "-q", *options) == 0
    return pq.read_table(directory / "out.parquet")


def test_aliases_become_canonical_names_and_types_and_the_rest_passes_through(tmp_path):
    table = convert(tmp_path, ROWS)
    assert table.column_names == [
        "group_id", "rollout_id", "response", "response_ids", "reward", "correct", "reader", "note",
    ]  # fmt: skip
    assert all(table.schema.field(name).type == CANONICAL[name] for name in table.column_names[:-1])
    assert table.to_pylist()[0] == {
        "group_id": "a", "rollout_id": "in.jsonl:1", "response": "x y", "response_ids": [1, 2], "reward": 1.0,
        "correct": True, "reader": "jsonl", "note": '{"k":1}',
    }  # fmt: skip
    assert table["correct"].to_pylist() == [True, False, None]


def test_correct_is_filled_from_the_reward_and_unknown_where_it_is(tmp_path):
    rows = [{"group_id": "a", "reward": value} for value in (1.0, 0.25, 0.0, None, float("nan"))]
    assert convert(tmp_path, rows)["correct"].to_pylist() == [True, True, False, None, None]
    assert convert(tmp_path, rows, "--correct-threshold", 0.5)["correct"].to_pylist() == [
        True,
        False,
        False,
        None,
        None,
    ]


def test_derived_group_ids_tell_the_steps_of_a_prompt_apart(tmp_path):
    rows = [{"prompt": "p", "response": "r", "reward": 1, "step": step} for step in (1, 2, 1)]
    groups = convert(tmp_path, rows)["group_id"].to_pylist()
    assert groups[0] == groups[2] != groups[1]
    assert groups[0] == "1/148de9c5a7a44d19"  # sha256 of "p"
    assert convert(tmp_path, [{"problem_id": 7, "reward": 1, "step": 3}])["group_id"].to_pylist() == ["3/7"]


def test_group_by_and_map_name_the_columns(tmp_path):
    rows = [
        {"q": "a", "mine": "1", "group_id": "z", "deep": [1]},
        {"q": "b", "mine": "0.5", "group_id": "z", "deep": [2]},
    ]
    table = convert(tmp_path, rows, "--group-by", "q", "--map", "reward=mine", "--map", "response_ids=deep")
    assert table["group_id"].to_pylist() == ["a", "b"]
    assert table["input_group_id"].to_pylist() == ["z", "z"]
    assert table["reward"].to_pylist() == [1.0, 0.5]
    assert table["response_ids"].to_pylist() == [[1], [2]]


def test_named_rewards_become_a_struct_that_every_program_reads(tmp_path):
    rows = [{"group_id": "a", "rewards": value} for value in ({"x": 1.0}, None, {"y": 0.5, "x": None})]
    table = convert(tmp_path, rows)
    assert table["rewards"].to_pylist() == [{"x": 1.0, "y": None}, None, {"x": None, "y": 0.5}]
    assert "rewards" not in convert(tmp_path, [{"group_id": "a", "rewards": {}}]).column_names


def test_text_without_ids_is_encoded_and_marked(tmp_path, capsys):
    rows = [{"group_id": "a", "response": "1 + 1", "reward": 1}, {"group_id": "a", "response": None, "reward": 0}]
    table = convert(tmp_path, rows, "--tokenizer", TOKENIZER)
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(TOKENIZER)).encode("1 + 1", add_special_tokens=False).ids
    assert table["response_ids"].to_pylist() == [ids, None]
    assert table["retokenized"].to_pylist() == [True, True]
    assert "retokenized" not in convert(tmp_path, ROWS, "--tokenizer", TOKENIZER).column_names


def test_dump_without_groups_or_ids_converts_and_says_what_is_missing(tmp_path, capsys):
    source = lines(tmp_path / "in.jsonl", [{"response": "x", "reward": 1}])
    assert ktae("convert", source, "-o", tmp_path / "out.parquet") == 0
    assert "no group column" in capsys.readouterr().err
    assert pq.read_schema(tmp_path / "out.parquet").names == ["rollout_id", "response", "reward", "correct", "reader"]
    assert "no group column" in refusal(capsys, tmp_path, "score", tmp_path / "out.parquet")


def test_converted_rows_score_as_the_dump_does(tmp_path):
    rows = [
        {"uid": g, "completion_ids": ids, "score": r}
        for g, ids, r in zip("aaaa", [[1, 2], [2, 3], [3], [1]], [1.0, 0, 0, 0], strict=True)
    ]
    dump = lines(tmp_path / "in.jsonl", rows)
    from_dump = score(tmp_path, [dump], "-e", "grpo")
    convert(tmp_path, rows)
    (tmp_path / "out.parquet").rename(tmp_path / "canonical.parquet")
    from_parquet = score(tmp_path, [tmp_path / "canonical.parquet"], "-e", "grpo")
    expected = [[pytest.approx(HIGH)] * 2, [pytest.approx(LOW)] * 2, [pytest.approx(LOW)], [pytest.approx(LOW)]]
    assert from_dump["advantages"].to_pylist() == from_parquet["advantages"].to_pylist() == expected
    assert {"group_id", "response_ids", "reward", "correct", "rollout_id", "reader"} <= set(from_dump.column_names)
    assert from_dump["rollout_id"].to_pylist() == [f"in.jsonl:{i}" for i in (1, 2, 3, 4)]
    metadata = json.loads(pq.read_metadata(tmp_path / "out.parquet").metadata[b"ktae"])
    assert (metadata["reader"], metadata["columns"]["reward"]) == ("parquet", "reward")


def test_scored_dump_names_its_reader_and_the_hash_of_its_file(tmp_path):
    dump = lines(tmp_path / "in.jsonl", [{"group_id": "a", "response_ids": [1], "reward": r} for r in (1, 0)])
    score(tmp_path, [dump])
    metadata = json.loads(pq.read_metadata(tmp_path / "out.parquet").metadata[b"ktae"])
    import hashlib

    assert metadata["reader"] == "jsonl"
    assert metadata["inputs"] == [{"name": "in.jsonl", "sha256": hashlib.sha256(dump.read_bytes()).hexdigest()}]


def test_parquet_converts_like_json_lines(tmp_path):
    source = write(
        tmp_path / "p.parquet", pa.Table.from_pylist([{k: v for k, v in row.items() if k != "note"} for row in ROWS])
    )
    table = convert(tmp_path, source)
    assert table.drop_columns(["rollout_id", "reader"]).equals(
        convert(tmp_path, [{k: v for k, v in row.items() if k != "note"} for row in ROWS]).drop_columns(
            ["rollout_id", "reader"]
        )
    )
    assert table["reader"].to_pylist() == ["parquet"] * 3


def test_file_has_bounded_row_groups_a_page_index_and_statistics_of_scalars_only(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "ROW_GROUP_BYTES", 1 << 16)
    rows = [{"group_id": "a", "response": "x" * 1000, "response_ids": list(range(50)), "reward": i} for i in range(500)]
    convert(tmp_path, rows)
    footer = pq.ParquetFile(tmp_path / "out.parquet").metadata
    assert footer.num_row_groups > 5
    columns = {
        footer.row_group(1).column(i).path_in_schema: footer.row_group(1).column(i) for i in range(footer.num_columns)
    }
    assert columns["reward"].has_column_index
    assert columns["reward"].has_offset_index
    assert columns["reward"].is_stats_set
    assert not columns["response"].is_stats_set
    assert not columns["response_ids.list.element"].is_stats_set
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_pandas_and_polars_read_what_pyarrow_reads(tmp_path):
    table = convert(tmp_path, ROWS)
    path = tmp_path / "out.parquet"
    assert pl.read_parquet(path).to_dicts() == table.to_pylist()
    frame = pd.read_parquet(path)
    assert list(frame["group_id"]) == ["a", "a", "b"]
    assert [list(ids) for ids in frame["response_ids"]] == [[1, 2], [3], [1]]


@pytest.mark.parametrize("module", ["duckdb", "datasets"])
def test_other_programs_read_it_where_they_are_installed(tmp_path, module):
    pytest.importorskip(module)
    convert(tmp_path, ROWS)
    code = {
        "duckdb": "import duckdb, sys; print(duckdb.sql(f\"select count(*) from '{sys.argv[1]}'\").fetchall()[0][0])",
        "datasets": "import datasets, sys; print(datasets.Dataset.from_parquet(sys.argv[1]).num_rows)",
    }[module]
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out.parquet"], capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["3"], done.stderr


def test_same_input_gives_the_same_bytes(tmp_path):
    convert(tmp_path, ROWS)
    first = (tmp_path / "out.parquet").read_bytes()
    convert(tmp_path, ROWS)
    assert (tmp_path / "out.parquet").read_bytes() == first


def test_default_output_stands_beside_the_input_and_is_not_read_with_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "5.jsonl", ROWS)
    assert ktae("convert", "5.jsonl") == 0
    assert (tmp_path / "5.rollouts.parquet").exists()
    assert ktae("inspect", ".", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rollouts"] == 3
    assert "exists already" in refusal(capsys, tmp_path, "convert", "5.jsonl")


def test_lists_of_unequal_length_are_an_error_or_dropped(tmp_path, capsys):
    rows = [
        {
            "group_id": "g",
            "rollout_id": "r",
            "response_ids": [1] * 6,
            "old_log_probs": [0.0] * 7,
            "response_mask": [1] * 5,
        },
        {"group_id": "g", "response_ids": [1], "old_log_probs": [0.0], "response_mask": [1]},
    ]
    source = lines(tmp_path / "in.jsonl", rows)
    message = refusal(capsys, tmp_path, "convert", source, "-o", tmp_path / "out.parquet")
    assert "in.jsonl, line 1" in message
    assert "has 5 values for 6 response_ids" in message
    assert len(convert(tmp_path, source, "--on-mismatch", "drop")) == 1
    parquet = write(tmp_path / "in.parquet", pa.Table.from_pylist(rows))
    assert len(convert(tmp_path, parquet, "--on-mismatch", "drop")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "-"], "convert writes a Parquet file"),
        (["--map", "reward=nothing"], "unknown column in --map"),
        (["--correct-threshold", "nan"], "finite number"),
        (["--format", "verk"], "unknown reader 'verk' (nearest: verl)"),
        (
            ["--strict", "--map", "group_id=g", "--tokenizer", TOKENIZER, "--map", "response=t"],
            "--strict, nothing is written",
        ),
    ],
)
def test_unusable_options_exit_2(tmp_path, capsys, arguments, message):
    source = lines(tmp_path / "in.jsonl", [{"g": 1, "t": "x", "reward": 1}])
    assert message in refusal(capsys, tmp_path, "convert", source, *arguments)


def test_library_converts_files_and_frames(tmp_path):
    source = lines(tmp_path / "in.jsonl", ROWS)
    summary = ktae_cli.convert(source, tmp_path / "lib.parquet", map={"reward": "score"})
    assert (summary["rollouts"], summary["groups"], summary["reader"]) == (3, 2, "jsonl")
    assert ktae_cli.read(source).num_rows == ktae_cli.read(tmp_path / "lib.parquet").num_rows == 3
    frame = ktae_cli.convert(four(correct=None).to_pandas())
    assert list(frame["correct"]) == [True, False, False, False]
    assert np.array_equal(frame["response_ids"][0], [1, 2])
    with pytest.raises(ktae_cli.library.KtaeError, match="unknown option of reading"):
        ktae_cli.read(source, skip_lines=True)
