"""Export to ms-swift: supervised messages with a weight for each token."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import ExportRows, export, split
from ktae_cli.readers.scored import texts_of


@export(
    suffix=".jsonl",
    alignment="response only: loss_scale t belongs to token_ids t; negative values are written as 0",
    sidecar=True,
    stdout=True,
    reads=("prompt",),
    needs=("prompt",),
)
def ms_swift(rows: ExportRows, target: Path | BinaryIO) -> int:
    """One line for each rollout: messages of ms-swift whose answer is token ids with loss_scale.

    loss_scale is the exported value where it is positive and the policy sampled the token, else 0.0: ms-swift gives
    weights up to 0 the label -100, so it cannot push a token down. A rollout without a positive value is left out.
    Train with `--is_binary_loss_scale false`. The prompt is text, which ms-swift puts into its own chat template.
    Source: ms-swift `swift/loss_scale/base.py` (`LossScale.__call__`); that a loader keeps such content is read in the
    code, not run.
    """
    return write_lines(_rows(rows), target)


def _rows(rows: ExportRows) -> Iterator[dict[str, Any]]:
    for batch in rows:
        scale = np.maximum(batch.values, np.float32(0))
        rows.count("tokens with a negative value written with loss_scale 0", int((batch.values < 0).sum()))
        parts = (split(flat, batch.response) for flat in (batch.response_ids, scale))
        ids, scales = parts
        for at, prompt in enumerate(texts_of(batch.columns["prompt"])):
            if not scales[at].any():
                rows.count("rollouts without a positive value left out", 1)
                continue
            answer = {"token_ids": ids[at], "loss_scale": scales[at]}
            messages = [{"role": "user", "content": prompt or ""}, {"role": "assistant", "content": answer}]
            yield {"rollout_id": batch.rollout_ids[at], "group_id": batch.group_ids[at], "messages": messages}
