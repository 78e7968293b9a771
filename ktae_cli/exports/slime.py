"""Export to slime: one Sample a line, its advantages where a custom advantage function finds them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import ExportRows, export, split
from ktae_cli.readers.scored import texts_of


@export(
    suffix=".jsonl",
    alignment="response only: value t of loss_mask, rollout_log_probs and advantages belongs to response token t",
    sidecar=True,
    stdout=True,
    reads=("rollout_log_probs", "prompt", "response", "ground_truth"),
)
def slime(rows: ExportRows, target: Path | BinaryIO) -> int:
    """One line for each rollout: rollout_id, group_id and the dict of slime's Sample.

    tokens is prompt and response, response_length the response; loss_mask and rollout_log_probs cover the response.
    train_metadata holds the advantages: slime hands it to `--custom-advantage-function-path` as
    `rollout_data["metadata"]`. docs/exports.md has that function and the lines that make the `.pt` file which
    `--load-debug-rollout-data` replays. group_index counts groups, index rollouts, in the order of the file.
    Source: THUDM/slime `slime/utils/types.py` (`Sample.from_dict`), `slime/ray/rollout.py` (`_get_rollout_data`,
    `_convert_samples_to_train_data`), `slime/backends/megatron_utils/loss.py` (`compute_advantages_and_returns`).
    """
    return write_lines(_samples(rows), target)


def _samples(rows: ExportRows) -> Iterator[dict[str, Any]]:
    has_log_probs = bool(rows.log_probs({"rollout_log_probs": ("rollout_log_probs",)}))
    for batch in rows:
        texts = {name: texts_of(array) for name, array in batch.columns.items()}
        masks = split(batch.mask.astype(np.int8), batch.response)
        values = split(batch.values, batch.response)
        log_probs = split(batch.log_probs["rollout_log_probs"][0], batch.response) if has_log_probs else []
        rewards = [None] * len(batch) if batch.rewards is None else batch.rewards.to_pylist()
        for at, ids in enumerate(split(batch.full_ids(), batch.lengths)):
            row = batch.numbers[at]
            sample = {
                "group_index": int(rows.facts.group[row]),
                "index": int(row),
                "prompt": (texts["prompt"][at] if "prompt" in texts else None) or "",
                "tokens": ids,
                "response": (texts["response"][at] if "response" in texts else None) or "",
                "response_length": int(batch.response[at]),
                "label": texts["ground_truth"][at] if "ground_truth" in texts else None,
                "reward": rewards[at],
                "loss_mask": masks[at],
                "rollout_log_probs": log_probs[at] if has_log_probs else None,
                "status": "truncated" if rows.facts.truncated[row] else "completed",
                "metadata": {},
                "train_metadata": {"rollout_id": batch.rollout_ids[at], "advantages": values[at]},
            }
            yield {"rollout_id": batch.rollout_ids[at], "group_id": batch.group_ids[at], "sample": sample}
