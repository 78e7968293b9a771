"""Export to a dataset for a GRPOTrainer of TRL that trains on saved rollouts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ktae_cli.exports._arrow_dataset import write_dataset
from ktae_cli.exports.base import Batch, ExportRows, export
from ktae_cli.readers.scored import texts_of

_TYPES = {
    "group_id": pa.string(),
    "rollout_id": pa.string(),
    "prompt": pa.string(),
    "prompt_ids": pa.list_(pa.int32()),
    "completion_ids": pa.list_(pa.int32()),
    "completion_mask": pa.list_(pa.int8()),
    "advantages": pa.list_(pa.float32()),
    "reward": pa.float64(),
}
_OLD = "old_per_token_logps"


@export(
    directory=True,
    alignment="response only; value t belongs to token t of completion_ids",
    reads=("prompt", "rollout_log_probs", "old_log_probs"),
)
def trl(rows: ExportRows, target: Path) -> None:
    """A Hugging Face dataset on disk for TRL's GRPOTrainer, one row for each rollout.

    group_id, rollout_id, prompt (text, empty where the file has none), prompt_ids, completion_ids, completion_mask (1
    where the policy sampled the token), advantages, reward, and old_per_token_logps where the file has old_log_probs or
    rollout_log_probs. Nothing is padded. TRL has no column of its own for advantages: train with
    `ktae_cli.integrations.trl.saved_rollouts(GRPOTrainer)`.
    """
    column = rows.log_probs({_OLD: ("old_log_probs", "rollout_log_probs")}).get(_OLD)
    types = _TYPES | ({} if column is None else {_OLD: pa.list_(pa.float32())})
    schema = pa.schema(list(types.items()))
    write_dataset(target, schema, _batches(rows, schema, column))


def _batches(rows: ExportRows, schema: pa.Schema, column: str | None) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        built = {
            "group_id": pa.array(batch.group_ids, pa.string()),
            "rollout_id": pa.array(batch.rollout_ids, pa.string()),
            "prompt": _texts(batch),
            "prompt_ids": _lists(batch.prompt_ids, batch.prompt),
            "completion_ids": _lists(batch.response_ids, batch.response),
            "completion_mask": _lists(batch.mask.astype(np.int8), batch.response),
            "advantages": _lists(batch.values, batch.response),
            "reward": pa.nulls(len(batch), pa.float64()) if batch.rewards is None else batch.rewards,
        }
        if column is not None:
            built[_OLD] = _lists(batch.log_probs[column][0], batch.response)
        yield pa.RecordBatch.from_arrays([built[name] for name in schema.names], schema=schema)


def _texts(batch: Batch) -> pa.Array:
    found = batch.columns.get("prompt")
    texts = [None] * len(batch) if found is None else texts_of(found)
    return pa.array([text or "" for text in texts], pa.string())


def _lists(flat: np.ndarray, lengths: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32()), pa.array(flat))
