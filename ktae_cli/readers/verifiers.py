"""verifiers evaluations: `outputs/evals/<env>--<model>/<id>/results.jsonl`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ktae_cli.readers._fields import as_label, as_object, place, with_rest
from ktae_cli.readers._messages import text_of
from ktae_cli.readers._named_verdicts import above_zero, verdict_name
from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("example_id", "prompt", "completion", "reward"),
    supplies=("group_id", "prompt", "response", "reward", "correct", "rewards", "ground_truth", "finish_reason"),
)
def verifiers(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the results that `vf-eval` saves, one rollout a line; messages become one text.

    Source: verifiers `verifiers/legacy/utils/save_utils.py`, `state_to_output`. A group is an example of one
    evaluation: the name of the file's directory stands before `example_id`, which every evaluation counts from 0.
    `metrics` become `rewards`, their copies at the top level are left out. `correct` is the only metric that
    sounds like a verdict (above 0), or that of `--map correct=NAME`, else the reward decides. A rollout with an
    `error` has finish_reason error.
    """
    for record in records:
        rest = dict(record.value)
        metrics = as_object(rest.pop("metrics", None), "metrics", record)
        example = as_label(rest.pop("example_id", None), "example_id", record)
        row = {
            "group_id": f"{Path(record.file).parent.name or 'results'}/{example}",
            "prompt": text_of(rest.pop("prompt", None)),
            "response": text_of(rest.pop("completion", None)),
            "reward": rest.pop("reward", None),
            "rewards": metrics,
        }
        verdict = verdict_name(metrics, options, place(record))
        if verdict:
            row["correct"] = above_zero(metrics[verdict])
        row["ground_truth"] = rest.pop("answer", None)
        row["finish_reason"] = _finish_reason(rest)
        yield with_rest(row, {name: value for name, value in rest.items() if name not in metrics})


def _finish_reason(rest: dict[str, Any]) -> str | None:
    if rest.get("error"):
        return "error"
    if rest.get("is_truncated"):
        return "length"
    return "stop" if rest.get("is_completed") else None
