"""Export to NeMo-RL: the train batch of its clipped policy-gradient loss as tensors."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ktae_cli.exports._padding import right_padded
from ktae_cli.exports._tensors import save_tensors
from ktae_cli.exports.base import ExportRows, export

_FIELDS = {
    "prev_logprobs": ("old_log_probs", "rollout_log_probs"),
    "generation_logprobs": ("rollout_log_probs", "old_log_probs"),
    "reference_policy_logprobs": ("ref_log_probs",),
}


@export(
    suffix=".safetensors",
    alignment="full sequence, right-padded: value [i, t] belongs to token [i, t] of input_ids; 0 on prompt and padding",
    reads=("old_log_probs", "rollout_log_probs", "ref_log_probs"),
)
def nemo_rl(rows: ExportRows, target: Path, *, pad: int = 0) -> None:
    """The train data of NeMo-RL's ClippedPGLossFn as safetensors of shape (rollouts, longest sequence).

    input_ids, token_mask, advantages and the log-probabilities that every rollout has (prev_logprobs,
    generation_logprobs, reference_policy_logprobs); input_lengths and sample_mask hold one value a rollout, sample_mask
    0.0 for a rollout without a token on the mask. The loss drops the first column of each. pad: id of the padding.
    Source: NVIDIA-NeMo/RL `nemo_rl/algorithms/loss/loss_functions.py` (`ClippedPGLossDataDict`).
    """
    width = rows.widest(rows.facts.prompt + rows.facts.response)
    fields = rows.log_probs(_FIELDS)
    shapes: dict[str, tuple[str, int | None]] = {"input_ids": ("int64", width), "input_lengths": ("int64", None)}
    shapes |= dict.fromkeys(("token_mask", "advantages", *fields), ("float32", width))
    save_tensors(rows, target, shapes | {"sample_mask": ("float32", None)}, _chunks(rows, width, fields, pad))


def _chunks(rows: ExportRows, width: int, fields: dict[str, str], pad: int) -> Iterator[dict[str, np.ndarray]]:
    for batch in rows.narrow(width):
        flat = {name: batch.log_probs[column][0] for name, column in fields.items()}
        flat |= {"advantages": batch.values, "token_mask": batch.mask.astype(np.float32)}
        chunk = {name: right_padded(batch.full(values), batch.lengths, width) for name, values in flat.items()}
        chunk["input_ids"] = right_padded(batch.full_ids(), batch.lengths, width, pad)
        chunk["sample_mask"] = chunk["token_mask"].any(1).astype(np.float32)
        yield chunk | {"input_lengths": batch.lengths}
