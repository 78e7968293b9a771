"""Rollouts with a verdict of our own: the columns of `verify` beside those of another source."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.readers.base import Source

GRADED_COLUMNS = pa.schema(
    [
        ("correct", pa.bool_()),
        ("verify_status", pa.string()),
        ("answer_parsed", pa.string()),
        ("gold_parsed", pa.string()),
        ("verify_path", pa.string()),
    ]
)


def moved_names(source: Source, notice: Callable[[str], None]) -> dict[str, str]:
    """Return input column -> output column: ours of an earlier `verify` go, others of these names move aside."""
    ours = ((source.own_metadata() or {}).get("verify") or {}).get("columns", ())
    names: dict[str, str] = {}
    for name in source.schema.names:
        if name in ours:
            continue
        reserved = name in GRADED_COLUMNS.names or name.startswith("verify_")
        written = f"input_{name}" if reserved else name
        while reserved and written in source.schema.names:
            written = f"input_{written}"
        names[name] = written
        if reserved:
            notice(f"input column {name!r} is kept as {written!r}: verify writes columns of that name")
    return names


class GradedRollouts:
    """A source with the graded columns (n_rows) added to every row, as `verify` would write them."""

    def __init__(self, source: Source, graded: pa.Table, described: dict[str, Any]):
        self.source, self.graded, self.described = source, graded, described
        self.reader, self.n_rows, self.paths = source.reader, source.n_rows, getattr(source, "paths", [])
        self.threshold, self.taken = getattr(source, "threshold", None), getattr(source, "taken", ())
        self.names = {written: name for name, written in moved_names(source, lambda text: None).items()}
        kept = [source.schema.field(name).with_name(written) for written, name in self.names.items()]
        self.schema = pa.schema([*kept, *GRADED_COLUMNS], metadata=source.schema.metadata)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones."""
        wanted = self.schema.names if columns is None else columns
        theirs = [name for name in wanted if name in self.names]
        # The rows of some column tell how many there are in a batch.
        read = [self.names[name] for name in theirs] or self.source.schema.names[:1]
        first = 0
        for batch in self.source.batches(read):
            part = self.graded.slice(first, len(batch)).combine_chunks()
            first += len(batch)
            made = {name: batch.column(self.names[name]) for name in theirs}
            made |= {name: _one(part.column(name)) for name in wanted if name not in made}
            yield pa.RecordBatch.from_arrays(
                [made[name] for name in wanted], schema=pa.schema([self.schema.field(name) for name in wanted])
            )

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes columns take in memory."""
        ours = [name for name in columns if name not in self.names]
        return self.source.bytes_of([self.names[name] for name in columns if name in self.names]) + (
            self.graded.select(ours).nbytes if ours else 0
        )

    def place(self, row: int) -> str:
        """Name a row for a message."""
        return self.source.place(row)

    def row_names(self, rows: np.ndarray) -> list[str]:
        """Return a stable name of each row."""
        return self.source.row_names(rows)

    def own_metadata(self) -> dict | None:
        """Return what `ktae` wrote about the rows, and how the verdicts came about."""
        return {**(self.source.own_metadata() or {}), "verify": self.described}

    def fingerprints(self) -> list[dict[str, str]]:
        """Return the base name and a hash of each file."""
        return self.source.fingerprints()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
