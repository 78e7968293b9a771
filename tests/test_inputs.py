"""What the command line takes as input, and the Arrow layouts that writers of Parquet leave behind."""

import gzip
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli import catalogue
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.inputs import ReadInputs, expand_inputs, open_rollouts
from ktae_cli.readers import parquet as parquet_reader
from ktae_cli.readers._sniff import load_reader
from ktae_cli.readers.base import ReaderOptions, column_at, field_at, list_lengths, list_values, root_of
from ktae_cli.readers.parquet import ParquetRollouts
from ktae_cli.schema import BY_NAME
from tests.rollout_files import HIGH, LOW, SHARED, four, ktae, refusal, score, tokens_of, write

GRPO = [[pytest.approx(HIGH)] * 2, [pytest.approx(LOW)] * 2, [pytest.approx(LOW)], [pytest.approx(LOW)]]
IDS = [[1, 2], [2, 3], [3], [1]]


# --- files, directories, globs, standard input ----------------------------------------------------------------------


def test_directory_is_read_in_order_of_names(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.parquet", "a.parquet", "deep/c.parquet", ".hidden.parquet", "a.tokens.parquet", "notes.txt"):
        (tmp_path / name).touch()
    assert expand_inputs([str(tmp_path)]) == [
        tmp_path / "a.parquet",
        tmp_path / "b.parquet",
        tmp_path / "deep/c.parquet",
    ]


def test_glob_is_sorted_and_leaves_token_tables_out(tmp_path):
    for name in ("2.parquet", "1.parquet", "1.tokens.parquet"):
        (tmp_path / name).touch()
    assert expand_inputs([f"{tmp_path}/*.parquet"]) == [tmp_path / "1.parquet", tmp_path / "2.parquet"]


def test_inputs_keep_the_given_order(tmp_path):
    for name in ("2.parquet", "1.parquet"):
        (tmp_path / name).touch()
    given = [str(tmp_path / "2.parquet"), str(tmp_path / "1.parquet")]
    assert [str(path) for path in expand_inputs(given)] == given


def test_scored_file_beside_its_input_is_not_read_again(tmp_path):
    for name in ("a.parquet", "a.scored.parquet", "lone.scored.parquet"):
        (tmp_path / name).touch()
    assert [path.name for path in expand_inputs([str(tmp_path)])] == ["a.parquet", "lone.scored.parquet"]
    assert [path.name for path in expand_inputs([f"{tmp_path}/*.scored.parquet"])] == [
        "a.scored.parquet", "lone.scored.parquet",
    ]  # fmt: skip
    assert expand_inputs([str(tmp_path / "a.scored.parquet")]) == [tmp_path / "a.scored.parquet"]


def test_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    path = write(tmp_path / "step[1].parquet", four())
    assert expand_inputs([str(path)]) == [path]


@pytest.mark.parametrize(("text", "found"), [("none.parquet", "no such file"), ("*.nothing", "no file matches")])
def test_input_that_names_nothing_is_refused(tmp_path, text, found):
    with pytest.raises(InputError, match=found):
        expand_inputs([str(tmp_path / text)])


def test_directory_without_parquet_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.parquet file"):
        expand_inputs([str(tmp_path)])


def test_file_given_twice_is_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    os.symlink(path, tmp_path / "link.parquet")
    message = refusal(capsys, tmp_path, "score", path, tmp_path / "link.parquet", "-o", tmp_path / "o.parquet")
    assert "link.parquet: given twice" in message


def test_pipe_by_name_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file; pipe it into standard input"):
        expand_inputs([str(tmp_path / "pipe")])


def test_name_that_is_not_utf8_is_refused(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.parquet"
    open(path, "wb").close()
    with pytest.raises(InputError, match="not UTF-8"):
        expand_inputs([os.fsdecode(path)])


class Stdin:
    """Standard input that holds bytes."""

    def __init__(self, data: bytes):
        self.buffer = io.BytesIO(data)


def test_standard_input_is_scored_with_stable_names(tmp_path, monkeypatch):
    data = write(tmp_path / "in.parquet", four(rollout_id=None)).read_bytes()
    written = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        assert ktae("score", "-", "-o", tmp_path / "out.parquet", "--force", "-e", "grpo") == 0
        written.append((tmp_path / "out.parquet").read_bytes())
    assert written[0] == written[1]
    scored = pq.read_table(tmp_path / "out.parquet")
    assert scored["advantages"].to_pylist() == GRPO
    assert scored["rollout_id"].to_pylist() == [f"stdin.parquet:{row}" for row in range(4)]


def test_standard_input_is_read_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Stdin(b"PAR1"))
    assert "given twice" in refusal(capsys, tmp_path, "score", "-", "-", "-o", tmp_path / "o.parquet")


@pytest.mark.parametrize("inputs", [["-"], ["a.parquet", "b.parquet"], ["*.parquet"]])
def test_output_has_no_default_beside_several_files(tmp_path, capsys, monkeypatch, inputs):
    monkeypatch.chdir(tmp_path)
    for name in ("a.parquet", "b.parquet"):
        write(tmp_path / name, four())
    assert "name one with -o" in refusal(capsys, tmp_path, "score", *inputs)


def test_default_output_stands_beside_the_input(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "a.parquet", four())
    monkeypatch.chdir(tmp_path / "run")
    assert ktae("score", "a.parquet") == 0
    assert ktae("score", ".") == 0
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert written == [
        "run.scored.parquet", "run.scored.tokens.parquet", "run/a.parquet", "run/a.scored.parquet",
        "run/a.scored.tokens.parquet",
    ]  # fmt: skip
    assert pq.read_metadata(tmp_path / "run.scored.parquet").num_rows == 4


def test_rollouts_without_an_id_are_named_by_file_and_row(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "r.parquet", four(rollout_id=None).slice(0, 2))
    scored = score(tmp_path, [tmp_path / "x", tmp_path / "y"])
    assert scored["rollout_id"].to_pylist() == ["x/r.parquet:0", "x/r.parquet:1", "y/r.parquet:0", "y/r.parquet:1"]


# --- list layouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_view(pa.int32()), pa.large_list_view(pa.uint16()),
        pa.large_list(pa.uint8()),
    ],
    ids=str,
)  # fmt: skip
def test_list_of_any_layout_is_read_and_written_as_it_is(tmp_path, kind):
    table = four(response_ids=pa.array(IDS, kind))
    scored = score(tmp_path, table, "-e", "grpo")
    assert scored["advantages"].to_pylist() == GRPO
    assert scored["response_ids"].to_pylist() == IDS
    assert (
        scored.schema.field("response_ids").type == pq.read_schema(tmp_path / "in.parquet").field("response_ids").type
    )


