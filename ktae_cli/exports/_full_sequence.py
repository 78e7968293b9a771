"""Arrow rows of the neutral layout: every list is as long as prompt and response, value t belongs to token t."""

import numpy as np
import pyarrow as pa

from ktae_cli.exports.base import LOG_PROBS, Batch, ExportRows

_TYPES = {
    "group_id": pa.string(),
    "rollout_id": pa.string(),
    "input_ids": pa.list_(pa.int32()),
    "loss_mask": pa.list_(pa.int8()),
    "advantages": pa.list_(pa.float32()),
    **{name: pa.list_(pa.float32()) for name in LOG_PROBS},
    "reward": pa.float64(),
    "step": pa.int64(),
}
_ALWAYS = ("group_id", "rollout_id", "input_ids", "loss_mask", "advantages")


def full_schema(rows: ExportRows) -> pa.Schema:
    """Return the columns that the file has values for."""
    return pa.schema([(n, dtype) for n, dtype in _TYPES.items() if n in _ALWAYS or rows.scored.has(n)])


def full_sequences(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the neutral layout; 0 on the prompt and off the mask."""
    built: dict[str, pa.Array] = {
        "group_id": pa.array(batch.group_ids, pa.string()),
        "rollout_id": pa.array(batch.rollout_ids, pa.string()),
        "input_ids": lists(batch.starts, batch.full_ids()),
        "loss_mask": lists(batch.starts, batch.full(batch.mask.astype(np.int8))),
        "advantages": lists(batch.starts, batch.full(batch.values)),
        "reward": batch.rewards,
        "step": batch.steps,
    }
    for name, (values, present) in batch.log_probs.items():
        built[name] = lists(batch.starts, batch.full(values), ~present)
    return pa.RecordBatch.from_arrays([built[name] for name in schema.names], schema=schema)


def lists(starts: np.ndarray, flat: np.ndarray, null: np.ndarray | None = None) -> pa.ListArray:
    """Return flat values as one list for each row."""
    nulls = pa.array(null) if null is not None and null.any() else None
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(flat), mask=nulls)
