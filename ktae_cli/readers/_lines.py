"""JSON lines as they are found: plain or compressed, of any size, with what Python's writers put into them."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers.base import ReaderOptions, Record

MAX_LINE_BYTES = 1 << 29
"""A longer line is taken for a file of another kind."""

SURROGATES = "lone surrogates replaced by U+FFFD"

_GZIP, _ZSTD, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading its bytes, gzip and zstd undone; which of them it is stands in its first bytes."""
    file = open_plain(path)
    magic = file.peek(4)
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(_ZSTD):
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"), 1 << 20)
    return file


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading its bytes; raise `InputError` where it cannot be opened."""
    try:
        return open(path, "rb", 1 << 20)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None


def parse(line: bytes) -> tuple[Any, int]:
    """Return (the value of a JSON text, lone surrogates replaced in it).

    NaN and Infinity, which Python writes, are accepted. Raises `ValueError` for what is no JSON.
    """
    try:
        return orjson.loads(line), 0
    except ValueError:
        pass
    try:
        return without_surrogates(json.loads(line.decode()))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def without_surrogates(value: Any) -> tuple[Any, int]:
    """Return the value with U+FFFD for each half of a pair, which UTF-8 cannot hold, and how many there were."""
    if isinstance(value, str):
        try:
            value.encode()
            return value, 0
        except UnicodeEncodeError:
            replaced = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in value)
            return replaced, sum("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, list):
        pairs = [without_surrogates(item) for item in value]
        return [item for item, _ in pairs], sum(n for _, n in pairs)
    if isinstance(value, dict):
        pairs = [(without_surrogates(key), without_surrogates(item)) for key, item in value.items()]
        return {key: item for (key, _), (item, _) in pairs}, sum(m + n for (_, m), (_, n) in pairs)
    return value, 0


class Lines:
    """The objects of the JSON lines of one file: `line` is the last one's, `read` how many bytes were read."""

    def __init__(self, path: Path, options: ReaderOptions):
        self.path, self.options = path, options
        self.line = self.read = 0

    def where(self) -> str:
        """Name the last line."""
        return f"{self.path}, line {self.line}"

    def __iter__(self) -> Iterator[Record]:
        """Yield each line's object.

        Lines end with `\\n` alone, blank ones are left out. A last line that is no JSON was torn when its writer was
        stopped: it is left out with a warning. Raises `InputError` for any other, unless bad lines are skipped, and
        for a file that holds nothing.
        """
        file, loads, new, bad, found = str(self.path), orjson.loads, tuple.__new__, None, False
        for number, line in enumerate(lines_of(self.path, self.options), 1):
            if bad:
                self._refuse(bad)
                bad = None
            try:
                value = loads(line)
            except ValueError:
                if not line.strip():
                    continue
                try:
                    value, replaced = parse(line)
                except ValueError as error:
                    bad = (number, _reason(error))
                    continue
                if replaced:
                    self.options.count(SURROGATES, replaced)
            if type(value) is not dict:
                self._refuse((number, f"a JSON {_kind(value)}, expected an object"))
                continue
            found = True
            self.line = number
            self.read += len(line)
            yield new(Record, (value, file, number))
        if bad and found:
            self.options.count("torn last lines left out")
            self.options.warn(f"{file}, line {bad[0]}: the last line is torn ({bad[1]}); it is left out")
        elif not found:
            what = f"line {bad[0]} is no JSON ({bad[1]})" if bad else "it is empty"
            raise InputError(f"{file}: no JSON object can be read, {what}; give the file that the trainer wrote")

    def _refuse(self, bad: tuple[int, str]) -> None:
        if not self.options.skip_bad_lines:
            where = f"{self.path}, line {bad[0]}"
            raise InputError(f"{where}: {bad[1]}; correct the line, or leave such lines out with --skip-bad-lines")
        self.options.count("bad lines left out")


def lines_of(path: Path, options: ReaderOptions) -> Iterator[bytes]:
    """Yield the lines of a file, a byte-order mark taken off."""
    with open_bytes(path) as file:
        first = True
        try:
            while line := file.readline(MAX_LINE_BYTES):
                if len(line) == MAX_LINE_BYTES:
                    raise InputError(f"{path}: a line is longer than {MAX_LINE_BYTES >> 20} MiB; is this JSON lines?")
                if first:
                    line, first = line.removeprefix(_BOM), False
                yield line
        except EOFError:
            options.warn(f"{path}: the compressed file ends before its end; what it holds until there is read")
        except (zlib.error, gzip.BadGzipFile, pa.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{path}: the compressed file is damaged ({reason}); write it again") from None
        except OSError as error:
            if error.errno:
                raise
            raise InputError(f"{path}: the compressed file is damaged ({error}); write it again") from None


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start + 1}"
    return f"not JSON: {error}" if str(error) else "not JSON"


def _kind(value: Any) -> str:
    kinds = {list: "array", str: "string", bool: "literal", type(None): "null"}
    return kinds.get(type(value), "number")
