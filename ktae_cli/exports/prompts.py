"""Export to a list of prompts: which are worth sampling again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import ExportRows, export
from ktae_cli.readers.scored import RIGHT, WRONG, texts_of


@export(
    suffix=".jsonl",
    alignment="one line for each group; no value for a token",
    sidecar=True,
    stdout=True,
    reads=("prompt", "ground_truth"),
    refuses=(
        "advantages",
        "normalize",
        "clip",
        "drop_dead_groups",
        "mask_truncated",
        "max_length",
        "loss",
        "allow_retokenized",
    ),
)
def prompts(rows: ExportRows, target: Path | BinaryIO, *, above: float = 0.0, below: float = 1.0) -> int:
    """One line for each group: its pass rate, and whether it teaches: kept, too_easy, too_hard or unknown.

    Dynamic sampling offline (DAPO, arXiv 2503.14476): a group is kept when above < pass rate < below, too hard when the
    rate is lower, too easy when it is higher, unknown when no verdict is known. The rate is right / (right + wrong);
    rollouts without a verdict are counted in n_unknown alone. With the defaults a prompt that was always solved is too
    easy and one that never was is too hard. rollout_id lists the rollouts of the group; unscored ones are there with
    `--null-advantages zero` alone.
    """
    return write_lines(_lines(rows, above, below), target)


def _lines(rows: ExportRows, above: float, below: float) -> Iterator[dict[str, Any]]:
    facts = rows.facts
    order = rows.rows[np.argsort(facts.group[rows.rows], kind="stable")]
    own = np.split(order, np.flatnonzero(np.diff(facts.group[order])) + 1) if len(order) else []
    members_of = {int(members[0]): members for members in own}
    for batch in rows.take(np.sort(np.asarray(list(members_of), np.int64))):
        texts = {name: texts_of(array) for name, array in batch.columns.items()}
        for at, number in enumerate(batch.numbers.tolist()):
            members = members_of[number]
            right, wrong = (int((facts.verdict[members] == verdict).sum()) for verdict in (RIGHT, WRONG))
            rate = right / (right + wrong) if right + wrong else None
            status = _status(rate, above, below)
            rows.count(f"prompts {status.replace('_', ' ')}", 1)
            line = {"group_id": batch.group_ids[at], "rollout_id": [facts.rollout_ids[row] for row in members]}
            line |= {"step": facts.steps[number]} | {name: values[at] for name, values in texts.items()}
            line |= {"status": status, "pass_rate": rate, "n_rollouts": len(members), "n_right": right}
            yield line | {"n_wrong": wrong, "n_unknown": len(members) - right - wrong}


def _status(rate: float | None, above: float, below: float) -> str:
    if rate is None:
        return "unknown"
    return "too_hard" if rate <= above else "too_easy" if rate >= below else "kept"
