"""The records of a foreign file, one by one: JSON lines, a JSON document, Parquet batches or an unpickled object."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ktae_cli.errors import InputError, PrerequisiteError
from ktae_cli.readers._lines import SURROGATES, Lines, open_bytes, parse
from ktae_cli.readers._torch import load_pickle, load_torch
from ktae_cli.readers._zipped_documents import is_zipped_log, zipped_documents
from ktae_cli.readers.base import ReaderOptions, Record
from ktae_cli.readers.parquet import ParquetRollouts

MAX_DOCUMENT_BYTES = 1 << 30


class WholeFile:
    """The one record of a file that is read as a whole."""

    def __init__(self, path: Path, options: ReaderOptions, shape: str):
        self.path, self.options, self.shape = path, options, shape
        self.line = self.read = 0

    def where(self) -> str:
        """Name the file."""
        return str(self.path)

    def __iter__(self) -> Iterator[Record]:
        """Yield the record."""
        self.read = self.path.stat().st_size
        if self.shape == "document" and is_zipped_log(self.path):
            for value, replaced in zipped_documents(self.path):
                if replaced:
                    self.options.count(SURROGATES, replaced)
                yield Record(value, str(self.path), 0)
            return
        if self.shape == "document":
            value, replaced = read_document(self.path)
            if replaced:
                self.options.count(SURROGATES, replaced)
        elif self.shape == "torch":
            value = load_torch(self.path)
        else:
            if not self.options.unsafe_pickle:
                raise PrerequisiteError(
                    f"{self.path}: a Python pickle, which can run any program when it is read; give --unsafe-pickle "
                    "if you trust who wrote it"
                )
            value = load_pickle(self.path)
        yield Record(value, str(self.path), 0)


class Batches:
    """The batches of a Parquet file of a foreign layout: `line` is the first row of the last one, `rows` its rows."""

    def __init__(self, path: Path, options: ReaderOptions):
        self.path = path
        self.line = self.read = self.rows = 0

    def where(self) -> str:
        """Name the last batch."""
        return f"{self.path}, rows {self.line} to {self.line + self.rows - 1}"

    def __iter__(self) -> Iterator[Record]:
        """Yield a record a batch."""
        first = 0
        for batch in ParquetRollouts([self.path]).batches():
            self.line, self.rows = first, len(batch)
            self.read += batch.nbytes
            yield Record(batch, str(self.path), first)
            first += len(batch)


def records_of(shape: str, path: Path, options: ReaderOptions) -> Any:
    """Return the records of one file: an iterable with `line`, `read` bytes and `where()`."""
    if shape == "lines":
        return Lines(path, options)
    return Batches(path, options) if shape == "parquet" else WholeFile(path, options, shape)


def read_document(path: Path) -> tuple[Any, int]:
    """Return (the value of a file that is one JSON document, lone surrogates replaced in it)."""
    try:
        with open_bytes(path) as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(text) > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path}: a JSON document of over {MAX_DOCUMENT_BYTES >> 20} MiB; write JSON lines")
        return parse(text.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON document ({error}); it may be cut short") from None
    except (EOFError, pa.ArrowException) as error:
        raise InputError(f"{path}: the compressed file is damaged ({error}); write it again") from None
