"""Measure the peak memory of `ktae convert` and `ktae score` on inputs far larger than it may be.

    python benchmarks/memory.py [--quick] [--markdown]

A file of 1 GiB of JSON lines, and a Parquet file that holds 2 GiB of text, with token ids, in one row group. Each
command runs in a process of its own, and its peak of resident memory is printed with the target of 1 GiB. Takes some
5 GB of temporary disk. Exit status 1 where the target is missed; --quick takes little data and checks that it works.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from _report import exit_status, find_ktae, format_table, say
from reading import write_text

PEAK_BYTES = 1 << 30
GROUP_SIZE = 8
# A process reports at least what its parent held when it was started: a small one stands between.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


def write_one_row_group(path: Path, size: int) -> None:
    """Write a Parquet file of one row group with `size` bytes of text, and a token id for each word of a response.

    The texts of a piece of some 32 MB are written again and again, each time as other groups: a row group is written
    column by column from pieces that lie in memory once.
    """
    lines = path.with_suffix(".jsonl")
    write_text(lines, min(size // 4, 32 << 20), 0.0)
    with open(lines, "rb") as file:
        texts = [orjson.loads(line) for line in file]
    schema = pa.schema([("prompt", pa.string()), ("response", pa.string())])
    piece = pa.Table.from_pylist(texts, schema)
    lines.unlink()
    piece = piece.slice(0, len(piece) // GROUP_SIZE * GROUP_SIZE)
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 600, len(piece))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    ids = pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 150_000, lengths.sum()).astype(np.int32)))
    piece = piece.append_column("response_ids", ids)
    times = -(-size // piece.select(["prompt", "response"]).nbytes)
    whole = pa.concat_tables([piece] * times)
    rows = np.arange(len(whole))
    whole = whole.append_column("group_id", pa.array(rows // GROUP_SIZE).cast(pa.string()))
    whole = whole.append_column("reward", pa.array((rows % 3 == 0).astype(np.float64)))
    pq.write_table(whole, path, row_group_size=len(whole), compression="snappy", use_dictionary=False)
    assert pq.ParquetFile(path).num_row_groups == 1


def measure_peak(command: list[str], directory: Path) -> int:
    """Run `ktae` in a process of its own and return its peak of resident memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, find_ktae(), *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    if done.returncode:
        sys.exit(f"ktae {' '.join(command)} ended with status {done.returncode}")
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data, no target")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    lines_size, group_size = (4 << 20, 8 << 20) if options.quick else (1 << 30, 2 << 30)
    rows, missed = [], []
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as name:
        directory = Path(name)
        lines, parquet = directory / "lines.jsonl", directory / "one_row_group.parquet"
        cases = [
            (lines, lines_size, lambda: write_text(lines, lines_size, 0.02), ["convert"]),
            (parquet, group_size, lambda: write_one_row_group(parquet, group_size), ["convert", "score"]),
        ]
        for path, size, make, commands in cases:
            say(f"writing {path.name}: {size >> 20} MiB of text")
            make()
            for command in commands:
                output = directory / "out.parquet"
                shown = f"ktae {command} {path.name} -o {output.name}"
                say(shown)
                peak = measure_peak([command, str(path), "-o", str(output), "--force", "--quiet"], directory)
                rows.append([f"`{shown}`", f"{size >> 20}", f"{peak / 2**20:.0f}", f"<= {PEAK_BYTES >> 20}"])
                if peak > PEAK_BYTES:
                    missed.append(f"{shown} takes {peak / 2**20:.0f} MiB (at most {PEAK_BYTES >> 20})")
                for made in directory.glob("out.*"):
                    made.unlink()
            path.unlink()
    print(format_table(["peak memory of", "MiB of text", "MiB", "target"], rows, options.markdown))
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
