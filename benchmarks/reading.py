"""Time reading JSON lines into a source of rollouts against a loop that parses each line with orjson and drops it.

    python benchmarks/reading.py [--quick] [--markdown]

Three files: text rows as a trainer writes them, in English, in English with some mathematics (few rows are ASCII), and
rows of token ids with log-probabilities. Loop and reading take turns in one process; a ratio is the median over the
repeats of the ratios within a repeat, of wall time. Then `ktae convert` reads a large file in a process of its own, and
its peak memory is printed. Exit status 1 where a target is missed; --quick takes little data and checks that it works.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
from _report import exit_status, find_ktae, format_table, say

from ktae_cli.inputs import open_rollouts

TARGET = 1.5
PEAK_BYTES = 1 << 30
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


def read(path: Path) -> int:
    """Open the file as rollouts and return how many there are."""
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as scratch:
        return open_rollouts([str(path)], scratch).n_rows


def compare(path: Path, repeats: int) -> tuple[float, float, float]:
    """Return lines a second of the loop and of reading, and how many times slower reading is: medians."""
    pairs = []
    lines = parse_only(path)
    assert read(path) == lines
    for _ in range(repeats):
        seconds = []
        for work in (parse_only, read):
            start = time.perf_counter()
            work(path)
            seconds.append(time.perf_counter() - start)
        pairs.append(seconds)
    loop, reading = (lines / statistics.median(column) for column in zip(*pairs, strict=True))
    return loop, reading, statistics.median(own / plain for plain, own in pairs)


def peak_of_convert(path: Path) -> int:
    """Convert a file in a process of its own and return its peak memory in bytes."""
    output = path.with_suffix(".out.parquet")
    subprocess.run([find_ktae(), "convert", path, "-o", output, "--force", "-q"], check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data, no target")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    size, large, repeats = (1 << 20, 4 << 20, 2) if options.quick else (200 << 20, 1 << 30, options.repeats)
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
            loop, reading, ratio = compare(path, repeats)
            rows.append([name, f"{loop:,.0f}", f"{reading:,.0f}", f"{ratio:.2f}"])
            if "text" in name and ratio > TARGET:
                missed.append(f"{name} {ratio:.2f} times slower than the loop (at most {TARGET})")
        say(f"converting {large >> 20} MB")
        write_text(path, large, 0.02)
        peak = peak_of_convert(path)
    print(format_table(["lines a second", "orjson loop", "reading", "times slower"], rows, options.markdown))
    print(f"\npeak memory of `ktae convert` on {large / 2**30:.2g} GiB of JSON lines: {peak / 2**20:.0f} MiB")
    if peak > PEAK_BYTES:
        missed.append(f"peak memory {peak / 2**20:.0f} MiB (at most {PEAK_BYTES >> 20})")
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
