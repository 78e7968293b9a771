"""Do the survivors hold where verdicts are in doubt? The tests again with the doubtful verdicts set otherwise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.evidence.labels import Labels
from ktae_cli.plan import Plan
from ktae_cli.readers.base import column_at

OTHER_VERDICT = "input_correct"
"""Where `ktae verify` keeps the verdicts of a file that had some."""


def other_labels(plan: Plan, labels: Labels) -> dict[str, Labels]:
    """Return the labels under each doubt there is: unknown verdicts all right, all wrong; disagreements flipped."""
    found = {}
    unknown = (labels.correct < 0) & (labels.group >= 0)
    if unknown.any():
        found["unknown right"] = _with(labels, np.where(unknown, 1, labels.correct))
        found["unknown wrong"] = _with(labels, np.where(unknown, 0, labels.correct))
    other = _other_verdict(plan)
    if other is not None:
        flipped = (other >= 0) & (labels.correct >= 0) & (other != labels.correct)
        if flipped.any():
            found["disagreements flipped"] = _with(labels, np.where(flipped, other, labels.correct))
    return found


def _with(labels: Labels, correct: np.ndarray) -> Labels:
    correct = correct.astype(np.int8)
    return replace(labels, correct=correct, outcome=np.where(correct >= 0, correct, np.nan))


def _other_verdict(plan: Plan) -> np.ndarray | None:
    if OTHER_VERDICT not in plan.source.schema.names:
        return None
    parts = [column_at(batch, OTHER_VERDICT) for batch in plan.source.batches([OTHER_VERDICT])]
    values = pa.chunked_array(parts).cast(pa.float64(), safe=False).fill_null(-1).to_numpy()
    return np.where(np.isin(values, (0.0, 1.0)), values, -1).astype(np.int8)


def verdict_noise(
    plan: Plan, labels: Labels, survivors: set[int], survivors_under: Callable[[Labels], tuple[set[int], int]]
) -> list[dict[str, Any]]:
    """Return for each doubt how many verdicts change, how many units survive, and how many of ours are among them.

    survivors_under: labels -> the units that survive, and how many events they are.
    """
    report = []
    for doubt, others in other_labels(plan, labels).items():
        found, events = survivors_under(others)
        report.append(
            {
                "doubt": doubt, "verdicts": int(np.count_nonzero(others.correct != labels.correct)),
                "survive": events, "kept": len(found & survivors), "robust": survivors <= found,
            }
        )  # fmt: skip
    return report
