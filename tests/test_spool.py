"""A foreign dump, spooled: every row once, in order, under one schema, at the place where the user finds it."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import InputError
from ktae_cli.inputs import ReadInputs, open_rollouts
from ktae_cli.readers import _spool
from ktae_cli.readers._rows import CANONICAL
from ktae_cli.readers._spool import spool
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions


class Declared:
    threshold = None

    def __init__(self, shape="lines"):
        self.shape = shape


def spooled(directory: Path, files: dict[str, list], read=None, shape="lines", **chosen):
    paths = []
    for name, rows in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if shape == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(path)
    read = read or (lambda records, options: (record.value for record in records))
    return spool("test", read, Declared(shape), paths, str(directory), ReaderOptions(**chosen))


def rows_of(source) -> list[dict]:
    return pa.Table.from_batches(list(source.batches()), source.schema).to_pylist()


def test_rows_keep_their_order_and_name_their_line(tmp_path):
    source = spooled(tmp_path, {"a.jsonl": [{"x": 1}, {"x": 2}], "b.jsonl": [{"x": 3}]})
    assert rows_of(source) == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert [source.place(i) for i in (1, 2)] == [f"{tmp_path}/a.jsonl, line 2", f"{tmp_path}/b.jsonl, line 1"]
    assert source.row_names(np.array([2, 0])) == ["b.jsonl:1", "a.jsonl:1"]
    assert source.n_rows == 3


def test_files_of_one_name_are_told_apart_by_their_directories(tmp_path):
    source = spooled(tmp_path, {"1/r.jsonl": [{"x": 1}], "2/r.jsonl": [{"x": 2}]})
    assert source.row_names(np.arange(2)) == ["1/r.jsonl:1", "2/r.jsonl:1"]


def test_rollouts_of_one_line_are_counted_within_it(tmp_path):
    def read(records, options):
        for record in records:
            for value in record.value["xs"]:
                yield {"x": value}

    source = spooled(tmp_path, {"a.jsonl": [{"xs": [1, 2]}, {"xs": []}, {"xs": [3]}]}, read)
    assert source.row_names(np.arange(3)) == ["a.jsonl:1:0", "a.jsonl:1:1", "a.jsonl:3"]
    assert source.place(1) == f"{tmp_path}/a.jsonl, line 1, rollout 1"


def test_row_of_a_batch_is_that_of_the_file_or_the_one_it_names(tmp_path):
    def read(records, options):
        for record in records:
            yield record.value
            yield {"x": 7, SOURCE_ROW: 1}

    source = spooled(tmp_path, {"a.parquet": [{"x": 1}, {"x": 2}]}, read, "parquet")
    assert rows_of(source) == [{"x": 1}, {"x": 2}, {"x": 7}]
    assert [source.place(i) for i in range(2)] == [
        f"{tmp_path}/a.parquet, row 0",
        f"{tmp_path}/a.parquet, row 1, rollout 0",
    ]


def test_categories_inside_lists_and_structs_are_read_from_every_batch(tmp_path):
    def read(records, options):
        for _ in records:
            for text in ("a", "b"):
                one = pa.array([text]).dictionary_encode()
                nested = [pa.ListArray.from_arrays([0, 1], one), pa.StructArray.from_arrays([one], ["s"])]
                yield pa.RecordBatch.from_arrays(nested, ["list", "struct"])

    source = spooled(tmp_path, {"a.parquet": [{"x": 1}]}, read, "parquet")
    assert rows_of(source) == [{"list": [t], "struct": {"s": t}} for t in "ab"]


def test_rows_without_an_optional_column_do_not_begin_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(_spool, "HELD_ROWS", 1)
    rows = [{"x": 1, "y": "a"}, {"x": 2}, {"x": None, "y": "b"}, {"x": 0.5, "y": "c"}, {"x": 3, "y": None}]
    source = spooled(tmp_path, {"a.jsonl": rows})
    assert [row | {"y": row.get("y")} for row in rows] == rows_of(source)
    assert len(source.parts.paths) == 3  # x is whole, a number, whole
    assert source.bytes_of(["x"]) == 4 * 8
    assert [batch.num_rows for batch in source.batches([])] == [5]


@pytest.mark.parametrize(
    ("values", "dtype", "taken"),
    [
        ([None, 1, 2.5], pa.float64(), [None, 1.0, 2.5]),
        ([1, "a", None], pa.string(), ["1", "a", None]),
        ([2**60, 0.5], pa.string(), [str(2**60), "0.5"]),
        ([[], [1], None, [0.5]], pa.list_(pa.float64()), [[], [1.0], None, [0.5]]),
        ([{"a": 1}, 3, True, [1]], pa.string(), ['{"a":1}', "3", "true", "[1]"]),
    ],
)
def test_type_that_widens_late_is_the_same_as_in_one_batch(tmp_path, monkeypatch, values, dtype, taken):
    whole = spooled(tmp_path / "one", {"a.jsonl": [{"x": v} for v in values]})
    monkeypatch.setattr(_spool, "HELD_ROWS", 1)
    parts = spooled(tmp_path / "many", {"a.jsonl": [{"x": v} for v in values]})
    for source in (whole, parts):
        assert source.schema.field("x").type == dtype
        assert [row["x"] for row in rows_of(source)] == taken


def test_late_column_is_null_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_spool, "HELD_ROWS", 2)
    source = spooled(tmp_path, {"a.jsonl": [{"x": 1}, {"x": 2}, {"x": 3, "late": "y"}]})
    assert rows_of(source)[0] == {"x": 1, "late": None}
    assert [row for batch in source.batches(["late"]) for row in batch.to_pylist()] == [
        {"late": None}, {"late": None}, {"late": "y"}
    ]  # fmt: skip


def test_canonical_value_of_a_wrong_kind_names_file_and_line(tmp_path):
    rows = [{"reward": 1.0}, {"reward": 0.5}, {"reward": "much"}]
    with pytest.raises(InputError, match=r"b.jsonl, line 3: reward is 'much', expected a number"):
        spooled(tmp_path, {"a.jsonl": rows[:2], "b.jsonl": rows})


def test_rows_of_unequal_lists_are_dropped_on_demand_and_places_stay(tmp_path):
    rows = [{"response_ids": [1, 2], "response_mask": m} for m in ([1, 1], [1], None, [0, 1])]
    options = {"on_mismatch": "drop", "counts": {}}
    source = spooled(tmp_path, {"a.jsonl": rows, "b.jsonl": rows[1:]}, **options)
    assert source.row_names(np.arange(source.n_rows)) == [
        "a.jsonl:1",
        "a.jsonl:3",
        "a.jsonl:4",
        "b.jsonl:2",
        "b.jsonl:3",
    ]
    assert len(rows_of(source)) == 5
    assert options["counts"] == {"rows dropped, their lists of unequal length": 2}


def test_what_a_reader_stumbles_over_is_one_line_with_the_place(tmp_path):
    def read(records, options):
        for record in records:
            yield {"x": record.value["x"]["y"]}

    with pytest.raises(InputError, match=r"a.jsonl, line 2: not as test writes it \(TypeError") as caught:
        spooled(tmp_path, {"a.jsonl": [{"x": {"y": 1}}, {"x": 2}]}, read)
    assert "\n" not in str(caught.value)


def test_dump_without_a_rollout_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no rollouts in what was read as test"):
        spooled(tmp_path, {"a.jsonl": [{"x": 1}]}, lambda records, options: (r for r in list(records) if False))


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    rows = [{"response": "x" * 2000, "i": i} for i in range(500)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(text * 60)
    before, peak = pa.total_allocated_bytes(), 0
    seen = 0

    def read(records, options):
        nonlocal peak, seen
        for record in records:
            seen += 1
            if seen % 500 == 0:
                peak = max(peak, pa.total_allocated_bytes() - before)
            yield record.value

    source = spool("test", read, Declared(), [tmp_path / "a.jsonl"], str(tmp_path), ReaderOptions())
    assert source.n_rows == 30_000
    assert peak < 12 << 20  # of 60 MB of text
    for columns in (None, ["i"]):
        peaks = [pa.total_allocated_bytes() - before for _ in source.batches(columns)]
        assert max(peaks) < 20 << 20


# --- any canonical table, as JSON lines and as Parquet --------------------------------------------------------------

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
FLOATS = st.floats(width=32, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = {
    "group_id": TEXT, "rollout_id": TEXT, "prompt": TEXT, "response": TEXT, "prompt_ids": IDS, "response_ids": IDS,
    "response_tokens": st.lists(TEXT, max_size=3), "response_mask": st.lists(st.booleans(), max_size=3),
    "reward": st.floats(allow_nan=False), "correct": st.booleans(), "old_log_probs": st.lists(FLOATS, max_size=3),
    "rewards": st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=2), "step": st.integers(-(2**63), 2**63 - 1),
    "finish_reason": TEXT, "note": TEXT, "count": st.integers(-(2**63), 2**63 - 1),
}  # fmt: skip


@st.composite
def tables(draw) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
    rows = draw(st.integers(1, 5))
    columns = {}
    for name in names:
        values = [draw(st.none() | VALUES[name]) for _ in range(rows)]
        if name not in CANONICAL and not any(value is not None for value in values):
            values[0] = draw(VALUES[name])
        dtype = CANONICAL.get(name) or (pa.string() if name == "note" else pa.int64())
        pairs = [list(v.items()) if isinstance(v, dict) else v for v in values]
        columns[name] = pa.array(pairs, dtype)
    return pa.table(columns)


@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(1, 3))
def test_canonical_table_is_the_same_from_json_lines_and_from_parquet(table, held):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_spool, "HELD_ROWS", held)
        lines, parquet = Path(directory) / "t.jsonl", Path(directory) / "t.parquet"
        pq.write_table(table, parquet)
        names = table.column_names
        with open(lines, "w") as file:
            for row in table.to_pylist(maps_as_pydicts="strict"):
                file.write(json.dumps({name: row[name] for name in names}) + "\n")
        found = [open_rollouts([str(p)], directory, ReadInputs(f)) for p, f in ((lines, "jsonl"), (parquet, "parquet"))]
        read = [pa.Table.from_batches(list(source.batches()), source.schema) for source in found]
    assert read[0].schema.names == read[1].schema.names == names
    assert read[0].cast(read[1].schema).equals(read[1])
    assert read[1].equals(table)
