"""A foreign dump, read once into a scratch directory, and read from there as often as needed."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers._lines import SURROGATES, without_surrogates
from ktae_cli.readers._mismatches import DROPPED, fitting
from ktae_cli.readers._parts import Parts
from ktae_cli.readers._places import Places
from ktae_cli.readers._records import records_of
from ktae_cli.readers._rows import batch_of, canonical_batch
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record
from ktae_cli.readers.parquet import base_names

HELD_BYTES = 1 << 19
"""Rows that came from about so many bytes of a file are made a batch: what a processor's cache holds."""
HELD_ROWS = 4096


class Declared(Protocol):
    """What the spool has to know of a reader's declaration."""

    shape: str
    threshold: float | None


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
    reading, parts = _Reading(paths, declared.shape, options), Parts(scratch)
    try:
        with closing(reading.records()) as records:
            for row in _guarded(read(records, options), name, reading):
                if type(row) is dict:
                    reading.add(row, parts)
                else:
                    reading.add_batch(row, parts)
        reading.flush(parts)
        parts.close()
    except BaseException:
        parts.abandon()
        raise
    if not len(reading.places):
        files = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
        raise InputError(f"{files}: no rollouts in what was read as {name}; another reader is named with --format")
    return SpooledRollouts(name, paths, parts, reading.places, declared.threshold)


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

    def add(self, row: dict[str, Any], parts: Parts) -> None:
        """Add a row."""
        source = self.source
        number = source.line
        if self.by_rows and SOURCE_ROW in row:
            number += row.pop(SOURCE_ROW)
        self.places.numbers.append(number)
        self.rows.append(row)
        if source.read - self.taken >= HELD_BYTES or len(self.rows) >= HELD_ROWS:
            self.flush(parts)

    def add_batch(self, batch: pa.RecordBatch, parts: Parts) -> None:
        """Add rows that are a batch already."""
        self.flush(parts)
        numbers = np.full(len(batch), self.source.line)
        if SOURCE_ROW in batch.schema.names:
            numbers += np.asarray(batch.column(SOURCE_ROW)).astype(np.int64)
            batch = batch.drop_columns([SOURCE_ROW])
        elif self.by_rows and len(batch) == self.source.rows:
            numbers += np.arange(len(batch))
        before = len(self.places)
        self.places.extend(numbers)
        batch = canonical_batch(batch, lambda row: self.places.at(before + row, self.names))
        parts.write(self._fitting(batch, before))

    def flush(self, parts: Parts) -> None:
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
        parts.write(self._fitting(batch, before))

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

    def __init__(self, reader: str, paths: list[Path], parts: Parts, places: Places, threshold: float | None):
        self.reader, self.paths, self.parts, self.schema = reader, paths, parts, parts.schema
        self.places, self.threshold = places, threshold
        self.taken: frozenset[str] = frozenset()
        self.n_rows = len(places)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones."""
        names = self.schema.names if columns is None else columns
        return self.parts.batches(pa.schema([self.schema.field(name) for name in names]))

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes the named columns take in memory."""
        return sum(self.parts.bytes[name] for name in columns)

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


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
