"""Where the rows of a foreign dump stand: file, line, and which of a line's rollouts a row is."""

from array import array
from bisect import bisect_right
from functools import cached_property

import numpy as np

UNITS = {"lines": "line", "parquet": "row"}


class Places:
    """The place of each row, some bytes a row: lines are counted from 1, rows of Parquet and rollouts from 0."""

    def __init__(self, shape: str):
        self.unit = UNITS.get(shape, "")
        self.starts: list[int] = []  # first row of each file
        self.numbers = array("q")

    def __len__(self) -> int:
        return len(self.numbers)

    def begin_file(self) -> None:
        """Let the rows that follow be of the next file."""
        self.starts.append(len(self))

    def extend(self, numbers: np.ndarray) -> None:
        """Append rows, numbers (n_rows,)."""
        self.numbers.frombytes(numbers.astype(np.int64).tobytes())

    def keep(self, first: int, kept: np.ndarray) -> None:
        """Take rows from `first` on out again where kept (n_rows - first,) bool is false."""
        numbers = np.frombuffer(self.numbers[first:], np.int64)[kept]
        del self.numbers[first:]
        self.extend(numbers)
        self.starts = [s if s <= first else first + int(np.count_nonzero(kept[: s - first])) for s in self.starts]

    def at(self, row: int, files: list[str]) -> str:
        """Return file and line of a row, also while rows are being added."""
        file = files[max(bisect_right(self.starts, row) - 1, 0)]
        return f"{file}, {self.unit} {self.numbers[row]}" if self.unit else file

    def parts(self, row: int, files: list[str]) -> tuple[str, int | None, int | None]:
        """Return (file, line, rollout) of a row.

        The line is None where a file has none, the rollout where it is the only one of its line.
        """
        runs = self._runs
        run = int(np.searchsorted(runs, row, "right")) - 1
        end = runs[run + 1] if run + 1 < len(runs) else len(self)
        alone = self.unit and end - runs[run] == 1
        file = files[bisect_right(self.starts, row) - 1]
        return file, self.numbers[row] if self.unit else None, None if alone else row - int(runs[run])

    @cached_property
    def _runs(self) -> np.ndarray:
        """First row of each line that holds rollouts."""
        new = np.diff(np.frombuffer(self.numbers, np.int64), prepend=-1) != 0
        new[[start for start in self.starts if start < len(new)]] = True
        return np.flatnonzero(new)
