"""What commands say on stderr: notices, warnings and progress; data never goes here."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ktae_cli.errors import KtaeError


def say(text: str) -> None:
    """Print one line on stderr, control characters of file names and model text made visible.

    A stderr that cannot be written (full, closed) loses the line and those after it; the work goes on.
    """
    try:
        print("".join(c if c.isprintable() else repr(c)[1:-1] for c in text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def speaker(quiet: bool, prefix: str = "") -> Callable[[str], None]:
    """Return a function that prints lines with a prefix, or nothing under --quiet."""
    return (lambda text: None) if quiet else lambda text: say(prefix + text)


class ProgressBar:
    """A bar on stderr for work of more than two seconds, on a terminal only."""

    def __init__(self, quiet: bool, unit: str = "rollouts"):
        self.started, self.bar, self.unit = time.monotonic(), None, unit
        self.silent = quiet or not sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """Report progress."""
        if self.silent or (self.bar is None and time.monotonic() - self.started < 2):
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(self.unit, total=total)
        self.bar.update(self.task, completed=done)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar:
            self.bar.stop()


def parse_map(pairs: list[str] | None) -> dict[str, str]:
    """Return --map options as canonical name -> column; raise `KtaeError` for one without `=` or given twice."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, column = pair.partition("=")
        if not equals or not name or not column:
            raise KtaeError(f"--map {pair}: expected canonical=column, as in --map reward=score")
        if name in found:
            raise KtaeError(f"--map {name} is given twice")
        found[name] = column
    return found


def input_name(text: str) -> str:
    """Return the name of an input; an empty one (an unset shell variable) would read the current directory."""
    if not text:
        raise KtaeError("the name of an input is empty; give a file, a directory, a glob or -")
    return text


def input_path(text: str) -> Path:
    """Return the path of an input, which must not be empty."""
    return Path(input_name(text))


def split_names(texts: list[str] | None) -> tuple[str, ...]:
    """Return option values that may be repeated or joined by commas."""
    return tuple(name.strip() for text in texts or [] for name in text.split(",") if name.strip())