def test_fixed_size_list_is_read(tmp_path):
    kind = pa.list_(pa.int16(), 2)
    scored = score(tmp_path, four(response_ids=pa.array([[1, 2], [2, 3], [3, 3], [1, 1]], kind)), "-e", "dr_grpo")
    assert scored["advantages"].to_pylist() == [[0.75] * 2, *[[-0.25] * 2] * 3]
    assert scored.schema.field("response_ids").type == kind


def test_fixed_size_list_with_a_null_row_keeps_the_others_in_place(tmp_path):
    table = four(response_ids=pa.array([[1, 2], None, [3, 4], [1, 1]], pa.list_(pa.int16(), 2)))
    score(tmp_path, table, "--on-error", "skip")
    rows = {row["token_id"]: row["incorrect_with"] for row in tokens_of(tmp_path).to_pylist()}
    assert rows == {1: 1, 2: 0, 3: 1, 4: 1}


def test_list_of_nulls_is_empty_responses(tmp_path):
    table = four(response_ids=pa.array([[], [], [], []], pa.list_(pa.null())))
    assert score(tmp_path, table)["advantages"].to_pylist() == [[]] * 4


def test_list_of_nulls_with_items_names_the_row(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(response_ids=pa.array([[], [None], [], []], pa.list_(pa.null()))))
    assert "row 1: response_ids holds a null" in refusal(capsys, tmp_path, "score", path)


