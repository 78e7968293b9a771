"""Export to JSON lines: one object for each rollout, arrays as long as the full sequence."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ktae_cli.exports._full_sequence import full_schema, full_sequences
from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import ExportRows, export
from ktae_cli.readers.base import is_list


@export(
    suffix=".jsonl",
    alignment="full sequence; value t belongs to token t; 0 on the prompt",
    sidecar=True,
    stdout=True,
    reads=("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs"),
)
def jsonl(rows: ExportRows, target: Path | BinaryIO) -> int:
    """Full-sequence rows as JSON lines, for trainers that read plain files.

    Absent values are null; NaN and infinities never occur.
    """
    schema = full_schema(rows)
    return write_lines((record for batch in rows for record in records(full_sequences(batch, schema))), target)


def records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield one record for each row; its lists are views of the flat arrays."""
    columns = [_row_values(batch.column(at)) for at in range(batch.num_columns)]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _row_values(array: pa.Array) -> list[Any]:
    if not is_list(array.type):
        return array.to_pylist()
    offsets, flat = array.offsets.to_pylist(), array.values.to_numpy()
    slices = (flat[start:stop] for start, stop in pairwise(offsets))
    return [values if valid else None for values, valid in zip(slices, array.is_valid().to_pylist(), strict=True)]
