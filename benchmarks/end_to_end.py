"""Time scoring whole files against copying its output, and measure the memory that `ktae score` takes.

    python benchmarks/end_to_end.py [--quick] [--groups N] [--markdown]

Speed, in one process after its imports: `score` with all it writes, and `copy`, which reads the scored file row group
by row group and writes the same columns, row groups and encodings again, with no token table. They take turns; a ratio
is the median over the repeats of the ratios within a repeat. `score` has the threads of its default; `copy` has those
of Arrow's reader, and writes in the thread that reads.

Memory: the peak of resident memory of the command line in a process of its own, on files of N and of 4 N rollout
groups, on the same rows in one row group, and on rows in random order.

Exit status 1 where a target is missed; --quick takes little data and two repeats, and checks the results alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from _data import join_row_groups, write_rollouts
from _report import exit_status, find_ktae, format_table, say

from ktae_cli.memory import use_frugal_allocator
from ktae_cli.plan import ScoreOptions
from ktae_cli.scoring import score_files
from ktae_cli.writers.parquet import ParquetOutput

GROUPS, QUICK_GROUPS = 512, 16
SHUFFLED_GROUPS, QUICK_SHUFFLED_GROUPS = 6300, 63  # of some 16,000 tokens: 100 million and one
SPEED_TARGET, GROWTH_TARGET, SHUFFLED_TARGET = 1.4, 1.25, 600e6
OURS = ("advantages", "key_weight")

# A process reports at least what its parent held when it was started. This small one stands between, and so gives the
# peak of the command alone.
MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


def time_score(source: Path, scored: Path, write_tokens: bool) -> float:
    """Score a file as `ktae score` does, and return the seconds."""
    start = time.perf_counter()
    score_files([str(source)], scored, None, True, ScoreOptions(write_tokens=write_tokens))
    return time.perf_counter() - start


def time_copy(scored: Path, copy: Path) -> float:
    """Read a scored file and write it again under the settings that it was written with; return the seconds."""
    start = time.perf_counter()
    file = pq.ParquetFile(scored)
    output = ParquetOutput(copy, file.schema_arrow, OURS)
    for i in range(file.metadata.num_row_groups):
        table = file.read_row_group(i)
        output.writer.write_table(table, row_group_size=max(len(table), 1))
    output.close()
    return time.perf_counter() - start


def check_copy(scored: Path, copy: Path) -> None:
    """Assert that a copy holds the values of its source in the same row groups, encodings and codec."""
    one, two = pq.ParquetFile(scored), pq.ParquetFile(copy)
    assert one.metadata.num_row_groups == two.metadata.num_row_groups
    for i in range(one.metadata.num_row_groups):
        assert one.read_row_group(i).equals(two.read_row_group(i)), f"row group {i} differs"
        for j in range(one.metadata.num_columns):
            mine, theirs = (file.metadata.row_group(i).column(j) for file in (one, two))
            for name in ("path_in_schema", "compression", "encodings", "is_stats_set"):
                assert getattr(mine, name) == getattr(theirs, name), f"{mine.path_in_schema}: {name} differs"


def measure_speed(directory: Path, groups: int, repeats: int, text: bool) -> tuple[list[list[str]], float]:
    """Return the rows of the table for one file, and the time of `score` over that of `copy`."""
    name = "ids and text" if text else "ids"
    say(f"speed: {groups} groups, {name}")
    source, scored, copy = (directory / f"{part}.parquet" for part in ("speed", "speed.scored", "copy"))
    n_tokens = write_rollouts(source, groups, text=text)
    time_score(source, scored, True)
    time_copy(scored, copy)
    check_copy(scored, copy)
    times = {"score": [], "copy": [], "score, no token table": []}
    for _ in range(repeats):
        times["score"].append(time_score(source, scored, True))
        times["copy"].append(time_copy(scored, copy))
        times["score, no token table"].append(time_score(source, scored, False))
    rows, ratios = [], {}
    for what, seconds in times.items():
        median = statistics.median(seconds)
        ratios[what] = statistics.median(a / b for a, b in zip(seconds, times["copy"], strict=True))
        target = f"<= {SPEED_TARGET}" if text and what == "score" else ""
        cells = [f"{median:.2f}", f"{median * 1e9 / n_tokens:.0f}", f"{n_tokens / median / 1e6:.1f}"]
        rows.append([f"{what}: {n_tokens / 1e6:.1f} M tokens, {name}", *cells, f"{ratios[what]:.2f}", target])
    clear(directory)
    return rows, ratios["score"]


def measure_peak(source: Path, repeats: int = 1) -> float:
    """Return the peak of resident memory of `ktae score` on a file in bytes, the median of some runs."""
    directory = source.parent
    command = [find_ktae(), "score", str(source), "-o", str(directory / "peak.scored.parquet"), "--force", "--quiet"]
    peaks = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *command],
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
        peaks.append(int(done.stdout) * (1 if sys.platform == "darwin" else 1024))
    return statistics.median(peaks)


def measure_memory(directory: Path, groups: int, shuffled: int, repeats: int) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table and the missed targets."""
    rows = []

    def note(what: str, n_tokens: int, peak: float, target: str = "", ratio: str = "") -> None:
        rows.append([what, f"{n_tokens / 1e6:.2f}", f"{peak / 1e6:.0f}", ratio, target])

    source, joined = directory / "memory.parquet", directory / "joined.parquet"
    say("memory: one group")
    n_tokens = write_rollouts(source, 1)
    note("one group", n_tokens, measure_peak(source, repeats))
    say(f"memory: {groups} groups")
    n_tokens = write_rollouts(source, groups)
    base = measure_peak(source, repeats)
    note("N", n_tokens, base)
    say(f"memory: {4 * groups} groups")
    n_tokens = write_rollouts(source, 4 * groups)
    peak = measure_peak(source, repeats)
    growth = peak / base
    note("4 N", n_tokens, peak, f"<= {GROWTH_TARGET} x N", f"{growth:.2f}")
    say(f"memory: {4 * groups} groups in one row group")
    join_row_groups(source, joined)
    peak = measure_peak(joined, repeats)
    note("4 N in one row group", n_tokens, peak, ratio=f"{peak / base:.2f}")
    clear(directory)
    say(f"memory: {shuffled} groups, rows in random order")
    n_tokens = write_rollouts(source, shuffled, text=False, shuffled=True)
    peak = measure_peak(source, repeats)
    note("rows in random order, ids", n_tokens, peak, f"< {SHUFFLED_TARGET / 1e6:.0f} MB")
    clear(directory)
    missed = []
    if growth > GROWTH_TARGET:
        missed.append(f"the peak at 4 N is {growth:.2f}x that at N, wanted {GROWTH_TARGET}x")
    if peak >= SHUFFLED_TARGET:
        missed.append(f"rows in random order take {peak / 1e6:.0f} MB, wanted {SHUFFLED_TARGET / 1e6:.0f} MB")
    return rows, missed