def test_null_typed_ids_and_masks(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(response_ids=pa.nulls(4)))
    assert "row 0: response_ids is null" in refusal(capsys, tmp_path, "score", path)
    assert score(tmp_path, four(response_mask=pa.nulls(4)), "-e", "grpo")["advantages"].to_pylist() == GRPO


def test_sliced_tables_are_read_from_their_own_offsets():
    table = pa.concat_tables([four(), four()]).combine_chunks().slice(3, 3)
    ids = column_at(table, "response_ids")
    assert list_lengths(ids)[0].tolist() == [1, 2, 2]
    assert list_values(ids).to_pylist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.list_view(pa.int32()), pa.large_list(pa.int8())], ids=str)
def test_list_access_skips_null_rows(kind):
    array = pa.array([[9], None, [1, 2], []], kind).slice(1)
    lengths, valid = list_lengths(array)
    assert (lengths.tolist(), valid.tolist()) == ([0, 2, 0], [False, True, True])
    assert list_values(array).to_pylist() == [1, 2]


# --- structs, dictionaries, odd names and text ----------------------------------------------------------------------


def test_struct_columns_are_reached_by_dotted_paths(tmp_path):
    info = [{"gen": {"ids": ids, "r": reward}} for ids, reward in zip(IDS, (1.0, 0.0, 0.0, 0.0), strict=True)]
    table = four(response_ids=None, reward=None, info=info)
    scored = score(tmp_path, table, "-e", "grpo", "--map", "response_ids=info.gen.ids", "--map", "reward=info.gen.r")
    assert scored["advantages"].to_pylist() == GRPO
    assert scored["info"].to_pylist() == info


def test_null_struct_is_a_null_reward(tmp_path):
    info = pa.array([{"r": 1.0}, {"r": 0.0}, None, {"r": None}])
    scored = score(tmp_path, four(reward=None, info=info), "-e", "dr_grpo", "--map", "reward=info.r")
    assert scored["advantages"].to_pylist() == [[0.5, 0.5], [-0.5, -0.5], None, None]


def test_column_names_with_dots_are_columns(tmp_path):
    table = four(reward=None, **{"metrics.reward": [1.0, 0.0, 0.0, 0.0], "metrics": [5.0] * 4})
    scored = score(tmp_path, table, "-e", "grpo", "--map", "reward=metrics.reward")
    assert scored["advantages"].to_pylist() == GRPO


def test_dotted_names_find_field_and_root():
    schema = pa.schema([("a.b", pa.int8()), ("s", pa.struct([("x", pa.struct([("y", pa.int16())]))]))])
    assert (field_at(schema, "a.b").type, field_at(schema, "s.x.y").type) == (pa.int8(), pa.int16())
    assert (root_of(schema, "a.b"), root_of(schema, "s.x.y")) == ("a.b", "s")
    assert field_at(schema, "s.z") is None and field_at(schema, "a") is None


def test_two_columns_of_one_name_are_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    assert "two columns are named 'a'" in refusal(capsys, tmp_path, "score", path)


@pytest.mark.parametrize("values", [pa.string(), pa.large_string()], ids=str)
def test_dictionary_columns_stay_dictionaries(tmp_path, values):
    kind = pa.dictionary(pa.int8(), values)
    table = four(group_id=pa.array(["g"] * 4).cast(kind), note=pa.array(["x", None, "y", "x"]).cast(kind))
    scored = score(tmp_path, table, "-e", "grpo")
    assert scored["advantages"].to_pylist() == GRPO
    read = pq.read_table(tmp_path / "in.parquet")
    assert scored["note"].to_pylist() == ["x", None, "y", "x"]
    assert scored.schema.field("note").type == read.schema.field("note").type


