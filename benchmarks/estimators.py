"""Time every estimator against the `ktae` kernel of the same run, on one thread.

    python benchmarks/estimators.py [--quick] [--markdown]

Input: the synthetic groups of kernel.py with random log-probabilities, entropies and marks of text; the statistics of
a batch-scope estimator are gathered and used in the time that is shown. Every repeat times all estimators one after
the other on the same chunks, each on batches that nothing has looked at before; a ratio is the median over the
repeats of the ratios within a repeat. `shared prefix` are groups whose rollouts have their first half in common, the
hard case of methods that walk along prefixes. Exit status 1 where an estimator takes more than its target.
"""

import argparse
import statistics
import sys
import time

import numpy as np
import torch
from _kernel_baselines import Batch
from _report import exit_status, format_table, say
from kernel import make_chunks

from ktae_cli.batch import TOKEN_COLUMNS, GroupBatch
from ktae_cli.catalogue import names
from ktae_cli.estimators.base import estimate

ROWS = {"G=16 L=1000": (16, 1000), "G=8 L=200": (8, 200), "shared prefix": (16, 1000)}
TARGET, TARGETS = 2.0, {"t_spmo": 5.0}  # largest time of each over the time of ktae
VARIANTS = ("tepo(link=prefix)", "sspo(delimiters=clause)", "ktae(tf=bounded)", "ktae(aggregation=token_mean)")
UNTIMED = ("ktae_reference",)  # emulates float32 code, its tables on the CPU


def share_prefixes(batch: Batch) -> Batch:
    """Give the rollouts of a group the first half of their first rollout."""
    ids = batch.token_ids.copy()
    starts = batch.offsets[:-1]
    first = np.flatnonzero(np.diff(batch.group_index, prepend=-1))[batch.group_index]
    for start, length, leader in zip(starts, np.diff(batch.offsets), first, strict=True):
        n = min(length, batch.offsets[leader + 1] - batch.offsets[leader]) // 2
        ids[start : start + n] = batch.token_ids[batch.offsets[leader] :][:n]
    return Batch(ids, batch.offsets, batch.group_index, batch.correct)


def to_group_batch(batch: Batch, columns: dict[str, torch.Tensor]) -> GroupBatch:
    """Build a batch that holds no statistics yet."""
    ids, offsets, correct, groups = map(
        torch.from_numpy, (batch.token_ids, batch.offsets, batch.correct, batch.group_index)
    )
    rewards = correct.to(torch.float64)
    return GroupBatch(
        ids, offsets, rewards, correct, groups, rewards_by_name={"exact": rewards, "format": 1 - rewards}, **columns
    )


def draw_columns(n_tokens: int) -> dict[str, torch.Tensor]:
    """Draw every token column: log-probabilities below 0 that differ a little, entropies above 0, marks of text."""
    random = torch.Generator().manual_seed(0)
    base = -torch.rand(n_tokens, generator=random)
    columns = {
        name: (base - 0.05 * torch.rand(n_tokens, generator=random) if "log" in name else -base)
        for name in TOKEN_COLUMNS
    }
    marks = torch.where(torch.rand(n_tokens, generator=random) < 0.1, 255, 0).to(torch.uint8)
    return columns | {"text_marks": marks}


def time_estimators(specs: list[str], chunks: list[Batch], repeats: int) -> dict[str, list[float]]:
    """Return the ns per token of each repeat."""
    columns = [draw_columns(len(chunk.token_ids)) for chunk in chunks]
    n_tokens = sum(len(chunk.token_ids) for chunk in chunks)
    times = {spec: [] for spec in specs}
    for _ in range(repeats):
        for spec in specs:
            batches = [to_group_batch(*pair) for pair in zip(chunks, columns, strict=True)]
            start = time.perf_counter()
            for batch in batches:
                estimate(spec, batch)
            times[spec].append((time.perf_counter() - start) * 1e9 / n_tokens)
    return times


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data, two repeats, no targets")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    repeats, n_tokens = (2, 1 << 15) if options.quick else (options.repeats, 1 << 19)
    torch.set_num_threads(1)
    specs = ["ktae", *sorted({*names("estimators"), *VARIANTS} - {"ktae", *UNTIMED})]
    cells, missed = {spec: [] for spec in specs}, []
    for row, (size, length) in ROWS.items():
        say(row)
        chunks = make_chunks(size, length, n_tokens)
        if row == "shared prefix":
            chunks = [share_prefixes(chunk) for chunk in chunks]
        times = time_estimators(specs, chunks, repeats)
        for spec in specs:
            ratio = statistics.median(np.divide(times[spec], times["ktae"]))
            cells[spec].append(f"{statistics.median(times[spec]):.1f} ({ratio:.2f}x)")
            target = TARGETS.get(spec, TARGET)
            if ratio > target:
                missed.append(f"{spec} at {row} is {ratio:.2f}x, wanted {target:.0f}x")
    rows = [[spec, *cells[spec], f"<= {TARGETS.get(spec, TARGET):.0f}x"] for spec in specs]
    print(format_table([f"ns/token (of ktae), median of {repeats}", *ROWS, "target"], rows, options.markdown))
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
