"""Parquet output: zstd, bounded row groups, statistics on scalars only, metadata written last."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ktae_cli.schema import METADATA_KEY

ROW_GROUP_BYTES = 16 << 20
"""A row group is closed before it exceeds this size in memory; a larger single row stands alone."""


class ParquetOutput:
    """Append tables under one schema; the bytes depend on the rows and their batches alone, never on timing."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        plain: tuple[str, ...] = (),
        as_plain: bool = False,
        page_index: bool = False,
    ):
        """Open the file; `plain` columns hold values that hardly repeat and are not dictionary-encoded.

        `as_plain`: leave Arrow's own schema out of the file, so that dictionary columns, which are the fastest to
        write, are read back as plain ones. `page_index`: write where pages begin and what they range over.
        """
        self.schema = schema
        leaves = _leaves(schema)
        self.writer = pq.ParquetWriter(
            path,
            schema,
            store_schema=not as_plain,
            write_page_index=page_index,
            compression="zstd",
            compression_level=1,
            use_dictionary=[leaf for name, leaf, _ in leaves if name not in plain],
            write_statistics=[leaf for _, leaf, dtype in leaves if _has_useful_statistics(leaf, dtype)],
        )
        self.pending: list[pa.RecordBatch] = []
        self.held = 0
        # Encoding and compressing is the largest part of a run: it goes on beside reading and scoring.
        self.thread = ThreadPoolExecutor(1)
        self.job: Future | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        for piece in _pieces(batch):
            if self.held and self.held + piece.nbytes > ROW_GROUP_BYTES:
                self._flush()
            self.pending.append(piece)
            self.held += piece.nbytes

    def _flush(self) -> None:
        if self.pending:
            table = pa.Table.from_batches(self.pending)
            self._wait()
            self.job = self.thread.submit(self.writer.write_table, table, row_group_size=max(len(table), 1))
        self.pending, self.held = [], 0

    def _wait(self) -> None:
        """Wait for the row group that is being written, and raise what went wrong with it."""
        job, self.job = self.job, None
        if job:
            job.result()

    def close(self, metadata: dict[str, Any] | None = None) -> None:
        """Write what is held and the footer, with our metadata as JSON."""
        self._flush()
        self._wait()
        if metadata is not None:
            text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
            self.writer.add_key_value_metadata({METADATA_KEY.decode(): text})
        self.writer.close()
        self.thread.shutdown()

    def abandon(self) -> None:
        """Let go of the file without finishing it; the caller removes it."""
        self.pending = []
        self.thread.shutdown(wait=True, cancel_futures=True)
        with suppress(OSError, pa.ArrowException):  # a full disk fails here once more
            self.writer.close()


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    batch = _with_own_dictionaries(batch)
    if batch.nbytes <= ROW_GROUP_BYTES or len(batch) < 2:
        return [batch] if len(batch) else []
    half = len(batch) // 2
    return _pieces(batch.slice(0, half)) + _pieces(batch.slice(half))


def _with_own_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Reduce dictionaries to the entries in use: a slice carries, and a row group would write, the whole of them."""
    columns = [
        _with_own_dictionary(column) if pa.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _with_own_dictionary(array: pa.DictionaryArray) -> pa.DictionaryArray:
    if len(array.dictionary) <= len(array):
        return array
    present, place = np.unique(np.asarray(array.indices.fill_null(0)), return_inverse=True)
    indices = pa.array(place.astype(np.int64), mask=np.asarray(array.is_null())).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(pa.array(present)), ordered=array.type.ordered)


def _leaves(schema: pa.Schema) -> list[tuple[str, str, pa.DataType]]:
    """Return (column, leaf path in Parquet, leaf type) of every leaf."""
    found = []

    def walk(name: str, path: str, dtype: pa.DataType) -> None:
        t = pa.types
        if t.is_struct(dtype):
            for field in dtype:
                walk(name, f"{path}.{field.name}", field.type)
        elif t.is_map(dtype):
            walk(name, f"{path}.key_value.key", dtype.key_type)
            walk(name, f"{path}.key_value.value", dtype.item_type)
        elif t.is_nested(dtype):
            walk(name, f"{path}.list.element", dtype.value_type)
        else:
            found.append((name, path, dtype))

    for field in schema:
        walk(field.name, field.name, field.type)
    return found


def _has_useful_statistics(leaf: str, dtype: pa.DataType) -> bool:
    t = pa.types
    if t.is_dictionary(dtype):
        dtype = dtype.value_type
    text = t.is_string(dtype) or t.is_large_string(dtype) or t.is_string_view(dtype)
    binary = t.is_binary(dtype) or t.is_large_binary(dtype) or t.is_binary_view(dtype)
    return not (text or binary) and ".list.element" not in leaf