def clear(directory: Path) -> None:
    """Remove the files of one measurement, so that the disk holds those of one at a time."""
    for path in directory.glob("*.parquet"):
        path.unlink()


def main() -> int:
    """Print the tables and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data, two repeats, no targets")
    parser.add_argument("--groups", type=int, help=f"groups of 16 x 1000 tokens, by default {GROUPS}")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args()
    groups = options.groups or (QUICK_GROUPS if options.quick else GROUPS)
    shuffled = QUICK_SHUFFLED_GROUPS if options.quick else SHUFFLED_GROUPS
    repeats, runs = (2, 1) if options.quick else (options.repeats, 3)
    use_frugal_allocator()
    find_ktae()
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as name:
        directory = Path(name)
        with_text, ratio = measure_speed(directory, groups, repeats, text=True)
        with_ids, _ = measure_speed(directory, groups, repeats, text=False)
        head = [f"median of {repeats}", "s", "ns/token", "M tokens/s", "x copy", "target"]
        print(format_table(head, with_text + with_ids, options.markdown), end="\n\n", flush=True)
        rows, missed = measure_memory(directory, groups, shuffled, runs)
        print(format_table(["peak memory of", "M tokens", "MB", "x N", "target"], rows, options.markdown))
    if ratio > SPEED_TARGET:
        missed.insert(0, f"score takes {ratio:.2f}x the time of copy, wanted {SPEED_TARGET}x")
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
