"""What rules share: their declaration, what they find, and rows that are counted while they stream by."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ktae_cli.checks._rows import Rows

SEVERITIES = ("error", "warning", "note")


def rule(*, id: str, needs: tuple[str, ...], severity: str, sees: str) -> Callable[[Callable], Callable]:
    """Declare a rule: literals only, read from the source by `ktae_cli.catalogue` without importing the file.

    id: KT and three digits, the first the family. needs: canonical columns, `group` (a group key), `advantages` (a
    scored file), `tokenizer`, `end-of-text` or `padding` (known ids), `ratio` (log-probs of two policies); `a|b` is
    either. severity: "error" (a number would be wrong, or nothing can be scored), "warning" (the data is not what it
    seems) or "note" (worth knowing). sees: "input" (columns, before any row is read: fn(input)), "rows" (a generator
    that is sent one `Rows` after another, then None, and yields what it found) or "table" (a few numbers of every row:
    fn(table)). Parameters are keyword arguments with defaults, settable with `--set ID.parameter=value`.
    """
    return lambda function: function


@dataclass(frozen=True)
class Finding:
    """What a rule found: one line, the row where it shows first, and how many of how many."""

    message: str
    row: int | None = None
    count: int | None = None
    of: int | None = None


Watch = Generator[Finding | None, Rows | None, None]
"""A rule that sees rows: `while rows := (yield):` takes them, and after the last it yields its findings."""


class Marks:
    """Rows that a rule objects to, counted while they stream by; of the first the place and what is wrong are kept."""

    def __init__(self) -> None:
        self.count, self.of, self.row, self.detail = 0, 0, None, ""

    def add(
        self,
        rows: Rows,
        bad: np.ndarray,
        detail: Callable[[int], str] | None = None,
        among: np.ndarray | None = None,
    ) -> None:
        """Count rows (n,) bool, of all or of those `among`; detail(i) says what row i of the batch holds."""
        self.of += len(rows.numbers) if among is None else int(among.sum())
        found = np.flatnonzero(bad)
        self.count += len(found)
        if len(found) and self.row is None:
            self.row = int(rows.numbers[found[0]])
            self.detail = detail(int(found[0])) if detail else ""

    def findings(self, what: str, remedy: str = "", share: float = 0.0) -> Generator[Finding, Any, None]:
        """Yield one finding where more than `share` of the rows are marked."""
        if self.count and self.count > share * self.of:
            here = f", here {self.detail}" if self.detail else ""
            way = f"; {remedy}" if remedy else ""
            yield Finding(f"{of(self.count, self.of)} {what}{here}{way}", self.row, self.count, self.of)


def of(count: int, total: int) -> str:
    """Return "3 of 1,200", with the share where it is worth saying."""
    share = f" ({100 * count / total:.0f} %)" if count < total and count >= 0.005 * total and total >= 50 else ""
    return f"all {total:,}" if count == total > 1 else f"{count:,} of {total:,}{share}"


def as_ids(value: Any) -> tuple[int, ...]:
    """Return a parameter of token ids as a tuple; `none` is ()."""
    return () if value in ("none", "eos") else (value,) if isinstance(value, int) else tuple(value)
