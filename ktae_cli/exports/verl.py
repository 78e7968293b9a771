"""Export to verl: the tensors of a DataProto."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from ktae_cli.exports._padding import left_padded, right_padded
from ktae_cli.exports._tensors import save_tensors
from ktae_cli.exports.base import Batch, ExportRows, export

_FIELDS = {
    "old_log_probs": ("old_log_probs", "rollout_log_probs"),
    "rollout_log_probs": ("rollout_log_probs",),
    "ref_log_prob": ("ref_log_probs",),
}


@export(
    suffix=".safetensors",
    alignment="response only, right-padded: value t belongs to token t of responses; prompts are left-padded",
    reads=("rollout_log_probs", "old_log_probs", "ref_log_probs"),
)
def verl(rows: ExportRows, target: Path, *, pad: int = 0) -> None:
    """The tensors of a verl DataProto as safetensors, one row for each rollout.

    prompts (B, P) padded on the left, responses (B, R) on the right, input_ids, attention_mask and position_ids
    (B, P + R), response_mask (B, R), all int64; advantages, returns, token_level_scores and the log-probabilities that
    every rollout has (old_log_probs, rollout_log_probs, ref_log_prob) are (B, R) float32, 0 at padding. returns repeats
    the advantages: there is no critic. A score is the reward, at the last token of the response, 0 where it is unknown.
    correct (B,) int64 is the verdict, -1 unknown. pad: id of the padding.
    `ktae_cli.integrations.verl.load_dataproto` makes the DataProto, with `uid` the group and `acc` the verdict.
    Source: verl 0.9.1 `verl/workers/utils/losses.py` (`ppo_loss`), `verl/trainer/ppo/ray_trainer.py`.
    """
    prompt, response = rows.widest(rows.facts.prompt), rows.widest(rows.facts.response)
    fields = rows.log_probs(_FIELDS)
    widths: dict[str, tuple[str, int | None]] = {"prompts": ("int64", prompt), "responses": ("int64", response)}
    widths |= dict.fromkeys(("input_ids", "attention_mask", "position_ids"), ("int64", prompt + response))
    floats = ["advantages", "returns", *fields, *(["token_level_scores"] if rows.scored.has("reward") else [])]
    widths |= {"response_mask": ("int64", response), **dict.fromkeys(floats, ("float32", response))}
    widths["correct"] = ("int64", None)
    chunks = (
        _chunk(batch, prompt, response, fields, pad) | {"correct": rows.facts.verdict[batch.numbers].astype(np.int64)}
        for batch in rows
    )
    save_tensors(rows, target, widths, chunks)


def _chunk(batch: Batch, prompt: int, response: int, fields: dict[str, str], pad: int) -> dict[str, np.ndarray]:
    flat = {name: batch.log_probs[column][0] for name, column in fields.items()}
    flat |= {"advantages": batch.values, "returns": batch.values, "response_mask": batch.mask.astype(np.int64)}
    chunk = {name: right_padded(values, batch.response, response) for name, values in flat.items()}
    before = left_padded(np.ones(len(batch.prompt_ids), np.int64), batch.prompt, prompt)
    after = right_padded(np.ones(len(batch.response_ids), np.int64), batch.response, response)
    chunk["attention_mask"] = np.hstack([before, after])
    chunk["position_ids"] = np.maximum(chunk["attention_mask"].cumsum(1) - 1, 0)
    chunk["prompts"] = left_padded(batch.prompt_ids.astype(np.int64), batch.prompt, prompt, pad)
    chunk["responses"] = right_padded(batch.response_ids.astype(np.int64), batch.response, response, pad)
    chunk["input_ids"] = np.hstack([chunk["prompts"], chunk["responses"]])
    if batch.rewards is not None:
        chunk["token_level_scores"] = _scores(batch.rewards, batch.response, response)
    return chunk


def _scores(rewards: pa.Array, lengths: np.ndarray, width: int) -> np.ndarray:
    """Return each reward at the last token of its response, (n, width) float32; an empty one has no token for it."""
    out = np.zeros((len(lengths), width), np.float32)
    there = np.flatnonzero(lengths)
    out[there, lengths[there] - 1] = np.nan_to_num(rewards.to_numpy(zero_copy_only=False))[there]
    return out
