"""Export to OpenRLHF: the tensors of an Experience."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ktae_cli.exports._padding import right_padded
from ktae_cli.exports._shifted import with_first_token, without_first
from ktae_cli.exports._tensors import save_tensors
from ktae_cli.exports.base import ExportRows, export

_FIELDS = {
    "action_log_probs": ("old_log_probs", "rollout_log_probs"),
    "rollout_log_probs": ("rollout_log_probs",),
    "base_action_log_probs": ("ref_log_probs",),
}


@export(
    suffix=".safetensors",
    alignment="shifted, T - 1, right-padded: value [i, t] belongs to token [i, t + 1] of sequences",
    reads=("old_log_probs", "rollout_log_probs", "ref_log_probs"),
)
def openrlhf(rows: ExportRows, target: Path, *, bos: int = -1, pad: int = 0) -> None:
    """The tensors of OpenRLHF's Experience as safetensors, padded on the right.

    sequences and attention_mask are (rollouts, T), T the longest sequence; action_mask, advantages, returns and the
    log-probabilities that every rollout has are (rollouts, T - 1); rewards (NaN where unknown), response_length,
    total_length and truncated hold one value a rollout. returns repeats the advantages: there is no critic.
    bos: id put before responses without prompt_ids. pad: id of the padding.
    Source: OpenRLHF `openrlhf/trainer/ppo_utils/experience.py` (`Experience`), `samples_generator.py`.
    """
    prompt = np.where(rows.facts.prompt == 0, 1, rows.facts.prompt) if bos >= 0 else rows.facts.prompt
    width = rows.widest(prompt + rows.facts.response)
    batches = with_first_token(rows, bos, width)
    fields, shorter = rows.log_probs(_FIELDS), max(width - 1, 0)
    shapes: dict[str, tuple[str, int | None]] = dict.fromkeys(("sequences", "attention_mask"), ("int64", width))
    shapes["action_mask"] = ("bool", shorter)
    shapes |= dict.fromkeys(("advantages", "returns", *fields), ("float32", shorter))
    shapes |= {"rewards": ("float32", None), "truncated": ("bool", None)}
    shapes |= dict.fromkeys(("response_length", "total_length"), ("int64", None))
    save_tensors(rows, target, shapes, _chunks(rows, batches, width, fields, pad))


def _chunks(
    rows: ExportRows, batches: Iterator, width: int, fields: dict[str, str], pad: int
) -> Iterator[dict[str, np.ndarray]]:
    for batch in batches:
        flat = {name: batch.log_probs[column][0] for name, column in fields.items()}
        flat |= {"advantages": batch.values, "returns": batch.values, "action_mask": batch.mask}
        actions = np.maximum(batch.lengths - 1, 0)
        chunk = {
            name: right_padded(without_first(batch.full(values), batch.lengths), actions, max(width - 1, 0))
            for name, values in flat.items()
        }
        chunk["attention_mask"] = right_padded(np.ones(int(batch.lengths.sum()), np.int64), batch.lengths, width)
        chunk["sequences"] = right_padded(batch.full_ids(), batch.lengths, width, pad)
        unknown = np.full(len(batch), np.nan)
        chunk["rewards"] = unknown if batch.rewards is None else np.asarray(batch.rewards.fill_null(np.nan))
        chunk["truncated"] = rows.facts.truncated[batch.numbers]
        yield chunk | {"response_length": batch.response, "total_length": batch.lengths}