def test_stored_token_text_of_a_dictionary_is_read(tmp_path):
    offsets, tokens = [0, 2, 4, 5, 6], ["a", "b", "b", "c", "c", "a"]
    tokens = pa.ListArray.from_arrays(offsets, pa.array(tokens).dictionary_encode())
    scored = score(tmp_path, four(response_tokens=tokens))
    assert scored["response_tokens"].to_pylist() == [["a", "b"], ["b", "c"], ["c"], ["a"]]


@pytest.mark.parametrize(
    "text", ["", "\0", "a/b\\c", "\u2028\u0085", "🐕\u200d🦺 שלום", "\ufffd\ud7ff", "e\u0301", "\U0010ffff"]
)
def test_odd_text_in_keys_and_columns_is_kept(tmp_path, text):
    table = four(group_id=[text] * 4, rollout_id=None, prompt=[text] * 4, extra=[text, None, "", text])
    scored = score(tmp_path, table, "-e", "ktae(base=dr_grpo,tf=off)")
    assert scored["group_id"].to_pylist() == scored["prompt"].to_pylist() == [text] * 4
    assert scored["extra"].to_pylist() == [text, None, "", text]
    assert set(tokens_of(tmp_path)["group_id"].to_pylist()) == {text}


# --- writers of other libraries -------------------------------------------------------------------------------------


def test_pandas_file_with_arrays_and_categories_is_read(tmp_path):
    frame = pd.DataFrame(
        {
            "uid": pd.Categorical(["g"] * 4),
            "reward": [1, 0, 0, 0],
            "response_ids": [np.array(ids, np.int64) for ids in IDS],
            "response_mask": [np.ones(len(ids), bool) for ids in IDS],
        },
        index=[5, 7, 9, 11],
    )
    frame.to_parquet(tmp_path / "in.parquet")
    scored = score(tmp_path, [tmp_path / "in.parquet"], "-e", "grpo")
    assert scored["advantages"].to_pylist() == GRPO
    back = pd.read_parquet(tmp_path / "out.parquet")
    assert back["uid"].tolist() == ["g"] * 4 and back["advantages"][0].tolist() == pytest.approx([HIGH] * 2)


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["g"])], ids=str)
def test_polars_file_is_read(tmp_path, kind):
    frame = pl.DataFrame({"uid": pl.Series(["g"] * 4).cast(kind), "reward": [1.0, 0, 0, 0], "response_ids": IDS})
    frame.write_parquet(tmp_path / "in.parquet")
    scored = score(tmp_path, [tmp_path / "in.parquet"], "-e", "grpo")
    assert scored["advantages"].to_pylist() == GRPO
    assert pl.read_parquet(tmp_path / "out.parquet")["advantages"].to_list() == GRPO


def test_file_with_huggingface_features_is_read(tmp_path):
    # What `datasets` writes: int64 lists, a null-typed column, nested messages, features as JSON in the metadata.
    table = four(
        response_ids=pa.array(IDS, pa.list_(pa.int64())),
        tool_calls=pa.nulls(4),
        messages=[[{"role": "user", "content": "2+2?"}]] * 4,
    ).replace_schema_metadata({b"huggingface": b'{"info": {"features": {}}}'})
    scored = score(tmp_path, table, "-e", "grpo")
    assert scored["advantages"].to_pylist() == GRPO
    assert scored["messages"].to_pylist() == table["messages"].to_pylist()
    assert scored["tool_calls"].type == pa.null()
    assert scored.schema.metadata[b"huggingface"] == b'{"info": {"features": {}}}'


def test_file_without_arrow_schema_is_read(tmp_path):
    path = write(
        tmp_path / "in.parquet", four(response_ids=pa.array(IDS, pa.large_list(pa.int32()))), store_schema=False
    )
    assert score(tmp_path, [path], "-e", "grpo")["advantages"].to_pylist() == GRPO


# --- several files under one schema ---------------------------------------------------------------------------------

