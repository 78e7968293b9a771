"""Export to supervised fine-tuning: labels on the key tokens of right rollouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import ExportRows, export, split
from ktae_cli.readers.scored import RIGHT


@export(
    suffix=".jsonl",
    alignment="full sequence, unshifted: label t is token t or -100",
    sidecar=True,
    stdout=True,
    column="key_weight",
    refuses=("normalize", "clip"),
)
def sft(
    rows: ExportRows,
    target: Path | BinaryIO,
    *,
    min_weight: float = 0.0,
    only_correct: bool = True,
    ids: Literal["input_ids", "tokens"] = "input_ids",
) -> int:
    """One line for each rollout: input_ids, attention_mask and labels, -100 off the key tokens.

    A token keeps its label where the policy sampled it and its key weight (or the column of `--advantages`) is above
    min_weight; the first token of a sequence never does, since nothing predicts it. Groups that are not mixed have no
    key weights; min_weight=-1000 keeps every token of the policy. Rollouts without a label are left out.
    only_correct: right rollouts alone. ids: name of the ids' column, input_ids for TRL, axolotl and unsloth, tokens for
    torchtune.
    """
    return write_lines(_rows(rows, min_weight, only_correct, ids), target)


def _rows(rows: ExportRows, min_weight: float, only_correct: bool, name: str) -> Iterator[dict[str, Any]]:
    for batch in rows:
        sequences = batch.full_ids()
        keep = batch.full(batch.mask & (batch.values > min_weight))
        keep[batch.starts[:-1][batch.lengths > 0]] = False
        labels = np.where(keep, sequences, np.int32(-100))
        right = rows.facts.verdict[batch.numbers] == RIGHT
        parts = (split(flat, batch.lengths) for flat in (sequences, labels, keep))
        for at, (ids, label, kept) in enumerate(zip(*parts, strict=True)):
            if only_correct and not right[at]:
                rows.count("rollouts left out, not known to be right", 1)
            elif not kept.any():
                rows.count("rollouts left out, no token above min_weight", 1)
            else:
                line = {"rollout_id": batch.rollout_ids[at], "group_id": batch.group_ids[at], name: ids}
                yield line | {"attention_mask": np.ones(len(ids), np.int8), "labels": label}
