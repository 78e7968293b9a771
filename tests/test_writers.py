"""What is written: row groups, footers, statistics, list columns, and files that appear whole or not at all."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import InputError
from ktae_cli.writers import parquet as parquet_writer
from ktae_cli.writers.atomic import atomic_path
from ktae_cli.writers.parquet import ParquetOutput
from ktae_cli.writers.scored import list_column
from tests.rollout_files import four, score

# --- atomic names ---------------------------------------------------------------------------------------------------


def test_file_appears_under_its_name_when_done(tmp_path):
    target = tmp_path / "out"
    with atomic_path(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists() and temporary.parent == tmp_path and temporary.name.startswith(".")
    assert target.read_text() == "whole" and [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_error_removes_the_temporary_and_keeps_the_previous(tmp_path, error):
    target = tmp_path / "out"
    target.write_text("previous")
    with pytest.raises(error), atomic_path(target, force=True) as temporary:
        temporary.write_text("half")
        raise error
    assert target.read_text() == "previous" and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_existing_target_needs_force(tmp_path):
    target = tmp_path / "out"
    target.write_text("previous")
    with pytest.raises(InputError, match="exists already; use --force"), atomic_path(target):
        pass
    with atomic_path(target, force=True) as temporary:
        temporary.write_text("next")
    assert target.read_text() == "next"


def test_target_that_appears_meanwhile_is_kept_without_force(tmp_path):
    target = tmp_path / "out"
    with pytest.raises(InputError, match="exists already"), atomic_path(target) as temporary:
        temporary.write_text("second")
        target.write_text("first")
    assert target.read_text() == "first" and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_force_writes_through_a_symbolic_link(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "out", tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(InputError, match="exists already"), atomic_path(link):
        pass
    for text in ("new", "newer"):
        with atomic_path(link, force=True) as temporary:
            temporary.write_text(text)
        assert link.is_symlink() and target.read_text() == text
    assert [p.name for p in target.parent.iterdir()] == ["out"]


# --- Parquet output -------------------------------------------------------------------------------------------------


def write_all(path, batches, plain=(), metadata=None) -> pq.FileMetaData:
    output = ParquetOutput(path, batches[0].schema, plain)
    for batch in batches:
        output.write(batch)
    output.close(metadata)
    return pq.read_metadata(path)


def test_small_batches_are_gathered_in_one_row_group(tmp_path):
    batches = [pa.record_batch({"a": pa.array([i, i])}) for i in range(3000)]
    found = write_all(tmp_path / "out.parquet", batches)
    assert (found.num_row_groups, found.num_rows) == (1, 6000)
    assert pq.read_table(tmp_path / "out.parquet")["a"].to_pylist() == [i for i in range(3000) for _ in range(2)]


def test_row_groups_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 8000)
    values = np.arange(10_000)
    found = write_all(
        tmp_path / "out.parquet", [pa.record_batch({"a": values[i : i + 2500]}) for i in range(0, 10_000, 2500)]
    )
    rows = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
    assert sum(rows) == 10_000 and max(rows) <= 1000 and min(rows) > 300
    assert pq.read_table(tmp_path / "out.parquet")["a"].to_numpy().tolist() == values.tolist()


def test_row_larger_than_a_row_group_stands_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 1000)
    found = write_all(tmp_path / "out.parquet", [pa.record_batch({"a": ["x", "y" * 5000, "z"]})])
    assert found.num_row_groups in (2, 3)
    assert [len(text) for text in pq.read_table(tmp_path / "out.parquet")["a"].to_pylist()] == [1, 5000, 1]


def test_default_row_groups_stay_below_64_megabytes(tmp_path):
    assert parquet_writer.ROW_GROUP_BYTES <= 64 << 20
    random = np.random.default_rng(0)
    batch = pa.record_batch({"a": random.random(1 << 20)})
    found = write_all(tmp_path / "out.parquet", [batch] * 12, plain=("a",))
    sizes = [found.row_group(i).total_byte_size for i in range(found.num_row_groups)]
    assert 2 <= len(sizes) <= 8 and max(sizes) < 64 << 20


def test_output_of_no_rows_is_a_file_with_a_schema(tmp_path):
    found = write_all(tmp_path / "out.parquet", [pa.record_batch({"a": pa.array([], pa.int32())})], metadata={"x": 1})
    assert found.num_rows == 0
    assert pq.read_schema(tmp_path / "out.parquet").field("a").type == pa.int32()
    assert json.loads(found.metadata[b"ktae"]) == {"x": 1}


def test_metadata_keeps_text_that_is_not_ascii(tmp_path):
    found = write_all(tmp_path / "out.parquet", [pa.record_batch({"a": [1]})], metadata={"name": "résumé 🐕.parquet"})
    assert json.loads(found.metadata[b"ktae"])["name"] == "résumé 🐕.parquet"


def column(found: pq.FileMetaData, path: str):
    group = found.row_group(0)
    return next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == path)


def test_statistics_stand_on_scalars_only(tmp_path):
    table = four(
        prompt=["a long text " * 200] * 4,
        tag=pa.array(["t"] * 4).dictionary_encode(),
        view=pa.array(["v"] * 4, pa.string_view()),
        data=pa.array([b"b"] * 4, pa.large_binary()),
        info=[{"n": 1, "text": "x", "ids": [1]}] * 4,
    )
    score(tmp_path, table)
    found = pq.read_metadata(tmp_path / "out.parquet")
    without = ["group_id", "rollout_id", "prompt", "tag", "view", "data", "info.text", "info.ids.list.element"]
    without += [f"{name}.list.element" for name in ("response_ids", "advantages", "key_weight")]
    assert [path for path in without if column(found, path).statistics is not None] == []
    assert (column(found, "reward").statistics.min, column(found, "reward").statistics.max) == (0.0, 1.0)
    assert column(found, "info.n").statistics.max == 1


def test_footer_stays_small_beside_long_text(tmp_path):
    n = 400
    table = pa.table(
        {
            "uid": np.arange(n) // 4, "prompt": [f"{i} " * 2000 for i in range(n)], "reward": np.arange(n) % 2,
            "response_ids": [[i] for i in range(n)],
        }
    )  # fmt: skip
    score(tmp_path, table)
    found = pq.read_metadata(tmp_path / "out.parquet")
    assert found.num_row_groups == 1
    assert found.serialized_size < 8000


def test_codec_is_zstd(tmp_path):
    score(tmp_path, four())
    found = pq.read_metadata(tmp_path / "out.parquet").row_group(0)
    assert {found.column(i).compression for i in range(found.num_columns)} == {"ZSTD"}


def test_advantages_are_not_dictionary_encoded(tmp_path):
    score(tmp_path, four())
    found = pq.read_metadata(tmp_path / "out.parquet")
    assert "RLE_DICTIONARY" not in column(found, "advantages.list.element").encodings
    assert "RLE_DICTIONARY" in column(found, "group_id").encodings


# --- list columns ---------------------------------------------------------------------------------------------------


def test_list_column_tells_null_from_empty():
    made = list_column(np.array([1, 2, 3], np.float32), np.array([2, 0, 0, 1]), np.array([True, False, True, True]))
    assert made.type == pa.list_(pa.float32())
    assert made.to_pylist() == [[1.0, 2.0], None, [], [3.0]]


def test_list_column_of_booleans():
    made = list_column(np.array([True, False]), np.array([1, 1]), np.array([True, True]))
    assert made.type == pa.list_(pa.bool_()) and made.to_pylist() == [[True], [False]]
