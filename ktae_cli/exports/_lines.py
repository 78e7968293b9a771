"""JSON lines: numpy arrays as lists, NaN and infinities as null."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import orjson

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def write_lines(records: Iterable[dict[str, Any]], target: Path | BinaryIO) -> int:
    """Write one line for each record, to a file or a binary stream, and return how many."""
    if isinstance(target, Path):
        with target.open("wb") as file:
            return _write(records, file)
    return _write(records, target)


def _write(records: Iterable[dict[str, Any]], file: BinaryIO) -> int:
    count = 0
    for record in records:
        file.write(orjson.dumps(record, option=_OPTIONS))
        count += 1
    return count
