"""Verdicts beside earlier ones in the terminal: the confusion table, then the rows that differ."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from ktae_cli.token_text import visible

SHOWN_ROWS = 20
LONGEST_TEXT = 60
_WORDS = {True: "right", False: "wrong", None: "unknown"}
_KEYS = (("true", "right"), ("false", "wrong"), ("null", "unknown"))


def print_differences(summary: dict[str, Any], console: Console) -> None:
    """Print what `ktae verify --compare` found."""
    for line in difference_lines(summary):
        console.print(Text(line), soft_wrap=True)


def difference_lines(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the lines: rows of the table are the earlier verdict, columns ours."""
    found = summary["compare"]
    name = visible(summary["earlier"])
    agreement = "no row has both verdicts" if found["agreement"] is None else f"agreement {found['agreement']:.4f}"
    yield f"{name} against verify: {agreement}, {found['differing']} of {summary['rollouts']} rows differ"
    width = max(len(name), len("unknown")) + len(" unknown")
    yield " " * width + "".join(f"{word:>10}" for _, word in _KEYS)
    for key, word in _KEYS:
        yield f"{name} {word}".ljust(width) + "".join(f"{found['table'][key][column]:>10}" for column, _ in _KEYS)
    if found["rows"]:
        yield ""
    for row in found["rows"][:SHOWN_ROWS]:
        yield (
            f"{visible(row['place'])}: {_WORDS[row['before']]} -> {_WORDS[row['correct']]}, "
            f"answer {_shown(row['answer'])}, gold {_shown(row['gold'])} ({row['status']}, {visible(row['path'])})"
        )
    if found["differing"] > SHOWN_ROWS:
        yield f"and {found['differing'] - min(SHOWN_ROWS, len(found['rows']))} more; --json has the first 1000"


def _shown(text: str) -> str:
    if not text:
        return "none"
    line = " ".join(text.split())
    return visible(line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…")
