"""verifiers evaluations of 2025: `results.jsonl` that `Dataset.to_json` wrote."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.readers._fields import place, with_rest
from ktae_cli.readers._messages import text_of
from ktae_cli.readers._named_verdicts import above_zero, verdict_name
from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("id", "prompt", "completion", "task", "generation_ms", "reward"),
    supplies=("prompt", "response", "reward", "correct", "rewards", "ground_truth"),
)
def verifiers_old(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the results of the old `vf-eval`, one rollout a line.

    Source: willccbb/verifiers `verifiers/scripts/eval.py`: every key after `reward` is a metric. Its `id` is
    `i // rollouts`, while the same file reads the results back as `i % examples`: it is kept and not trusted, the
    rollouts of one prompt are a group. Metrics and verdict as in `verifiers`.
    """
    for record in records:
        rest = dict(record.value)
        names = list(rest)
        after = names[names.index("reward") + 1 :] if "reward" in rest else []
        metrics = {name: rest.pop(name) for name in after if isinstance(rest[name], int | float | None)}
        row = {
            "prompt": text_of(rest.pop("prompt", None)),
            "response": text_of(rest.pop("completion", None)),
            "reward": rest.pop("reward", None),
            "rewards": metrics,
        }
        verdict = verdict_name(metrics, options, place(record))
        if verdict:
            row["correct"] = above_zero(metrics[verdict])
        row["ground_truth"] = rest.pop("answer", None)
        yield with_rest(row, rest)
