"""ROLL rollout dumps: `rollout_dump_data.step_<N>.jsonl`, one line a step."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.readers._columnar import columnar_rows
from ktae_cli.readers._fields import as_label, with_rest
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("prompt", "responses", "scores"),
    supplies=("group_id", "prompt", "response", "reward", "ground_truth", "step"),
)
def roll(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the dumps of ROLL's RLVR pipeline: each line holds a whole step, one list for each column.

    Source: ROLL `roll/pipeline/rlvr/utils.py`, `write_to_json_process`. A group is a row of the dataset (`id`) in one
    step; a dump without `id` has the prompt in its place. The dumps of the agentic pipeline hold other columns
    (JSON text of trajectories) and are not read.
    """
    for record in records:
        for rest in columnar_rows(record, "responses", options):
            step, key = rest.pop("global_step", None), rest.pop("id", None)
            row = {}
            if key is not None:
                row["group_id"] = f"{'' if step is None else f'{step}/'}{as_label(key, 'id', record)}"
            row["prompt"], row["response"] = text_of(rest.pop("prompt", None)), text_of(rest.pop("responses"))
            row["reward"], row["ground_truth"] = rest.pop("scores", None), rest.pop("ground_truth", None)
            if step is not None:
                row["step"] = step
            yield with_rest(row, rest)


def _fits(record: dict[str, Any]) -> bool:
    return isinstance(record["responses"], list) and isinstance(record["scores"], list)


roll.fits = _fits
