"""The scored columns and the token table as Arrow: results of the pipeline -> what the files hold."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ktae_cli.names import Spec

TOKEN_SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("token_id", pa.int32()),
        ("token", pa.string()),
        ("spec", pa.string()),
        ("key_weight", pa.float32()),
        ("effect", pa.float64()),
        ("p_value", pa.float64()),
        ("information_gain", pa.float64()),
        ("correct_with", pa.int32()),
        ("incorrect_with", pa.int32()),
        ("n_correct", pa.int32()),
        ("n_incorrect", pa.int32()),
        ("tf_correct", pa.float64()),
        ("tf_incorrect", pa.float64()),
    ]
)
MEASURED = [name for name in TOKEN_SCHEMA.names if name not in ("group_id", "token_id", "token", "spec")]


def list_column(flat: np.ndarray, lengths: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Return list<float32> (or list<bool>) rows from flat values; rows that are not valid are null."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(flat)
    mask = None if valid.all() else pa.array(~valid)
    if offsets[-1] < 2**31:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, mask=mask)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


def token_table(
    results: list[tuple[Spec, dict[str, np.ndarray]]], keys: list[str], text_of: Callable[[int], str | None]
) -> pa.RecordBatch | None:
    """Return the token-table rows of one chunk: group by group, within it spec by spec, within it by token id."""
    if not results or not sum(len(columns["group"]) for _, columns in results):
        return None
    group = np.concatenate([columns["group"] for _, columns in results])
    number = np.repeat(np.arange(len(results)), [len(columns["group"]) for _, columns in results])
    order = np.argsort(group, kind="stable") if len(results) > 1 else np.s_[:]

    def column(name: str) -> np.ndarray:
        return np.concatenate([columns[name] for _, columns in results])[order]

    token_id = column("token_id")
    data = {
        "group_id": _repeated(group[order], lambda code: keys[code]),
        "token_id": pa.array(token_id.astype(np.int32)),
        "token": _repeated(token_id, text_of),
        "spec": _repeated(number[order], lambda i: str(results[i][0])),
    }
    for name in MEASURED:
        data[name] = pa.array(column(name)).cast(TOKEN_SCHEMA.field(name).type, safe=False)
    return pa.RecordBatch.from_pydict(data, schema=TOKEN_SCHEMA)


def _repeated(codes: np.ndarray, text_of: Callable[[int], str | None]) -> pa.Array:
    """Return the text of each code; text_of is asked once for each distinct code."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    texts = pa.array([text_of(int(code)) for code in distinct], pa.string())
    return texts.take(pa.array(inverse))
