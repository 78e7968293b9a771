"""Tables that hold one prompt a row and all its responses beside each other: what belongs to the prompt."""

from collections.abc import Iterable
from typing import Any

from ktae_cli.readers._messages import text_of
from ktae_cli.schema import BY_NAME

_PROMPTS = ("prompt", "problem", "question", "input", "query", "instruction")
_GROUND_TRUTHS = ("ground_truth", "answer", "final_answer", "gold", "expected_answer")
_ROLLOUT_COLUMNS = {"response", *BY_NAME["response"].aliases, "response_ids", *BY_NAME["response_ids"].aliases}
_IDS = ("group_id", "uuid", "problem_id", "prompt_id", "question_id", "example_id")


def holds_rollouts(names: Iterable[str]) -> bool:
    """Tell whether a table has a column of single responses: its rows are rollouts, not prompts."""
    return not _ROLLOUT_COLUMNS.isdisjoint(names)


def prompt_columns(names: Iterable[str]) -> dict[str, str]:
    """Return which column plays group_id, prompt and ground_truth, where there is one."""
    names = set(names)
    wanted = {"group_id": _IDS, "prompt": _PROMPTS, "ground_truth": _GROUND_TRUTHS}
    found = {part: next((name for name in known if name in names), None) for part, known in wanted.items()}
    return {part: name for part, name in found.items() if name}


def take_prompt(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """Take the prompt's canonical columns out of a row and return them."""
    taken = {part: row.pop(name) for part, name in columns.items()}
    if "prompt" in taken:
        taken["prompt"] = text_of(taken["prompt"])
    return taken
