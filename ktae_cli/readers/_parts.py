"""Batches whose columns and types change on the way: written to Arrow files as they are, read under one schema."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from ktae_cli.readers._canonical_types import CANONICAL
from ktae_cli.readers._free_columns import widen, wider
from ktae_cli.readers._number_lists import EXACT

JOINED_BYTES, JOINED = 4 << 20, 8
"""Batches are read joined, up to so many bytes and so many of them: Arrow allocates room for the columns that are not
read as well."""


class Parts:
    """Files of a scratch directory: a batch that does not fit the columns of the one before begins another file."""

    def __init__(self, scratch: str):
        self.directory = Path(tempfile.mkdtemp(prefix="spool-", dir=scratch))
        self.paths: list[Path] = []
        self.bytes: Counter[str] = Counter()
        self.types: dict[str, pa.DataType] = {}
        self.large: set[str] = set()  # columns with whole numbers that are not exact as float64
        self.open: pa.Schema | None = None  # of the file being written
        self.file: pa.NativeFile | None = None
        self.writer: pa.ipc.RecordBatchFileWriter | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of all batches together."""
        return pa.schema(
            [
                (name, pa.string() if name in self.large and pa.types.is_float64(dtype) else dtype)
                for name, dtype in self.types.items()
            ]
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if not len(batch):
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self.bytes[name] += column.nbytes
            self.types[name] = wider(self.types[name], column.type) if name in self.types else column.type
            if pa.types.is_int64(column.type) and name not in CANONICAL and _has_large(column):
                self.large.add(name)
        if self.writer is None or not _fits(batch.schema, self.open):
            self._begin(batch.schema)
        self.writer.write_batch(_under(batch, self.open))

    def _begin(self, schema: pa.Schema) -> None:
        self.close()
        self.paths.append(self.directory / f"{len(self.paths):06}.arrow")
        self.open, self.file = schema, pa.OSFile(str(self.paths[-1]), "wb")
        self.writer = pa.ipc.new_file(self.file, schema)

    def close(self) -> None:
        """Finish the file that is being written."""
        if self.writer:
            self.writer.close()
            self.file.close()
        self.writer = None

    def abandon(self) -> None:
        """Let go of what is being written; the scratch directory goes with the run."""
        with suppress(OSError, pa.ArrowException):  # a full disk fails here once more
            self.close()

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order under a schema of some of the columns; no other column is read."""
        held: list[pa.RecordBatch] = []
        size = 0
        for path in self.paths:
            for batch in _batches(path, schema.names):
                if held and (size + batch.nbytes > JOINED_BYTES or len(held) == JOINED):
                    yield pa.concat_batches(held)
                    held, size = [], 0
                held.append(_under(batch, schema))
                size += batch.nbytes
        if held:
            yield pa.concat_batches(held)


def _batches(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, those of the named columns that it has."""
    with pa.OSFile(str(path)) as file:
        found = pa.ipc.open_file(file).schema.names
        present = [i for i, name in enumerate(found) if name in names]
        # Asked for no field, Arrow reads them all.
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=present or [0]))
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            yield batch if present else batch.select([])


def _fits(schema: pa.Schema, wanted: pa.Schema) -> bool:
    """Tell whether every column is one of `wanted`, of the same type or of nulls alone."""
    if schema.equals(wanted):
        return True
    known = dict(zip(wanted.names, wanted.types, strict=True))
    return all(
        name in known and (dtype.equals(known[name]) or pa.types.is_null(dtype))
        for name, dtype in zip(schema.names, schema.types, strict=True)
    )


def _under(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns and types of a schema, absent columns null."""
    if batch.schema.equals(schema):
        return batch
    present = set(batch.schema.names)
    columns = [
        widen(batch.column(field.name), field.type) if field.name in present else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _has_large(column: pa.Array) -> bool:
    numbers = column.drop_null().to_numpy(zero_copy_only=False)
    return len(numbers) > 0 and (int(numbers.max()) > EXACT or int(numbers.min()) < -EXACT)
