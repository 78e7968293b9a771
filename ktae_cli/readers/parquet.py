"""Canonical Parquet, streamed: batches of a few megabytes whatever the size of a file or of its row groups."""

import hashlib
import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ktae_cli.errors import InputError
from ktae_cli.readers.base import list_lengths, list_values, reader
from ktae_cli.schema import METADATA_KEY

BATCH_BYTES = 4 << 20
"""Aim for the uncompressed size of one batch."""


@reader(files=(".parquet",), shape="parquet", keys=(), supplies=("*",))
def parquet(paths: list[Path]) -> "ParquetRollouts":
    """Canonical Parquet: read where it lies, by canonical column names or their aliases, or any names with `--map`."""
    return ParquetRollouts(paths)


class ParquetRollouts:
    """The rows of one or more Parquet files under one schema, in order."""

    reader = "parquet"

    def __init__(self, paths: list[Path]):
        self.paths = paths
        schemas = [schema_of(path) for path in paths]
        self.schema = _one_schema(paths, schemas)
        self.sizes = [open_file(path).metadata.num_rows for path in paths]

    @property
    def n_rows(self) -> int:
        """Rows of all files together."""
        return sum(self.sizes)

    def own_metadata(self) -> dict | None:
        """Return what `ktae` wrote about the file, or the first of files scored alike; None for files of others."""
        found = [_own_metadata(path) for path in self.paths]
        alike = all(one and one.get("estimators") == (found[0] or {}).get("estimators") for one in found)
        return found[0] if alike else None

    def fingerprints(self) -> list[dict[str, str]]:
        """Return the base name and the SHA-256 of the footer of each file."""
        return [{"name": path.name, "footer_sha256": _footer_hash(path)} for path in self.paths]

    def scored_from_each_other(self) -> tuple[Path, Path] | None:
        """Return a scored file and the input that it was scored from where both are among the files."""
        scored = {path: _own_metadata(path) for path in self.paths} if len(self.paths) > 1 else {}
        scored = {path: metadata for path, metadata in scored.items() if metadata}
        by_footer = {_footer_hash(path): path for path in self.paths} if scored else {}
        for path, metadata in scored.items():
            for entry in metadata.get("inputs") or []:
                if entry.get("footer_sha256") in by_footer:
                    return path, by_footer[entry["footer_sha256"]]
        return None

    def place(self, row: int) -> str:
        """Name a row as a user finds it: file and row within the file, counted from 0."""
        for path, size in zip(self.paths, self.sizes, strict=True):
            if row < size:
                return f"{path}, row {row}"
            row -= size
        return f"row {row}"

    def row_names(self, rows: np.ndarray) -> list[str]:
        """Return `<file>:<row>` for row numbers of the whole input: stable names for rollouts without an id."""
        names, ends = self._names
        files = np.searchsorted(ends, rows, "right")
        return [f"{names[f]}:{row - (ends[f] - self.sizes[f])}" for f, row in zip(files, rows, strict=True)]

    @cached_property
    def _names(self) -> tuple[list[str], np.ndarray]:
        return base_names(self.paths), np.cumsum(self.sizes)

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes the named top-level columns take in memory, from the footers alone."""
        footers = [open_file(path).metadata for path in self.paths]
        groups = [footer.row_group(i) for footer in footers for i in range(footer.num_row_groups)]
        return sum(group_bytes(group, columns) for group in groups)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named top-level ones, missing columns as nulls."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        for path in self.paths:
            file = open_file(path)
            present = [name for name in schema.names if name in file.schema_arrow.names]
            for group in range(file.metadata.num_row_groups):
                for batch in row_group_batches(file, path, group, present):
                    yield under_schema(batch, schema, path)


def base_names(paths: list[Path]) -> list[str]:
    """Return the base names of files, or where two are equal, their paths below the directory that they share."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        common = os.path.commonpath([path.resolve().parent for path in paths])
        names = [os.path.relpath(path.resolve(), common) for path in paths]
    return names


