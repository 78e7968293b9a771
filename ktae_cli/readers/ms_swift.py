"""ms-swift GRPO logs: `completions.jsonl`, one line an event of logging."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.readers._columnar import columnar_rows
from ktae_cli.readers._fields import as_number, place, with_rest
from ktae_cli.readers._messages import text_of
from ktae_cli.readers._named_verdicts import above_zero, verdict_name
from ktae_cli.readers.base import ReaderOptions, Record, reader

_AROUND_THE_REWARDS = ("step", "prompt", "messages", "completion")


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("step", "completion"),
    supplies=("prompt", "response", "reward", "correct", "rewards", "step"),
)
def ms_swift(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the completions that ms-swift logs: each line holds one list for each column.

    Source: ms-swift `swift/rlhf_trainers/grpo_trainer.py`, `log`: between `completion` and `advantages` it writes one
    list for each reward function, under the function's name. The reward is their sum (the dump does not say the
    weights, which are 1 unless set), null where none applied (all null or NaN); they stay in `rewards`. `correct` is
    the sign of the only function that sounds like a verdict, else of `--map correct=NAME`. There is no group key:
    rollouts of one prompt in one step are a group. `entropy`, a mean over the tokens, is kept as `mean_entropy`.
    """
    for record in records:
        functions = _reward_functions(record.value)
        verdict = verdict_name(functions, options, place(record))
        for rest in columnar_rows(record, "completion", options):
            row = {
                "prompt": text_of(rest.pop("prompt", None) or rest.pop("messages", None)),
                "response": text_of(rest.pop("completion")),
            }
            parts = {name: as_number(rest.pop(name), name, record) for name in functions}
            known = [value for value in parts.values() if value is not None and value == value]
            if functions:
                row["reward"] = sum(known) if known else None
                row["rewards"] = parts
            if verdict:
                row["correct"] = above_zero(parts[verdict])
            row["step"] = rest.pop("step", None)
            if "entropy" in rest and not isinstance(rest["entropy"], list):
                rest["mean_entropy"] = rest.pop("entropy")
            yield with_rest(row, rest)


def _reward_functions(columns: dict[str, Any]) -> list[str]:
    """Return the columns of numbers that stand between the completion and the advantages, or the end."""
    names = list(columns)
    end = names.index("advantages") if "advantages" in names else len(names)
    between = [name for name in names[:end] if name not in _AROUND_THE_REWARDS]
    return [name for name in between if isinstance(columns[name], list) and _numeric(columns[name])]


def _numeric(values: list[Any]) -> bool:
    known = [value for value in values if value is not None]
    return all(isinstance(value, int | float) for value in known)


def _fits(record: dict[str, Any]) -> bool:
    return isinstance(record["completion"], list) and isinstance(record["step"], list)


ms_swift.fits = _fits
