"""Time reading JSON lines into a source of rollouts against a loop that parses each line with orjson and drops it.

    python benchmarks/reading.py [--quick] [--markdown]

Three files: text rows as a trainer writes them, in English, in English with some mathematics (few rows are ASCII), and
rows of token ids with log-probabilities. A second loop does with each value the least that keeping it takes: texts
become UTF-8, lists numpy arrays. Loops and reading take turns in one process; a ratio is the median over the repeats of
the ratios within a repeat, of wall time. Exit status 1 where a target is missed; --quick takes little data and checks
that it works.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
from _report import exit_status, format_table, say

from ktae_cli.inputs import open_rollouts

TARGET = 1.5
"""Of the plain loop for text, of the loop that keeps the values for token ids."""
GREEK = ["π", "≤", "√", "θ", "×", "é"]


def write_text(path: Path, size: int, share: float) -> None:
    """Write rows of prompt and response of some thousand characters; `share` of the words hold a Greek letter."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    words += draw.choices(GREEK, k=round(5000 * share))

    def text(n: int) -> str:
        return " ".join(draw.choices(words, k=n))

    with open(path, "wb") as file:
        row = 0
        while file.tell() < size:
            record = {"group_id": f"g{row // 8}", "prompt": text(60), "response": text(draw.randint(200, 1200))}
            record |= {"reward": float(row % 3 == 0), "ground_truth": str(row % 97), "step": row // 64}
            file.write(orjson.dumps(record) + b"\n")
            row += 1


def write_ids(path: Path, size: int) -> None:
    """Write rows of some hundred token ids and log-probabilities."""
    draw = random.Random(0)
    with open(path, "wb") as file:
        row = 0
        while file.tell() < size:
            n = draw.randint(100, 1000)
            record = {"group_id": f"g{row // 8}", "response_ids": [draw.randrange(150_000) for _ in range(n)]}
            record |= {"rollout_log_probs": [-draw.random() for _ in range(n)], "reward": float(row % 3 == 0)}
            file.write(orjson.dumps(record) + b"\n")
            row += 1


def parse_only(path: Path) -> int:
    """Parse each line and return how many there are."""
    lines = 0
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
            lines += 1
    return lines


def keep_values(path: Path) -> int:
    """Parse each line, turn its texts into UTF-8 and its lists into arrays, and return how many lines there are."""
    lines = 0
    with open(path, "rb") as file:
        for line in file:
            for name, value in orjson.loads(line).items():
                if type(value) is str:
                    value.encode()
                elif type(value) is list:
                    np.array(value, np.int32 if name == "response_ids" else np.float32)
            lines += 1
    return lines


def read(path: Path) -> int:
    """Open the file as rollouts and return how many there are."""
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as scratch:
        return open_rollouts([str(path)], scratch).n_rows


def compare(path: Path, repeats: int) -> tuple[list[float], float, float]:
    """Return lines a second of both loops and of reading, and how many times slower than each loop reading is."""
    times = []
    lines = parse_only(path)
    assert read(path) == keep_values(path) == lines
    for _ in range(repeats):
        seconds = []
        for work in (parse_only, keep_values, read):
            start = time.perf_counter()
            work(path)
            seconds.append(time.perf_counter() - start)
        times.append(seconds)
    speeds = [lines / statistics.median(column) for column in zip(*times, strict=True)]
    slower = (statistics.median(seconds[2] / seconds[loop] for seconds in times) for loop in (0, 1))
    return speeds, *slower


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data, no target")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    size, repeats = (1 << 20, 2) if options.quick else (200 << 20, options.repeats)
    rows, missed = [], []
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as directory:
        path = Path(directory) / "rows.jsonl"
        makers = {
            "English text": lambda: write_text(path, size, 0.0),
            "text with mathematics": lambda: write_text(path, size, 0.02),
            "token ids and log-probs": lambda: write_ids(path, size),
        }
        for name, make in makers.items():
            say(f"{name}: {size >> 20} MB")
            make()
            speeds, plain, kept = compare(path, repeats)
            ratio = plain if "text" in name else kept
            rows.append([name, *(f"{speed:,.0f}" for speed in speeds), f"{plain:.2f}", f"{kept:.2f}"])
            if ratio > TARGET:
                missed.append(f"{name} {ratio:.2f} times slower than the loop (at most {TARGET})")
    head = ["lines a second", "orjson loop", "values kept", "reading", "times the loop", "times values kept"]
    print(format_table(head, rows, options.markdown))
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
