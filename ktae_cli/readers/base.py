"""What readers share: their declaration, what they are given, and Arrow access of every physical list type."""

import hashlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError, MissingColumnError

READ_IN_PLACE = ("parquet", "memory")
"""Readers whose rows are read where they lie, under their own names; others are spooled under canonical names."""

SOURCE_ROW = "__row__"
"""A row, or a batch, that a reader of Parquet yields may carry under this name the row of the record's batch that it
comes from; it is taken off again."""


class Record(NamedTuple):
    """One piece of a foreign file as its reader sees it.

    value: the object of one JSON line, of one JSON document, of one `.pt` or pickle, or a `pa.RecordBatch` of Parquet.
    line: counted from 1 in JSON lines, the first row of the batch counted from 0 in Parquet, else 0.
    """

    value: Any
    file: str
    line: int


@dataclass(frozen=True)
class ReaderOptions:
    """How a foreign file is read, under the options' names on the command line."""

    unsafe_pickle: bool = False
    skip_bad_lines: bool = False
    on_mismatch: str = "error"
    """A row whose lists disagree in length: "error", or "drop" it and count it."""
    keep_duplicates: bool = False
    correct_column: str | None = None
    """The column of `--map correct=COLUMN`, for readers that find several verdicts."""
    notice: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    counts: dict[str, int] = field(default_factory=dict)
    """What was counted on the way, said once in the end: "duplicate rows dropped" -> 3."""

    taken: set[str] = field(default_factory=set)
    """What of --map the reader has acted on, so that it is not looked for among the columns again."""

    def take_correct(self, names: Container[str]) -> str | None:
        """Return the column of `--map correct=COLUMN` where it is among the names that a reader can choose from."""
        if self.correct_column is None or self.correct_column not in names:
            return None
        self.taken.add("correct")
        return self.correct_column

    def count(self, what: str, times: int = 1) -> None:
        """Count something that is said once in the end."""
        self.counts[what] = self.counts.get(what, 0) + times


def reader(
    *,
    files: tuple[str, ...],
    shape: str,
    keys: tuple[str, ...],
    supplies: tuple[str, ...],
    threshold: float | None = None,
) -> Callable[[Callable], Callable]:
    """Declare a reader: literals only, read from the source by `ktae_cli.catalogue` without importing the file.

    files: suffixes of its files. shape: "lines" (JSON lines), "document" (one JSON document a file), "parquet" (batches
    of a foreign layout), "torch" (`.pt`, restricted unpickling) or "pickle" (with `--unsafe-pickle` alone). keys:
    names that must all stand in the first record for the format to be recognised; finer than that, the attribute `fits`
    of the function, called with the first record or the Parquet schema. supplies: canonical columns, `*` for every one.
    threshold: a reward above it is right where the format has no verdict (default 0).
    """
    return lambda function: function


class Source(Protocol):
    """What a reader gives: rows under one schema, read from the beginning as often as they are asked for."""

    reader: str
    schema: pa.Schema
    n_rows: int

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named top-level ones."""

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes columns take in memory."""

    def place(self, row: int) -> str:
        """Name a row for a message."""

    def row_names(self, rows: np.ndarray) -> list[str]:
        """Return a stable name of each row, for rollouts without an id."""

    def own_metadata(self) -> dict | None:
        """Return what `ktae` wrote about the rows, or None."""

    def fingerprints(self) -> list[dict[str, str]]:
        """Return the base name and a hash of each file."""


def has_path(schema: pa.Schema, path: str) -> bool:
    """Tell whether a column, or a field of a struct column named by a dotted path, exists."""
    return field_at(schema, path) is not None


def field_at(schema: pa.Schema, path: str) -> pa.Field | None:
    """Return the field at a dotted path; a column whose own name holds dots wins over a nested field."""
    if path in schema.names:
        return schema.field(path)
    head, _, rest = path.partition(".")
    while rest:
        if head in schema.names and pa.types.is_struct(schema.field(head).type):
            return field_at(pa.schema(list(schema.field(head).type)), rest)
        step, _, rest = rest.partition(".")
        head = f"{head}.{step}"
    return None


def root_of(schema: pa.Schema, path: str) -> str:
    """Return the top-level column that holds a dotted path: what has to be read from the file."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in schema.names:
            return name
    raise MissingColumnError(f"no column {path!r}; columns found: {', '.join(schema.names)}")


def column_at(batch: pa.RecordBatch | pa.Table, path: str) -> pa.Array:
    """Return the column at a dotted path as one array, dictionaries decoded; a null struct gives null."""
    root = root_of(batch.schema, path)
    array = batch.column(root)
    if isinstance(array, pa.ChunkedArray):
        array = (
            array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks or [pa.array([], array.type)])
        )
    for step in path[len(root) + 1 :].split(".") if path != root else ():
        array = pc.struct_field(array, step)
    return decode_dictionary(array)


def decode_dictionary(array: pa.Array) -> pa.Array:
    """Return dictionary-encoded (categorical) values as plain ones."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def is_list(dtype: pa.DataType) -> bool:
    """Tell whether a type is one of Arrow's list layouts."""
    t = pa.types
    return (
        t.is_list(dtype)
        or t.is_large_list(dtype)
        or t.is_fixed_size_list(dtype)
        or t.is_list_view(dtype)
        or t.is_large_list_view(dtype)
    )


def list_lengths(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (lengths int64, is_valid bool) of a list column; a null row has length 0."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64), np.zeros(len(array), bool)
    lengths = pc.list_value_length(array).cast(pa.int64())
    valid = ~np.asarray(lengths.is_null()) if lengths.null_count else np.ones(len(array), bool)
    return np.asarray(lengths.fill_null(0)), valid


def list_values(array: pa.Array) -> pa.Array:
    """Return the values of a list column end to end; slices are honoured and null rows contribute nothing."""
    if pa.types.is_null(array.type):
        return pa.array([], pa.null())
    return decode_dictionary(pc.list_flatten(array))


def decoded(texts: pa.Array, what: str, where: str) -> list[str | None]:
    """Return texts as Python strings; raise `InputError` where one is not UTF-8."""
    try:
        return texts.to_pylist()
    except UnicodeDecodeError:
        raise InputError(f"{where} or a row after it: {what} is not UTF-8 text; the file is damaged") from None


def digests(array: pa.Array, path: str, where: str) -> pa.Array:
    """Return the first 16 hex digits of the SHA-256 of each text, or of each list's ids as little-endian int32."""
    if not is_list(array.type):
        encoded = array.cast(pa.large_string()).dictionary_encode()
        texts = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in decoded(encoded.dictionary, path, where)]
        return pa.array(texts, pa.large_string()).take(encoded.indices)
    flat = np.asarray(list_values(array).cast(pa.int64(), safe=False).fill_null(-1)).astype("<i4")
    ends = np.cumsum(list_lengths(array)[0])
    rows = np.split(flat, ends[:-1]) if len(ends) else []
    return pa.array([hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in rows], pa.large_string())