PAIRS = {
    "list and large_list": (pa.array(IDS, pa.list_(pa.int32())), pa.array(IDS, pa.large_list(pa.int64()))),
    "list and list_view": (pa.array(IDS, pa.list_(pa.int64())), pa.array(IDS, pa.list_view(pa.int32()))),
    "int32 and uint8": (pa.array(IDS, pa.list_(pa.int32())), pa.array(IDS, pa.list_(pa.uint8()))),
    "list and list<null>": (pa.array(IDS), pa.array([[], [], [], []], pa.list_(pa.null()))),
}


@pytest.mark.parametrize("order", [0, 1], ids=["as given", "reversed"])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_files_with_other_list_types_are_read_together(tmp_path, pair, order):
    tables = [four(group_id=[name] * 4, response_ids=ids) for name, ids in zip("xy", pair, strict=True)]
    paths = [write(tmp_path / f"{i}.parquet", table) for i, table in enumerate(tables)]
    scored = score(tmp_path, paths[:: 1 - 2 * order], "-e", "grpo")
    expected = [ids.to_pylist() for ids in pair][:: 1 - 2 * order]
    assert scored["response_ids"].to_pylist() == [*expected[0], *expected[1]]
    assert [len(row) for row in scored["advantages"].to_pylist()] == [len(row) for row in [*expected[0], *expected[1]]]


@pytest.mark.parametrize("order", [0, 1], ids=["as given", "reversed"])
@pytest.mark.parametrize(
    "kinds",
    [
        (pa.dictionary(pa.int32(), pa.string()), pa.string()), (pa.string(), pa.large_string()),
        (pa.string(), pa.string_view()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.dictionary(pa.int32(), pa.string())),
    ],
    ids=str,
)  # fmt: skip
def test_files_with_other_string_types_share_their_groups(tmp_path, kinds, order):
    halves = four().slice(0, 2), four().slice(2)
    paths = []
    for i, (half, kind) in enumerate(zip(halves, kinds, strict=True)):
        half = half.set_column(0, "group_id", half["group_id"].cast(kind))
        paths.append(write(tmp_path / f"{i}.parquet", half))
    got = score(tmp_path, paths[:: 1 - 2 * order], "-e", "grpo")["advantages"].to_pylist()
    assert got == [*GRPO[2:], *GRPO[:2]] if order else GRPO


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_files_with_other_optional_columns_make_a_union(tmp_path, order):
    tables = [
        four(
            group_id=["0"] * 4,
            response_mask=pa.array([[], [], [], []], pa.list_(pa.null())),
            response_ids=[[], [], [], []],
        ),
        four(group_id=["1"] * 4, response_mask=[[0, 1], [1, 1], [1], [1]], note=["n"] * 4),
        four(group_id=["2"] * 4, s=[{"a": 1}] * 4),
    ]
    for i, table in enumerate(tables):
        write(tmp_path / f"{i}.parquet", table)
    scored = score(tmp_path, [tmp_path / f"{i}.parquet" for i in order], "-e", "grpo")
    rows = {(row["group_id"], row["rollout_id"]): row for row in scored.to_pylist()}
    assert rows["1", "a"]["advantages"] == [0.0, pytest.approx(HIGH)] and rows["2", "a"]["advantages"] == GRPO[0]
    assert (rows["0", "a"]["advantages"], rows["0", "a"]["note"], rows["1", "a"]["note"]) == ([], None, "n")
    assert rows["1", "a"]["response_mask"] == [0, 1] and rows["2", "a"]["response_mask"] is None
    assert rows["2", "a"]["s"] == {"a": 1} and rows["1", "a"]["s"] is None
    assert scored["group_id"].to_pylist() == [str(i) for i in order for _ in range(4)]


def test_files_that_cannot_be_joined_name_the_column(tmp_path, capsys):
    paths = [
        write(tmp_path / "a.parquet", four(extra=["x"] * 4)),
        write(tmp_path / "b.parquet", four(extra=[{"x": 1}] * 4)),
    ]
    message = refusal(capsys, tmp_path, "score", *paths, "-o", tmp_path / "o.parquet")
    assert "b.parquet: column 'extra' is struct<x: int64> here and string in" in message


