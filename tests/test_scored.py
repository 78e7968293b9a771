"""Reading scored files: names through the metadata, bounded batches, groups, the token table."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import InputError, MissingColumnError, UnknownNameError
from ktae_cli.readers import parquet as parquet_module
from ktae_cli.readers.parquet import ParquetRollouts
from ktae_cli.readers.scored import ScoredFile, floats_of, token_rows, unknown_id
from ktae_cli.reports.view import Choice, view_group
from ktae_cli.token_text import IdDecoder

FLOATS, INTS = pa.list_(pa.float32()), pa.list_(pa.int32())

# Two prompts. p1: one right, one wrong, one unscored, one without a verdict. p2: both right.
ROWS = [
    {"prompt_id": "p1", "rollout_id": "a", "prompt": "2+2?", "response_ids": [1, 2, 3], "correct": True, "reward": 1.0,
     "advantages": [1.0, 1.5, 1.0], "key_weight": [0.0, 0.5, 0.0]},
    {"prompt_id": "p1", "rollout_id": "b", "prompt": "2+2?", "response_ids": [1, 4], "correct": False, "reward": 0.0,
     "advantages": [-1.0, -1.75], "key_weight": [0.0, -0.75]},
    {"prompt_id": "p2", "rollout_id": "c", "prompt": "3+3?", "response_ids": [5, 5], "correct": True, "reward": 1.0,
     "advantages": [0.0, 0.0], "key_weight": [0.0, 0.0]},
    {"prompt_id": "p1", "rollout_id": "d", "prompt": "2+2?", "response_ids": [1], "correct": None, "reward": None,
     "advantages": None, "key_weight": None},
    {"prompt_id": "p1", "rollout_id": "e", "prompt": "2+2?", "response_ids": [2], "correct": None, "reward": 0.5,
     "advantages": [0.25], "key_weight": [0.0]},
    {"prompt_id": "p2", "rollout_id": "f", "prompt": "3+3?", "response_ids": [], "correct": True, "reward": 1.0,
     "advantages": [], "key_weight": []},
]  # fmt: skip
TYPES = {
    "prompt_id": pa.string(), "rollout_id": pa.string(), "prompt": pa.string(), "response_ids": INTS,
    "correct": pa.bool_(), "reward": pa.float64(), "advantages": FLOATS, "key_weight": FLOATS,
}  # fmt: skip
ESTIMATORS = [
    {"spec": "ktae", "slug": "ktae", "parameters": {"fisher": "two_sided"}, "columns": ["advantages", "key_weight"]}
]
TOKEN_TYPES = {
    "group_id": pa.string(), "token_id": pa.int32(), "token": pa.string(), "spec": pa.string(),
    "key_weight": pa.float32(), "effect": pa.float64(), "p_value": pa.float64(), "information_gain": pa.float64(),
    "correct_with": pa.int32(), "incorrect_with": pa.int32(), "n_correct": pa.int32(), "n_incorrect": pa.int32(),
    "tf_correct": pa.float64(), "tf_incorrect": pa.float64(),
}  # fmt: skip


def token_row(group: str, token_id: int, weight: float, spec: str = "ktae", token: str | None = None, **more) -> dict:
    """A line of the token table with plausible counts."""
    counts = {"correct_with": 6, "n_correct": 8, "incorrect_with": 1, "n_incorrect": 8}
    row = {"group_id": group, "token_id": token_id, "token": token, "spec": spec, "key_weight": weight, "effect": 0.68}
    row |= {"p_value": 0.041, "information_gain": 0.2, "tf_correct": 0.1, "tf_incorrect": 0.0}
    return row | counts | more


def write_scored(
    path: Path,
    rows: list[dict],
    types: dict[str, pa.DataType],
    columns: dict[str, str] | None = None,
    tokens: list[dict] | None = None,
    row_group_size: int | None = None,
    **metadata,
) -> Path:
    """Write a scored file as `ktae score` does: columns, metadata, and the token table beside it."""
    mapping = {"group_id": "prompt_id"} if "prompt_id" in types else {}
    mapping |= {name: name for name in types if name not in ("prompt_id", "advantages", "key_weight")}
    named = None
    if tokens is not None:
        beside = path.with_name(path.name.removesuffix(".parquet") + ".tokens.parquet")
        pq.write_table(pa.Table.from_pylist(tokens, pa.schema(TOKEN_TYPES)), beside)
        named = {"name": beside.name, "sha256": hashlib.sha256(beside.read_bytes()).hexdigest()}
    ours = {"version": "0.1.0", "schema_version": 1, "reader": "parquet", "estimators": ESTIMATORS}
    ours |= {"columns": columns or mapping, "correct_threshold": 0.0, "counts": {}, "inputs": [], "token_table": named}
    schema = pa.schema(types, {b"ktae": json.dumps(ours | metadata).encode()})
    arrays = [pa.array([row.get(name) for row in rows], dtype) for name, dtype in types.items()]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, row_group_size=row_group_size)
    return path


@pytest.fixture
def scored(tmp_path) -> Path:
    return write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES)


def test_index_lists_groups_verdicts_and_strengths_in_file_order(scored):
    index = ScoredFile(scored).index("key_weight")
    assert index.groups == ["p1", "p2"]
    assert index.group_of_row.tolist() == [0, 0, 1, 0, 0, 1]
    assert index.verdict.tolist() == [1, 0, 1, -1, -1, 1]
    assert index.is_scored.tolist() == [True, True, True, False, True, True]
    assert index.n_tokens.tolist() == [3, 2, 2, 0, 1, 0]
    assert index.strength.tolist() == pytest.approx([0.5 / 3, 0.375, 0, 0, 0, 0])
    assert index.group_strength().tolist() == pytest.approx([1.25 / 6, 0])
    assert index.is_mixed().tolist() == [True, False]
    assert index.rows_of(1).tolist() == [2, 5]


def test_verdict_comes_from_the_reward_where_the_metadata_names_no_verdict(tmp_path):
    types = {name: dtype for name, dtype in TYPES.items() if name != "correct"}
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, types, correct_threshold=0.5)
    assert ScoredFile(path).index().verdict.tolist() == [1, 0, 1, -1, 0, 1]


def test_a_verdict_column_that_the_metadata_does_not_name_is_not_used(tmp_path):
    columns = {"group_id": "prompt_id", "rollout_id": "rollout_id", "reward": "reward"}
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES, columns)
    assert ScoredFile(path).index().verdict.tolist() == [1, 0, 1, -1, 1, 1]


def test_nested_paths_wide_types_and_dictionaries_are_read(tmp_path):
    rows = [
        {**row, "extra": {"score": row["reward"], "note": "n"}, "prompt_id": int(row["prompt_id"][1])} for row in ROWS
    ]
    types = {
        "prompt_id": pa.int64(), "rollout_id": pa.dictionary(pa.int8(), pa.string()),
        "response_ids": pa.large_list(pa.int64()), "advantages": pa.large_list(pa.float64()),
        "extra": pa.struct({"score": pa.float32(), "note": pa.string()}),
    }  # fmt: skip
    columns = {
        "group_id": "prompt_id",
        "rollout_id": "rollout_id",
        "response_ids": "response_ids",
        "reward": "extra.score",
    }
    file = ScoredFile(write_scored(tmp_path / "x.scored.parquet", rows, types, columns))
    index = file.index("advantages")
    assert index.groups == ["1", "2"]
    assert index.verdict.tolist() == [1, 0, 1, -1, 1, 1]
    assert index.strength.tolist() == pytest.approx([3.5 / 3, 2.75 / 2, 0, 0, 0.25, 0])
    assert file.value_columns() == ["advantages"]
    (numbers, columns_read), *rest = file.batches(["rollout_id", "reward"])
    assert not rest and numbers.tolist() == list(range(6))
    assert columns_read["rollout_id"].to_pylist() == list("abcdef")


def test_fixed_size_lists_are_read(tmp_path):
    rows = [{"group_id": "g", "rollout_id": str(at), "advantages": [at, -1.0]} for at in range(3)]
    types = {"group_id": pa.string(), "rollout_id": pa.string(), "advantages": pa.list_(pa.float32(), 2)}
    index = ScoredFile(write_scored(tmp_path / "x.scored.parquet", rows, types)).index("advantages")
    assert index.strength.tolist() == [0.5, 1.0, 1.5]
    assert index.verdict.tolist() == [-1, -1, -1]


@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("row_group_size", [1, 4, None])
def test_rows_are_the_same_whatever_the_batches(tmp_path, monkeypatch, batch_bytes, row_group_size):
    monkeypatch.setattr(parquet_module, "BATCH_BYTES", batch_bytes)
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES, row_group_size=row_group_size)
    file = ScoredFile(path)
    read = [
        (n, ids)
        for rows, c in file.batches(["response_ids"])
        for n, ids in zip(rows, c["response_ids"].to_pylist(), strict=True)
    ]
    assert read == [(at, row["response_ids"]) for at, row in enumerate(ROWS)]
    some = list(file.batches(["rollout_id"], np.array([1, 4, 5])))
    assert np.concatenate([rows for rows, _ in some]).tolist() == [1, 4, 5]
    assert [name for _, c in some for name in c["rollout_id"].to_pylist()] == ["b", "e", "f"]


@pytest.mark.parametrize("row_group_size", [1, 2, 5])
def test_rows_of_two_files_stay_side_by_side(tmp_path, monkeypatch, row_group_size):
    monkeypatch.setattr(parquet_module, "BATCH_BYTES", 200)
    path, original = write_added(tmp_path, row_group_size)
    file = ScoredFile(path, original)
    read = []
    for rows, columns in file.batches(["rollout_id", "response_ids", "advantages", "reward"]):
        values = [columns[name].to_pylist() for name in ("rollout_id", "response_ids", "advantages", "reward")]
        read += list(zip(rows.tolist(), *values, strict=True))
    expected = [
        (at, *(row[n] for n in ("rollout_id", "response_ids", "advantages", "reward"))) for at, row in enumerate(ROWS)
    ]
    assert read == expected


def write_added(folder: Path, row_group_size: int | None = None) -> tuple[Path, Path]:
    """Write what `score --columns added` writes, and the file that was scored, its columns under aliases."""
    renamed = [
        {"completion_ids": row["response_ids"], "score": row["reward"], "prompt": row["prompt"],
         "acc": row["correct"], "response_tokens": [f"t{i}" for i in row["response_ids"]]}
        for row in ROWS
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(renamed), folder / "x.parquet", row_group_size=4)
    types = {"group_id": pa.string(), "rollout_id": pa.string(), "advantages": FLOATS, "key_weight": FLOATS}
    rows = [{**row, "group_id": row["prompt_id"]} for row in ROWS]
    path = write_scored(folder / "x.scored.parquet", rows, types, row_group_size=row_group_size)
    return path, folder / "x.parquet"


def test_added_columns_need_the_rollouts_and_find_them_under_aliases(tmp_path):
    path, original = write_added(tmp_path)
    with pytest.raises(MissingColumnError, match=r"x.scored.parquet has no response_ids; .*--rollouts INPUT"):
        ScoredFile(path).require(["group_id", "response_ids"])
    file = ScoredFile(path, original)
    file.require(["response_ids", "reward", "correct", "prompt", "response_tokens"])
    assert file.index("key_weight").verdict.tolist() == [1, 0, 1, -1, -1, 1]
    with pytest.raises(MissingColumnError, match=r"neither x.scored.parquet nor x.parquet has ref_log_probs"):
        file.require(["ref_log_probs"])


def test_rollouts_of_another_length_are_refused(tmp_path, scored):
    pq.write_table(pa.table({"response_ids": [[1]]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match=r"other.parquet holds 1 rows, x.scored.parquet 6"):
        ScoredFile(scored, tmp_path / "other.parquet")


def test_rollouts_are_known_by_their_footers_and_by_the_mapping_of_the_input(tmp_path):
    path, original = write_added(tmp_path)
    footer = ParquetRollouts([original]).fingerprints()
    other = {"reward": "prompt_length"}
    types = {"group_id": pa.string(), "rollout_id": pa.string(), "advantages": FLOATS}
    rows = [{**row, "group_id": row["prompt_id"]} for row in ROWS]
    columns = {"group_id": "group_id", "rollout_id": "rollout_id"}
    write_scored(path, rows, types, columns, inputs=footer, input_columns={"group_id": ["prompt"], "reward": "score"})
    assert ScoredFile(path, original).index().verdict.tolist() == [1, 0, 1, -1, -1, 1]
    write_scored(path, rows, types, columns, inputs=footer, input_columns=other)
    assert ScoredFile(path, original).has("reward")
    pq.write_table(pq.read_table(original).slice(0, 6), original, compression="none")
    with pytest.raises(InputError, match=r"x.parquet is not the input that x.scored.parquet was made from"):
        ScoredFile(path, original)


def test_rollouts_in_several_files_are_read_end_to_end(tmp_path):
    path, original = write_added(tmp_path)
    table = pq.read_table(original)
    parts = tmp_path / "parts"
    parts.mkdir()
    pq.write_table(table.slice(0, 2), parts / "a.parquet")
    pq.write_table(table.slice(2).drop_columns("response_tokens"), parts / "b.parquet")
    file = ScoredFile(path, parts)
    read = [
        ids
        for _, columns in file.batches(["response_ids", "advantages"])
        for ids in columns["response_ids"].to_pylist()
    ]
    assert read == [row["response_ids"] for row in ROWS]
    some = list(file.batches(["response_tokens"], np.array([1, 3])))
    assert [text for _, columns in some for text in columns["response_tokens"].to_pylist()] == [["t1", "t4"], None]


def test_truncated_responses_that_were_scored_as_wrong_are_wrong(tmp_path):
    rows = [{**row, "finish_reason": reason} for row, reason in zip(ROWS, ["length", "stop", None] * 2, strict=True)]
    types = TYPES | {"finish_reason": pa.string()}
    kept = ScoredFile(write_scored(tmp_path / "kept.parquet", rows, types, truncated="keep"))
    zeroed = ScoredFile(write_scored(tmp_path / "zeroed.parquet", rows, types, truncated="zero"))
    assert kept.index().verdict.tolist() == [1, 0, 1, -1, -1, 1]
    assert zeroed.index().verdict.tolist() == [0, 0, 1, 0, -1, 1]


def test_equal_token_weights_are_in_the_order_of_p(tmp_path):
    tokens = [token_row("p1", 1, 0.9999, p_value=1.0), token_row("p1", 2, -1.0, p_value=0.02), token_row("p1", 3, 0.5)]
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES, tokens=tokens)
    rows, tested = token_rows(ScoredFile(path).token_table()[0], "p1", "ktae", 3)
    assert [row["token_id"] for row in rows] == [2, 1, 3]
    assert tested == 3


def test_files_that_are_not_scored_are_one_clear_line(tmp_path):
    (tmp_path / "text.parquet").write_text("{}")
    pq.write_table(pa.table({"reward": [1.0]}), tmp_path / "plain.parquet")
    write_scored(tmp_path / "new.parquet", ROWS, TYPES, schema_version=2)
    for name, message in {
        "text.parquet": "text.parquet is not a readable Parquet file",
        "plain.parquet": "plain.parquet is not a scored file; run: ktae score ",
        "new.parquet": "has schema version 2, this ktae reads up to 1",
        "absent.parquet": "no file .*absent.parquet",
        ".": "is a directory",
    }.items():
        with pytest.raises(InputError, match=message) as raised:
            ScoredFile(tmp_path / name)
        assert "\n" not in str(raised.value)


def test_a_damaged_page_is_an_input_error(scored):
    data = bytearray(scored.read_bytes())
    file = pq.ParquetFile(scored)
    column = file.metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + 40] = b"\xff" * 40
    scored.write_bytes(data)
    with pytest.raises(InputError, match="row group 0 cannot be read"):
        ScoredFile(scored).index("key_weight")


def test_an_empty_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="holds no rows"):
        ScoredFile(write_scored(tmp_path / "x.scored.parquet", [], TYPES)).index()


def test_value_columns_are_the_float_lists_with_ours_first(tmp_path):
    types = TYPES | {"entropy": FLOATS, "mine": FLOATS, "adv_ktae": FLOATS, "mask_x": pa.list_(pa.bool_())}
    columns = {
        "group_id": "prompt_id",
        "rollout_id": "rollout_id",
        "response_ids": "response_ids",
        "entropy": "entropy",
    }
    file = ScoredFile(write_scored(tmp_path / "x.scored.parquet", ROWS, types, columns))
    assert file.value_columns() == ["advantages", "key_weight", "adv_ktae", "entropy", "mine"]
    assert file.spec_of("key_weight") == "ktae"
    assert file.spec_of("entropy") == ""


def test_token_table_is_found_by_name_and_hash(tmp_path):
    tokens = [
        token_row("p1", 2, 0.5),
        token_row("p1", 4, -0.75),
        token_row("p2", 5, 0.1),
        token_row("p1", 2, 9.0, "other"),
    ]
    path = write_scored(tmp_path / "x.scored.parquet", ROWS, TYPES, tokens=tokens)
    table, reason = ScoredFile(path).token_table()
    assert (table, reason) == (tmp_path / "x.scored.tokens.parquet", "")
    rows, tested = token_rows(table, "p1", "ktae", 1)
    assert tested == 2 and [(row["token_id"], row["key_weight"]) for row in rows] == [(4, -0.75)]
    assert [row["key_weight"] for row in token_rows(table, "p1", "other", 5)[0]] == [9.0]
    assert token_rows(table, "none", "ktae", 5) == ([], 0)


def test_a_token_table_of_another_run_or_none_is_not_used(tmp_path, scored):
    assert ScoredFile(scored).token_table() == (
        None,
        "x.scored.parquet was written without a token table; score again to have one",
    )
    path = write_scored(tmp_path / "y.scored.parquet", ROWS, TYPES, tokens=[token_row("p1", 2, 0.5)])
    table = tmp_path / "y.scored.tokens.parquet"
    pq.write_table(pa.Table.from_pylist([token_row("p1", 2, 0.7)], pa.schema(TOKEN_TYPES)), table)
    assert "its hash differs" in ScoredFile(path).token_table()[1]
    table.unlink()
    assert ScoredFile(path).token_table() == (None, f"no file {table}; put the token table there, or score again")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (pa.int64(), [2**53 + 1, -1, None], [2.0**53, -1.0, None]),
        (pa.string(), ["true", " 1.0 ", "1_0"], [1.0, 1.0, None]),
        (pa.bool_(), [True, False, None], [1.0, 0.0, None]),
    ],
)
def test_numbers_and_their_text_are_floats(dtype, values, expected):
    assert pa.array(floats_of(pa.array(values, dtype)), from_pandas=True).to_pylist() == expected


def broken_text(path: Path, name: str, values: list) -> Path:
    """Replace a column by one whose bytes are not all UTF-8."""
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    dtype = table.schema.field(at).type
    texts = pa.array([value for row in values for value in (row if isinstance(row, list) else [row])], pa.binary())
    array = texts.view(pa.string())
    if pa.types.is_list(dtype):
        offsets = np.cumsum([0, *map(len, values)])
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array)
    pq.write_table(table.set_column(at, table.schema.field(at), array), path)
    return path


@pytest.mark.parametrize("name", ["prompt_id", "rollout_id"])
def test_ids_that_are_not_text_are_refused(scored, name):
    path = broken_text(scored, name, [b"a", b"\xff", b"c", b"d", b"e", b"f"])
    with pytest.raises(InputError, match="is not UTF-8 text; the file is damaged"):
        view_group(ScoredFile(path), Choice("key_weight"), IdDecoder(), "")


def test_finish_reason_that_is_not_text_is_no_length(tmp_path):
    rows = [row | {"finish_reason": "length"} for row in ROWS]
    path = write_scored(tmp_path / "x.scored.parquet", rows, TYPES | {"finish_reason": pa.string()}, truncated="zero")
    path = broken_text(path, "finish_reason", [b"\xff", b"length", b"\xff\xfe", b"length", b"", b"length"])
    assert ScoredFile(path).index().verdict.tolist() == [1, 0, 1, 0, -1, 0]


def test_unknown_ids_name_the_nearest():
    error = unknown_id("group", "step10/prompt-7", ["step10/prompt-1", "step10/prompt-77", "other"])
    assert isinstance(error, UnknownNameError)
    assert str(error) == "no group 'step10/prompt-7'; nearest: step10/prompt-77"
    assert str(unknown_id("group", "zz", ["a", "b"])) == "no group 'zz'; the first of 2: a, b"
