"""Export to JSON lines: one object for each rollout, arrays as long as the full sequence."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa

from ktae_cli.exports.base import ExportRows
from ktae_cli.readers.base import is_list

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def jsonl(rows: ExportRows, target: Path | BinaryIO) -> None:
    """Full-sequence rows as JSON lines, for trainers that read plain files.

    Absent values are null; NaN and infinities never occur.
    """
    if not isinstance(target, Path):
        _write(rows, target)
        return
    with target.open("wb") as file:
        _write(rows, file)


def _write(rows: ExportRows, file: BinaryIO) -> None:
    for batch in rows:
        file.writelines(orjson.dumps(record, option=_OPTIONS) for record in records(batch))


def records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield one record for each row; its lists are views of the flat arrays."""
    columns = [_row_values(batch.column(at)) for at in range(batch.num_columns)]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _row_values(array: pa.Array) -> list[Any]:
    if not is_list(array.type):
        values = array.to_pylist()
        return [None if isinstance(value, float) and not np.isfinite(value) else value for value in values]
    offsets, flat = array.offsets.to_pylist(), array.values.to_numpy()
    slices = (flat[start:stop] for start, stop in pairwise(offsets))
    return [values if valid else None for values, valid in zip(slices, array.is_valid().to_pylist(), strict=True)]