def test_values_that_do_not_fit_the_common_type_name_file_and_column(tmp_path, capsys):
    paths = [
        write(tmp_path / "a.parquet", four(extra=[0.5] * 4)),
        write(tmp_path / "b.parquet", four(extra=[2**60 + 1] * 4)),
    ]
    message = refusal(capsys, tmp_path, "score", *paths, "-o", tmp_path / "o.parquet")
    assert "b.parquet: column 'extra' is int64 here" in message


# --- row groups -----------------------------------------------------------------------------------------------------


def test_row_groups_without_rows_are_passed_over(tmp_path):
    table = four()
    with pq.ParquetWriter(tmp_path / "in.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 3), table.slice(0, 0), table.slice(3), table.slice(0, 0)):
            writer.write_table(part)
    assert pq.read_metadata(tmp_path / "in.parquet").num_row_groups == 5
    assert score(tmp_path, [tmp_path / "in.parquet"], "-e", "grpo")["advantages"].to_pylist() == GRPO


def test_file_without_rows_beside_others_is_passed_over(tmp_path):
    paths = [write(tmp_path / "a.parquet", four().slice(0, 0)), write(tmp_path / "b.parquet", four())]
    assert score(tmp_path, paths, "-e", "grpo")["advantages"].to_pylist() == GRPO


def test_input_without_rows_is_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four().slice(0, 0))
    assert "in.parquet: no rollouts (0 rows)" in refusal(capsys, tmp_path, "score", path)


