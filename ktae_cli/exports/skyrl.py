"""Export to SkyRL: the fields of a TrainingInputBatch as tensors."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ktae_cli.exports._padding import left_padded
from ktae_cli.exports._tensors import save_tensors
from ktae_cli.exports.base import ExportRows, export

_FIELDS = {
    "action_log_probs": ("old_log_probs", "rollout_log_probs"),
    "rollout_logprobs": ("rollout_log_probs",),
    "base_action_log_probs": ("ref_log_probs",),
}


@export(
    suffix=".safetensors",
    alignment="response only, left-padded: the last value of a row belongs to the last token of its response",
    reads=("old_log_probs", "rollout_log_probs", "ref_log_probs"),
)
def skyrl(rows: ExportRows, target: Path, *, pad: int = 0) -> None:
    """The tensors of SkyRL's TrainingInput as safetensors; everything is padded on the left.

    sequences and attention_mask are (rollouts, longest sequence); loss_mask, response_mask, advantages, returns and the
    log-probabilities that every rollout has (action_log_probs, rollout_logprobs, base_action_log_probs) are (rollouts,
    longest response). returns repeats the advantages: there is no critic. pad: id of the padding.
    Source: NovaSky-AI/SkyRL `skyrl/backends/skyrl_train/training_batch.py` (`TrainingInput`) and
    `convert_prompts_responses_to_batch_tensors`.
    """
    full = rows.widest(rows.facts.prompt + rows.facts.response)
    width = rows.widest(rows.facts.response)
    fields = rows.log_probs(_FIELDS)
    shapes: dict[str, tuple[str, int | None]] = dict.fromkeys(("sequences", "attention_mask"), ("int64", full))
    shapes |= {"response_mask": ("int64", width)}
    shapes |= dict.fromkeys(("loss_mask", "advantages", "returns", *fields), ("float32", width))
    save_tensors(rows, target, shapes, _chunks(rows, full, width, fields, pad))


def _chunks(
    rows: ExportRows, full: int, width: int, fields: dict[str, str], pad: int
) -> Iterator[dict[str, np.ndarray]]:
    for batch in rows.narrow(full):
        flat = {name: batch.log_probs[column][0] for name, column in fields.items()}
        flat |= {"advantages": batch.values, "returns": batch.values, "loss_mask": batch.mask.astype(np.float32)}
        flat["response_mask"] = np.ones(len(batch.mask), np.int64)
        chunk = {name: left_padded(values, batch.response, width) for name, values in flat.items()}
        ones = np.ones(int(batch.lengths.sum()), np.int64)
        chunk["attention_mask"] = left_padded(ones, batch.lengths, full)
        yield chunk | {"sequences": left_padded(batch.full_ids(), batch.lengths, full, pad)}