def open_file(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; raise `InputError` where it cannot be read as one."""
    try:
        return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None
    except UnicodeDecodeError as error:
        raise InputError(_damaged_schema(path, error)) from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(_not_parquet(path, error)) from None


def _damaged_schema(path: Path, error: Exception) -> str:
    reason = str(error).partition("\n")[0]
    return f"{path}: the Parquet file is damaged, its schema cannot be read ({reason})"


def schema_of(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file; raise `InputError` where it cannot be read."""
    try:
        schema = open_file(path).schema_arrow
        schema.names  # noqa: B018  (decodes the names)
        return schema
    except (UnicodeDecodeError, pa.ArrowException) as error:
        raise InputError(_damaged_schema(path, error)) from None


def _own_metadata(path: Path) -> dict | None:
    raw = (open_file(path).metadata.metadata or {}).get(METADATA_KEY)
    try:
        found = json.loads(raw) if raw else None
    except ValueError:
        raise InputError(f"{path}: its metadata {METADATA_KEY.decode()!r} is not JSON") from None
    return found if isinstance(found, dict) else None


def _not_parquet(path: Path, error: Exception) -> str:
    with open(path, "rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        return f"{path}: the Parquet file is truncated or damaged (its footer cannot be read); write it again"
    if not head:
        return f"{path}: the file is empty; give a Parquet file of rollouts"
    return f"{path}: not a Parquet file (it begins with {head!r}); give Parquet, one row per rollout"


def row_group_batches(file: pq.ParquetFile, path: Path, group: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield one row group in batches; smaller ones where Arrow cannot assemble a nested column of over 2 GiB."""
    n_rows = file.metadata.row_group(group).num_rows
    try:
        size = _rows_per_batch(file.metadata.row_group(group), columns)
    except (UnicodeDecodeError, pa.ArrowException):
        raise InputError(f"{path}: the Parquet file is damaged, its footer cannot be read; write it again") from None
    done = 0
    while done < n_rows:
        skip = before = done
        try:
            for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                if skip >= len(batch):
                    skip -= len(batch)
                    continue
                yield batch.slice(skip)
                done += len(batch) - skip
                skip = 0
        except MemoryError:
            raise
        except pa.ArrowNotImplementedError as error:
            if size == 1:
                where = f"{path}, row group {group}, row {done}"
                raise InputError(f"{where}: a column cannot be read ({error}); drop or rewrite it") from None
            size = max(1, size // 8)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            reason = str(error).partition("\n")[0]
            raise InputError(f"{path}: row group {group} cannot be read after row {done}: {reason}") from None
        else:
            if done == before:
                raise InputError(f"{path}: row group {group} ends after {done} of {n_rows} rows; the file is damaged")


def _rows_per_batch(group: pq.RowGroupMetaData, columns: list[str]) -> int:
    size = group_bytes(group, columns)
    return max(1, min(1 << 16, BATCH_BYTES * max(group.num_rows, 1) // max(size, 1)))


def group_bytes(group: pq.RowGroupMetaData, columns: list[str]) -> int:
    """Return the bytes of a row group's columns in memory."""
    wanted, size = set(columns), 0
    for i in range(group.num_columns):
        column = group.column(i)
        path = column.path_in_schema
        if path in wanted or any(path[:end] in wanted for end, c in enumerate(path) if c == "."):
            # Dictionary-encoded pages are smaller than what they decode to: count at least four bytes a value.
            size += max(column.total_uncompressed_size, 4 * column.num_values)
    return size


def under_schema(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """Return the batch with a schema's columns: missing ones null, others cast; raise `InputError` where one cannot."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        column = pa.nulls(len(batch), field.type) if index < 0 else batch.column(index)
        if column.type != field.type:
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
                column = _without_view(column)
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                reason = str(error).partition("\n")[0]
                found = f"{batch.schema.field(index).type} here, {field.type} for all files together ({reason})"
                raise InputError(f"{path}: column {field.name!r} is {found}; score the files apart") from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(schema)))


def _without_view(array: pa.Array) -> pa.Array:
    """Return a list view as a list: Arrow's own cast fails on slices."""
    lengths, valid = list_lengths(array)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, list_values(array), mask=pa.array(~valid))


def _one_schema(paths: list[Path], schemas: list[pa.Schema]) -> pa.Schema:
    for path, schema in zip(paths, schemas, strict=True):
        repeated = {name for name in schema.names if schema.names.count(name) > 1}
        if repeated:
            raise InputError(f"{path}: two columns are named {min(repeated)!r}; rename one")
    if len(schemas) == 1 or all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    merged = pa.schema([_plain(field) for field in schemas[0]])
    for path, schema in zip(paths[1:], schemas[1:], strict=True):
        try:
            plain = pa.schema([_plain(field) for field in schema])
            merged = pa.unify_schemas([merged, plain], promote_options="permissive")
        except pa.ArrowException:
            raise InputError(_disagreement(paths[0], path, merged, plain)) from None
    return merged


def _plain(field: pa.Field) -> pa.Field:
    """Return the field without dictionaries and views, which files of one dataset do not share."""
    return field.with_type(_plain_type(field.type))


def _plain_type(dtype: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_dictionary(dtype):
        return _plain_type(dtype.value_type)
    if t.is_string_view(dtype) or t.is_binary_view(dtype):
        return pa.large_string() if t.is_string_view(dtype) else pa.large_binary()
    if t.is_list(dtype) or t.is_list_view(dtype):
        return pa.list_(_plain(dtype.value_field))
    if t.is_large_list(dtype) or t.is_large_list_view(dtype):
        return pa.large_list(_plain(dtype.value_field))
    return pa.struct([_plain(field) for field in dtype]) if t.is_struct(dtype) else dtype


def _disagreement(first: Path, path: Path, merged: pa.Schema, schema: pa.Schema) -> str:
    for field in schema:
        if field.name in merged.names:
            try:
                pa.unify_schemas(
                    [pa.schema([merged.field(field.name)]), pa.schema([field])], promote_options="permissive"
                )
            except pa.ArrowException:
                found = f"{field.type} here and {merged.field(field.name).type} in {first} and its siblings"
                return f"{path}: column {field.name!r} is {found}; score the files apart, or rewrite one"
    return f"{path}: its schema does not fit that of {first}; score the files apart"


def _footer_hash(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, 2)
        return hashlib.sha256(file.read(length)).hexdigest()
