"""A foreign dump, read once into Parquet parts of a scratch directory, and read from there as often as needed."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ktae_cli.errors import InputError
from ktae_cli.readers._lines import SURROGATES, without_surrogates
from ktae_cli.readers._mismatches import DROPPED, fitting
from ktae_cli.readers._places import Places
from ktae_cli.readers._records import records_of
from ktae_cli.readers._rows import CANONICAL, batch_of, canonical_batch, widen, wider
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record
from ktae_cli.readers.parquet import base_names, group_bytes, open_file, row_group_batches

ROW_GROUP_BYTES = 16 << 20
HELD_BYTES = 1 << 20
"""Rows that came from about so many bytes of a file are made a batch: what a processor's cache holds."""
HELD_ROWS = 4096
_EXACT = 1 << 53


class Declared(Protocol):
    """What the spool has to know of a reader's declaration."""

    shape: str
    threshold: float | None


class Spool:
    """Writes batches into parts: a batch of other columns or types than the one before begins a part of its own."""

    def __init__(self, scratch: str):
        self.directory = Path(tempfile.mkdtemp(prefix="spool-", dir=scratch))
        self.parts: list[Path] = []
        self.types: dict[str, pa.DataType] = {}
        self.large: set[str] = set()  # columns with whole numbers that are not exact as float64
        self.writer: pq.ParquetWriter | None = None
        self.schema: pa.Schema | None = None
        self.held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        # Encoding goes on beside parsing.
        self.thread = ThreadPoolExecutor(1)
        self.job: Future | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if not len(batch):
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self.types[name] = wider(self.types[name], column.type) if name in self.types else column.type
            if pa.types.is_int64(column.type) and name not in CANONICAL and _has_large(column):
                self.large.add(name)
        if self.schema is None or not batch.schema.equals(self.schema):
            self._end_part()
            self.schema = batch.schema
        self.held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self.held:
            table = pa.Table.from_batches(self.held)
            self._wait()
            self.job = self.thread.submit(self._write, table)
        self.held, self.held_bytes = [], 0

    def _write(self, table: pa.Table) -> None:
        if self.writer is None:
            path = self.directory / f"{len(self.parts):06}.parquet"
            self.writer = pq.ParquetWriter(
                path, table.schema, compression="none", use_dictionary=False, write_statistics=False
            )
            self.parts.append(path)
        self.writer.write_table(table, row_group_size=len(table))

    def _wait(self) -> None:
        job, self.job = self.job, None
        if job:
            job.result()

    def _end_part(self) -> None:
        self._flush()
        self._wait()
        if self.writer:
            self.writer.close()
        self.writer = None

    def close(self) -> pa.Schema:
        """Finish the last part and return the schema of all parts together."""
        self._end_part()
        self.thread.shutdown()
        found = {
            name: pa.string() if name in self.large and pa.types.is_float64(dtype) else dtype
            for name, dtype in self.types.items()
        }
        return pa.schema(list(found.items()))

    def abandon(self) -> None:
        """Let go of what is being written; the scratch directory goes with the run."""
        self.held = []
        self.thread.shutdown(wait=True, cancel_futures=True)
        if self.writer:
            with suppress(OSError, pa.ArrowException):  # a full disk fails here once more
                self.writer.close()


def _has_large(column: pa.Array) -> bool:
    numbers = column.drop_null().to_numpy(zero_copy_only=False)
    return len(numbers) > 0 and (int(numbers.max()) > _EXACT or int(numbers.min()) < -_EXACT)


def spool(
    name: str,
    read: Callable[[Iterator[Record], ReaderOptions], Iterator[Any]],
    declared: Declared,
    paths: list[Path],
    scratch: str,
    options: ReaderOptions,
) -> "SpooledRollouts":
    """Read the files with a reader into parts in the scratch directory and return them as a source.

    What the reader yields, dicts or `pa.RecordBatch`, stands at the place of the record that it took last. Raises
    `InputError` for files that hold no rollout.
    """
    reading, spooled = _Reading(paths, declared.shape, options), Spool(scratch)
    try:
        with closing(reading.records()) as records:
            for row in _guarded(read(records, options), name, reading):
                if type(row) is dict:
                    reading.add(row, spooled)
                else:
                    reading.add_batch(row, spooled)
        reading.flush(spooled)
        schema = spooled.close()
    except BaseException:
        spooled.abandon()
        raise
    if not len(reading.places):
        files = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
        raise InputError(f"{files}: no rollouts in what was read as {name}; another reader is named with --format")
    return SpooledRollouts(name, paths, spooled.parts, schema, reading.places, declared.threshold)


