"""Rewards that are a number or a dict of named values: which one is the reward, and which says right or wrong."""

from dataclasses import replace
from math import isnan
from typing import Any

from ktae_cli.readers._fields import as_number
from ktae_cli.readers._named_verdicts import above_zero, verdict_name
from ktae_cli.readers.base import ReaderOptions, Record


def judge(rewards: list[Any], record: Record, options: ReaderOptions, said: set[str]) -> list[dict[str, Any]]:
    """Return of each sample {"row": reward, rewards and correct, "rest": the values of a reward dict}.

    Where one sample has a verdict, those without one are right above 0. Where no sample has a reward, none has the key.
    `said` keeps what the user was told already.
    """
    judged = []
    for reward in rewards:
        if isinstance(reward, dict):
            reward = {str(name): value for name, value in reward.items()}
        parts = _parts(reward, record) if isinstance(reward, dict) else {}
        total = _total(reward, parts, options, said) if parts else None
        if not isinstance(reward, dict):
            total = as_number(reward, "reward", record)
        row = {"reward": total} | ({"rewards": parts} if parts else {})
        name = _verdict_name(parts, record, options) if parts else None
        if name:
            row["correct"] = above_zero(parts[name])
        rest = {f"reward.{key}": value for key, value in reward.items()} if isinstance(reward, dict) else {}
        judged.append({"row": row, "rest": rest})
    if any("correct" in one["row"] for one in judged):
        for one in judged:
            known = one["row"]["reward"]
            one["row"].setdefault("correct", None if known is None or isnan(known) else known > 0)
    if all(one["row"]["reward"] is None for one in judged):
        for one in judged:
            del one["row"]["reward"]
    return judged


def _parts(reward: dict[str, Any], record: Record) -> dict[str, float | None]:
    return {name: as_number(v, name, record) for name, v in reward.items() if isinstance(v, bool | int | float)}


def _total(reward: dict[str, Any], parts: dict[str, float], options: ReaderOptions, said: set[str]) -> float | None:
    """Return the part that is the reward, and say once which one it is."""
    numbers = [name for name in parts if not isinstance(reward[name], bool)]
    chosen = next((name for name in ("score", "reward") if name in parts), None)
    if chosen is None and len(numbers) == 1:
        chosen = numbers[0]
    what = f"reward is {chosen!r}" if chosen else "none is called score or reward"
    text = f"a reward is a dict of {', '.join(reward)}: {what}; name another with --map reward=reward.NAME"
    if text not in said:
        said.add(text)
        (options.notice if chosen else options.warn)(text)
    return parts[chosen] if chosen else None


def _verdict_name(parts: dict[str, float], record: Record, options: ReaderOptions) -> str | None:
    column = (options.correct_column or "").removeprefix("reward.") or None
    if column in parts:
        options.taken.add("correct")
    return verdict_name(parts, replace(options, correct_column=column), record.file)