def test_thousands_of_tiny_row_groups_come_out_as_one(tmp_path):
    n = 5000
    table = pa.table({"group_id": np.arange(n) // 4, "reward": np.arange(n) % 4 == 0, "response_ids": [[1, 2]] * n})
    path = write(tmp_path / "in.parquet", table, row_group_size=1)
    assert pq.read_metadata(path).num_row_groups == n
    scored = score(tmp_path, [path], "-e", "grpo")
    assert [row[0] for row in scored["advantages"].to_pylist()] == pytest.approx([HIGH, LOW, LOW, LOW] * (n // 4))
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 1


def test_one_huge_row_group_is_read_in_small_batches(tmp_path):
    n, length = 200_000, 24
    ids = pa.ListArray.from_arrays(
        np.arange(0, n * length + 1, length, dtype=np.int32), pa.array(np.arange(n * length) % 997)
    )
    path = write(
        tmp_path / "in.parquet", pa.table({"group_id": np.arange(n) // 8, "response_ids": ids}), row_group_size=n
    )
    assert pq.read_metadata(path).num_row_groups == 1
    sizes = [(len(batch), batch.nbytes) for batch in ParquetRollouts([path]).batches()]
    assert sum(rows for rows, _ in sizes) == n
    assert max(size for _, size in sizes) < 4 * parquet_reader.BATCH_BYTES


class Choking:
    """A Parquet file whose nested column cannot be assembled for more than `most` rows at once."""

    def __init__(self, path, most: int):
        self.file, self.most, self.metadata, self.asked = pq.ParquetFile(path), most, pq.read_metadata(path), []

    def iter_batches(self, size: int, **options):
        self.asked.append(size)
        for i, batch in enumerate(self.file.iter_batches(size, **options)):
            if size > self.most and i == 1:
                raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")
            yield batch


def test_column_of_more_than_two_gigabytes_is_read_in_smaller_batches(tmp_path, monkeypatch):
    path = write(tmp_path / "in.parquet", pa.table({"a": [[i] for i in range(300)]}))
    monkeypatch.setattr(parquet_reader, "BATCH_BYTES", 2000)
    file = Choking(path, 10)
    batches = list(parquet_reader.row_group_batches(file, path, 0, ["a"]))
    assert [row for batch in batches for row in batch["a"].to_pylist()] == [[i] for i in range(300)]
    assert len(file.asked) == 3 and file.asked[1] == file.asked[0] // 8 and file.asked[2] < 10
    with pytest.raises(InputError, match=f"row group 0, row {file.asked[0]}: a column cannot be read"):
        list(parquet_reader.row_group_batches(Choking(path, 0), path, 0, ["a"]))


def test_batch_size_changes_nothing(tmp_path, monkeypatch):
    table = pa.concat_tables([four(group_id=[str(i)] * 4) for i in range(30)])
    whole = score(tmp_path, table)
    monkeypatch.setattr(parquet_reader, "BATCH_BYTES", 1)
    source = open_rollouts([str(tmp_path / "in.parquet")], str(tmp_path))
    assert {len(batch) for batch in source.batches()} == {1}
    assert score(tmp_path, table).equals(whole)


# --- public rollouts, where they lie beside the project -------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="no shared data")
@pytest.mark.parametrize("name", ["rg_procedural_qwen3b", "rg_llama3b_amc_aime_50x"])
def test_public_dump_can_be_inspected(name, capsys):
    assert ktae("inspect", SHARED / "data" / f"{name}.parquet") == 0
    assert f"{pq.read_metadata(SHARED / 'data' / f'{name}.parquet').num_rows} rollouts" in capsys.readouterr().out


# --- formats --------------------------------------------------------------------------------------------------------

VERL = {"input": "p", "output": "r", "gts": "1", "score": 1.0, "step": 1}
OWN = {"group_id": "a", "response_ids": [1], "reward": 1.0}


def dump(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def opened(directory, *inputs, format="auto", **options):
    heard = []
    read = ReadInputs(format, ReaderOptions(notice=heard.append, **options))
    return open_rollouts([str(text) for text in inputs], str(directory), read), heard


def test_reader_is_recognised_by_the_names_in_the_file_and_printed(tmp_path):
    source, heard = opened(tmp_path, dump(tmp_path / "5.jsonl", VERL))
    assert source.reader == "verl"
    assert heard == ["read as verl (input, output, gts, score, step)"]
    source, heard = opened(tmp_path, dump(tmp_path / "own.jsonl", OWN))
    assert heard == ["read as jsonl (group_id, response_ids, reward)"]


def test_named_reader_is_taken_whatever_the_file_looks_like(tmp_path):
    source, _ = opened(tmp_path, dump(tmp_path / "5.jsonl", VERL), format="jsonl")
    assert source.reader == "jsonl"
    assert source.schema.names == list(VERL)


def test_files_of_several_formats_are_named(tmp_path):
    dump(tmp_path / "d" / "1.jsonl", VERL)
    dump(tmp_path / "d" / "2.jsonl", OWN)
    write(tmp_path / "d" / "3.parquet", four())
    with pytest.raises(
        InputError, match=r"1.jsonl is read as verl; .*2.jsonl is read as jsonl; .*3.parquet is read as parquet"
    ):
        opened(tmp_path, tmp_path / "d")
    assert opened(tmp_path, tmp_path / "d", format="parquet")[0].n_rows == 4


def test_directory_of_dumps_leaves_out_what_is_no_rollouts(tmp_path):
    directory = tmp_path / "d"
    for name in ("2.jsonl", "1.jsonl"):
        dump(directory / name, VERL)
    for name in ("metadata.json", "run_metadata.jsonl", "tokenizer.json", ".3.jsonl", "aggregated_results.jsonl"):
        (directory / name).write_text("{}")
    (directory / "STABLE").touch()
    source, _ = opened(tmp_path, directory)
    assert source.n_rows == 2
    assert [path.name for path in source.paths] == ["1.jsonl", "2.jsonl"]


def test_scored_file_beside_its_dump_is_not_read_again(tmp_path):
    directory = tmp_path / "d"
    dump(directory / "1.jsonl", OWN, OWN | {"reward": 0})
    assert ktae("score", directory / "1.jsonl", "-q") == 0
    assert sorted(path.name for path in directory.iterdir()) == [
        "1.jsonl",
        "1.scored.parquet",
        "1.scored.tokens.parquet",
    ]
    assert opened(tmp_path, directory)[0].n_rows == 2


@pytest.mark.parametrize("packed", [lambda raw: raw, gzip.compress, lambda raw: pa.compress(raw, "zstd", asbytes=True)])
def test_json_lines_come_through_standard_input(tmp_path, monkeypatch, packed):
    raw = "".join(json.dumps(OWN | {"reward": r}) + "\n" for r in (1, 0)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed(raw))))
    assert ktae("score", "-", "-o", tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet")["rollout_id"].to_pylist() == ["stdin:1", "stdin:2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x00\x01\x02", "not a file of rollouts"),
        (b"[1, 2]\n", "no reader knows this layout (found a list)"),
        (b"[{}, \n", "not a file of rollouts"),
        (b"{}\n", "no group column"),
        (b"PK\x03\x04junk", "torch.save is damaged"),
        (b"\x80\x04\x95junk", "a Python pickle, which can run any program when it is read; give --unsafe-pickle"),
        (b"\x1f\x8bjunk", "not a file of rollouts"),
        (b"\x28\xb5\x2f\xfdjunk", "compressed file is damaged"),
    ],
)
def test_file_that_no_reader_knows_exits_2(tmp_path, capsys, content, message):
    (tmp_path / "x.jsonl").write_bytes(content)
    assert message in refusal(capsys, tmp_path, "score", tmp_path / "x.jsonl")


def test_torn_dump_warns_and_strict_refuses_it(tmp_path, capsys):
    path = dump(tmp_path / "x.jsonl", OWN, OWN | {"reward": 0})
    path.write_text(path.read_text() + '{"group_id": "a", "resp')
    assert ktae("score", path, "-o", tmp_path / "out.parquet") == 0
    err = capsys.readouterr().err
    assert "x.jsonl, line 3: the last line is torn" in err
    assert "1 torn last lines left out" in err
    assert "--strict, nothing is written" in refusal(
        capsys, tmp_path, "score", path, "-o", tmp_path / "2.parquet", "--strict"
    )


def test_columns_added_needs_parquet(tmp_path, capsys):
    path = dump(tmp_path / "x.jsonl", OWN)
    assert "ktae convert" in refusal(capsys, tmp_path, "score", path, "--columns", "added")


def test_every_reader_is_declared():
    for name in catalogue.names("readers"):
        declared = catalogue.declaration("readers", name)
        assert declared.shape in ("lines", "document", "parquet", "torch", "pickle"), name
        assert declared.files, name
        assert all(suffix.startswith(".") for suffix in declared.files), name
        assert set(declared.supplies) <= {"*", *BY_NAME}, name
        assert callable(load_reader(name))


def test_suppliers_are_the_readers_that_declare_a_column():
    assert {"jsonl", "parquet"} <= set(catalogue.suppliers("sum_pi_squared"))
    assert "verl" in catalogue.suppliers("reward")
    assert "verl" not in catalogue.suppliers("response_ids")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)
LINE_READERS = [name for name in catalogue.names("readers") if catalogue.declaration("readers", name).shape == "lines"]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(LINE_READERS), st.sampled_from(["auto", "named"]))
def test_random_json_of_a_format_gives_rows_or_one_clear_error(data, name, how):
    keys = [
        *catalogue.declaration("readers", name).keys,
        *data.draw(st.lists(st.sampled_from(list(BY_NAME)), max_size=3)),
    ]
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(keys, JSON)), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        try:
            source, _ = opened(Path(directory), path, format="auto" if how == "auto" else name)
            table = pa.Table.from_batches(list(source.batches()), source.schema)
            table.validate(full=True)
            source.row_names(np.arange(source.n_rows))
        except KtaeError as error:
            assert "\n" not in str(error)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"PAR1", b"PK\x03\x04", b"\x80\x04", b"\x1f\x8b\x08", b"{", b"["]),
    st.booleans(),
)
def test_random_bytes_give_one_clear_error(content, magic, unsafe):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.bin"
        path.write_bytes(magic + content)
        try:
            opened(Path(directory), path, unsafe_pickle=unsafe)
        except KtaeError as error:
            assert str(path) in str(error)