class _Reading:
    """The files being read, and the rows that are not yet a batch."""

    def __init__(self, paths: list[Path], shape: str, options: ReaderOptions):
        self.paths, self.shape, self.options = paths, shape, options
        self.names = [str(path) for path in paths]
        self.places = Places(shape)
        self.source, self.rows, self.taken, self.by_rows = None, [], 0, shape == "parquet"

    def records(self) -> Iterator[Record]:
        """Yield the records of all files."""
        for path in self.paths:
            self.places.begin_file()
            self.source, self.taken = records_of(self.shape, path, self.options), 0
            yield from self.source

    def add(self, row: dict[str, Any], spooled: Spool) -> None:
        """Add a row."""
        source = self.source
        number = source.line
        if self.by_rows and SOURCE_ROW in row:
            number += row.pop(SOURCE_ROW)
        self.places.numbers.append(number)
        self.rows.append(row)
        if source.read - self.taken >= HELD_BYTES or len(self.rows) >= HELD_ROWS:
            self.flush(spooled)

    def add_batch(self, batch: pa.RecordBatch, spooled: Spool) -> None:
        """Add rows that are a batch already."""
        self.flush(spooled)
        numbers = np.full(len(batch), self.source.line)
        if SOURCE_ROW in batch.schema.names:
            numbers += np.asarray(batch.column(SOURCE_ROW)).astype(np.int64)
            batch = batch.drop_columns([SOURCE_ROW])
        elif self.by_rows and len(batch) == self.source.rows:
            numbers += np.arange(len(batch))
        before = len(self.places)
        self.places.extend(numbers)
        batch = canonical_batch(batch, lambda row: self.places.at(before + row, self.names))
        spooled.write(self._fitting(batch, before))

    def flush(self, spooled: Spool) -> None:
        """Write the rows that are held as a batch."""
        rows, self.rows, self.taken = self.rows, [], self.source.read if self.source else 0
        if not rows:
            return
        before = len(self.places) - len(rows)

        def place(row: int) -> str:
            return self.places.at(before + row, self.names)

        try:
            batch = batch_of(rows, place)
        except UnicodeEncodeError:  # lone surrogates from a pickle
            rows, replaced = without_surrogates(rows)
            self.options.count(SURROGATES, replaced)
            batch = batch_of(rows, place)
        spooled.write(self._fitting(batch, before))

    def _fitting(self, batch: pa.RecordBatch, before: int) -> pa.RecordBatch:
        """Return the batch, with --on-mismatch drop without the rows whose token lists disagree in length."""
        if self.options.on_mismatch != "drop":
            return batch
        kept = fitting(batch)
        if kept.all():
            return batch
        self.options.count(DROPPED, int((~kept).sum()))
        self.places.keep(before, kept)
        return batch.filter(pa.array(kept))


def _guarded(rows: Iterator[Any], name: str, reading: _Reading) -> Iterator[Any]:
    """Yield what a reader yields; where it stumbles over something that its format never has, name the place."""
    try:
        yield from rows
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        where = reading.source.where() if reading.source else name
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:120]
        raise InputError(f"{where}: not as {name} writes it ({reason}); name another reader with --format") from error


class SpooledRollouts:
    """The rows of a spooled dump; messages, names and fingerprints are those of the user's files."""

    def __init__(
        self,
        reader: str,
        paths: list[Path],
        parts: list[Path],
        schema: pa.Schema,
        places: Places,
        threshold: float | None,
    ):
        self.reader, self.paths, self.parts, self.schema = reader, paths, parts, schema
        self.places, self.threshold = places, threshold
        self.taken: frozenset[str] = frozenset()
        self.n_rows = len(places)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        for path in self.parts:
            file = open_file(path)
            present = [name for name in schema.names if name in file.schema_arrow.names]
            for group in range(file.metadata.num_row_groups):
                for batch in row_group_batches(file, path, group, present):
                    yield _under(batch, schema)

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes the named columns take in memory."""
        footers = [open_file(path).metadata for path in self.parts]
        groups = [footer.row_group(i) for footer in footers for i in range(footer.num_row_groups)]
        return sum(group_bytes(group, columns) for group in groups)

    def place(self, row: int) -> str:
        """Name a row as a user finds it: file and line, or row of a Parquet file."""
        file, number, rollout = self.places.parts(row, [str(path) for path in self.paths])
        line = "" if number is None else f", {self.places.unit} {number}"
        return f"{file}{line}" + ("" if rollout is None else f", rollout {rollout}")

    def row_names(self, rows: np.ndarray) -> list[str]:
        """Return `<file>:<line>`, with `:<n>` behind it where a line or a file holds several rollouts."""
        names = base_names(self.paths)
        found = (self.places.parts(int(row), names) for row in rows)
        return [":".join(str(part) for part in parts if part is not None) for parts in found]

    def own_metadata(self) -> None:
        """Return None: what `ktae` writes is Parquet."""
        return None

    def fingerprints(self) -> list[dict[str, str]]:
        """Return the base name and the SHA-256 of each file."""
        return [{"name": path.name, "sha256": _sha256(path)} for path in self.paths]


def _under(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a part with the columns and types of all parts."""
    if batch.schema.equals(schema):
        return batch
    present = set(batch.schema.names)
    columns = [
        widen(batch.column(field.name), field.type) if field.name in present else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
