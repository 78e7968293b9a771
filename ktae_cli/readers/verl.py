"""verl: JSON lines of the trainer and of its validation, one for each rollout."""

from collections.abc import Iterator
from math import isnan
from typing import Any

from ktae_cli.readers._fields import as_label, as_verdict, with_rest
from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("input", "output", "score"),
    supplies=("group_id", "rollout_id", "prompt", "response", "reward", "correct", "ground_truth", "step"),
    threshold=0.0,
)
def verl(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the rollouts that verl writes to `trainer.rollout_data_dir` and `trainer.validation_data_dir`.

    Source: verl `ray_trainer.py` (`_log_rollout_data`, `_dump_generations`, `_validate`) and, with `uid`, the v1
    trainer's `trainer_base.py`; the parts of a uid are those of `agent_loop_tq.py`, `{uid}_{session}_{index}`. A
    session's outputs share the reward of the last one, so they are parts of one rollout.

    reward is `score`. correct is `acc` where the reward function gives one: true, false, 0 or 1, or, where it returns
    a single number, that number, right above 0. Without `acc` the score decides. Rows without `uid` (the v0 trainer)
    are grouped by step and prompt: their order in the file says nothing, the trainer balances it over the GPUs.
    The text has lost special tokens, token ids and the tool mask.
    """
    for record in records:
        rest = dict(record.value)
        row = {"prompt": rest.pop("input", None), "response": rest.pop("output", None)}
        row["reward"] = rest.pop("score", None)
        verdict = options.take_correct(rest) or "acc"
        if verdict in rest:
            row["correct"] = _verdict(rest[verdict], verdict, record)
        row["ground_truth"] = rest.pop("gts", None)
        row["step"] = rest.pop("step", None)
        if row["step"] is None:
            row["step"] = step_in(record.file, r"(\d{1,12})\.jsonl.*")
        if rest.get("uid") is not None:
            row |= _ids(as_label(rest["uid"], "uid", record))
        if isinstance(rest.get("acc"), bool):
            del rest["acc"]
        if rest.get("reward") == row["reward"]:
            rest.pop("reward", None)
        yield with_rest(row, rest)


def _ids(uid: str) -> dict[str, str]:
    parts = uid.rsplit("_", 2)
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return {"group_id": parts[0], "rollout_id": f"{parts[0]}_{parts[1]}"}
    return {"group_id": uid}


def _verdict(value: Any, name: str, record: Record) -> bool | None:
    """Return the verdict; a number other than 0 and 1 is a reward function's only result, right above 0."""
    if value is True or value is False:
        return value
    if isinstance(value, int | float) and not isnan(value):
        return value > 0
    return as_verdict(value, name, record)
