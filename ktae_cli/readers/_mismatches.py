"""Rows whose token lists disagree in length, left out with `--on-mismatch drop`."""

import numpy as np
import pyarrow as pa

from ktae_cli.readers.base import is_list, list_lengths
from ktae_cli.schema import BY_NAME, COLUMNS

DROPPED = "rows dropped, their lists of unequal length"
_TOKEN_LISTS = [column.name for column in COLUMNS if column.level == "token"]


def fitting(batch: pa.RecordBatch) -> np.ndarray:
    """Tell for each row (n_rows,) whether the token lists that it has are as long as its response_ids."""
    lists = {
        name: column for name, column in zip(batch.schema.names, batch.columns, strict=True) if is_list(column.type)
    }
    ids = next(
        (name for name in ("response_ids", *BY_NAME["response_ids"].aliases) if _holds_ids(lists.get(name))), None
    )
    fits = np.ones(len(batch), bool)
    if ids is None:
        return fits
    lengths, has_ids = list_lengths(lists[ids])
    for name in _TOKEN_LISTS:
        if name in lists:
            own, valid = list_lengths(lists[name])
            fits &= ~(valid & has_ids & (own != lengths))
    return fits


def _holds_ids(column: pa.Array | None) -> bool:
    return column is not None and (
        pa.types.is_integer(column.type.value_type) or pa.types.is_null(column.type.value_type)
    )
