"""Export to tinker: one Datum a line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports._shifted import with_first_token
from ktae_cli.exports.base import ExportRows, export, split


@export(
    suffix=".jsonl",
    alignment="shifted, T - 1: place t of target_tokens, logprobs and advantages belongs to token t + 1",
    sidecar=True,
    stdout=True,
    reads=("rollout_log_probs", "old_log_probs"),
)
def tinker(rows: ExportRows, target: Path | BinaryIO, *, bos: int = -1) -> int:
    """One line for each rollout: rollout_id, group_id and the Datum of tinker's policy losses.

    model_input is the sequence without its last token, target_tokens the one without its first; advantages and logprobs
    are 0.0 at targets of the prompt and off the mask. The logprobs of the policy that sampled are rollout_log_probs,
    else old_log_probs; without either they are left out, and `importance_sampling` and `ppo` need them. A sequence of
    fewer than two tokens is left out. bos: id put before responses without prompt_ids.
    Source: tinker 0.38 `types/datum.py`, tinker-cookbook `rl/data_processing.py` (`trajectory_to_data`).
    """
    return write_lines(_data(rows, bos), target)


def _data(rows: ExportRows, bos: int) -> Iterator[dict[str, Any]]:
    fields = rows.log_probs({"logprobs": ("rollout_log_probs", "old_log_probs")})
    for batch in with_first_token(rows, bos):
        values = {name: batch.full(batch.log_probs[column][0]) for name, column in fields.items()}
        values["advantages"] = batch.full(batch.values)
        cut = {name: split(flat, batch.lengths) for name, flat in values.items()}
        for at, ids in enumerate(split(batch.full_ids(), batch.lengths)):
            if len(ids) < 2:
                rows.count("rollouts of fewer than two tokens left out", 1)
                continue
            inputs = {"target_tokens": _tensor(ids[1:], "int64")}
            inputs |= {name: _tensor(parts[at][1:], "float32") for name, parts in cut.items()}
            model_input = {"chunks": [{"type": "encoded_text", "tokens": ids[:-1]}]}
            yield {
                "rollout_id": batch.rollout_ids[at],
                "group_id": batch.group_ids[at],
                "datum": {"model_input": model_input, "loss_fn_inputs": inputs},
            }


def _tensor(values: np.ndarray, dtype: str) -> dict[str, Any]:
    return {"data": values, "dtype": dtype, "shape": [len(values)]}
