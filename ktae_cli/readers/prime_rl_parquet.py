"""prime-rl of the INTELLECT-2 time: Parquet files of rollouts, one directory a step."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers._needed_columns import check_columns
from ktae_cli.readers.base import ReaderOptions, Record, reader

_NAMES = {
    "input_tokens": "prompt_ids",
    "output_tokens": "response_ids",
    "output_logprobs": "rollout_log_probs",
    "prompt": "prompt",
    "completion": "response",
    "rewards": "reward",
    "step": "step",
    "advantages": "advantage",
    "input_logprobs": "prompt_log_probs",
}
_PARTS = ("task_rewards", "length_penalties")

_NEEDED = ("input_tokens", "output_tokens", "rewards", "advantages")


@reader(
    files=(".parquet",),
    shape="parquet",
    keys=("input_tokens", "output_tokens", "rewards", "advantages"),
    supplies=(
        "group_id", "prompt", "response", "prompt_ids", "response_ids", "reward", "correct", "rollout_log_probs",
        "rewards", "step",
    ),
    threshold=0.0,
)  # fmt: skip
def prime_rl_parquet(records: Iterator[Record], options: ReaderOptions) -> Iterator[pa.RecordBatch]:
    """Read the rollout files of older prime-rl, `step_<N>/*.parquet`.

    Source: prime-rl `zeroband/utils/parquet.py` (`pa_schema`), read in a public fork. reward is `rewards`, the task's
    reward less the penalty for length; correct is `task_rewards` > 0, so a penalty does not make a right answer wrong.
    Both parts are kept in `rewards`. The group is `problem_id` in its step, or where the file has none, the prompt's
    ids. The scalar `advantages` passes through as `advantage`, `input_logprobs` as `prompt_log_probs`. There is no mask
    of tool text.
    """
    for record in records:
        check_columns(_NEEDED, "prime_rl_parquet", record)
        batch = record.value
        columns = {new: batch.column(old) for old, new in _NAMES.items() if old in batch.schema.names}
        if "step" not in columns and (step := step_in(record.file, r"step_(\d{1,12})")) is not None:
            columns["step"] = pa.array([step] * len(batch), pa.int64())
        if "task_rewards" in batch.schema.names:
            task = batch.column("task_rewards").cast(pa.float64())
            columns["correct"] = pc.if_else(pc.is_nan(task), None, pc.greater(task, 0.0))
        parts = [name for name in _PARTS if name in batch.schema.names]
        if parts:
            columns["rewards"] = _rewards(batch, parts)
        others = (name for name in batch.schema.names if name not in _NAMES and name not in parts)
        columns |= {name: batch.column(name) for name in others if name not in columns}
        yield pa.RecordBatch.from_pydict(columns)


def _fits(schema: pa.Schema) -> bool:
    return pa.types.is_floating(schema.field("rewards").type)


prime_rl_parquet.fits = _fits


def _rewards(batch: pa.RecordBatch, parts: list[str]) -> pa.Array:
    values = np.stack([np.asarray(batch.column(name).cast(pa.float64()).fill_null(np.nan)) for name in parts], 1)
    offsets = pa.array(np.arange(len(batch) + 1, dtype=np.int32) * len(parts))
    items = pa.array(values.ravel(), mask=np.isnan(values.ravel()))
    return pa.MapArray.from_arrays(offsets, pa.array(parts * len(batch), pa.string()), items)
