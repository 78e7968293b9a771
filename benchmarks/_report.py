"""What the benchmarks share: the tables they print, the exit status they end with, the `ktae` they run."""

import shutil
import sys
from pathlib import Path


def format_table(head: list[str], rows: list[list[str]], markdown: bool) -> str:
    """Lay out a table, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def lay(row: list[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip()

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [lay(head), *([f"| {' | '.join(rule)} |"] if markdown else []), *map(lay, rows)]
    return "\n".join(lines)


def find_ktae() -> str:
    """Return the `ktae` of the running interpreter's environment."""
    directory = Path(sys.executable).parent
    found = shutil.which("ktae", path=str(directory))
    if not found:
        sys.exit(f"no ktae in {directory}: install the project in this environment first")
    return found


def exit_status(missed: list[str], quick: bool) -> int:
    """Name the missed targets and return 1 where there are any; a quick run has none."""
    if not missed or quick:
        return 0
    sys.stdout.flush()
    print("missed: " + "; ".join(missed), file=sys.stderr)
    return 1


def say(text: str) -> None:
    """Tell on the error stream what is being done."""
    print(f"... {text}", file=sys.stderr, flush=True)
