"""Time the KTAE kernel against C, dicts, numpy and the released algorithm, all in one run on one thread.

    python benchmarks/kernel.py [--quick] [--markdown]

Input: token ids by the law of _data.py, rollouts of about L tokens, mixed groups of G only.
Output: float32 advantages and key weights; the results are compared before anything is timed. Every repeat times all
of them one after the other, and a ratio is the median over the repeats of the ratios within a repeat.
`numpy` is what one writes first, two calls of np.unique and bincount, and has a target; `numpy tuned` is the fastest
numpy found, dense tables without a sort, and is printed to compare with, without one. `counts` is the counting half of
the kernel. Exit status 1 where a row misses a target; --quick times little data three times and checks the agreement
alone. Without a C compiler the C row is left out.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _data import VOCABULARY, zipf_ids
from _kernel_baselines import Batch, CFloor, NumpyTuned, score_as_released, score_with_dicts, score_with_numpy
from _report import exit_status, format_table, say

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.ktae import ktae
from ktae_cli.stats.counts import count_tokens

CHUNK_TOKENS = 1 << 17
ROWS = {f"G={size} L={length}": (size, length) for size, length in [(16, 1000), (8, 1000), (64, 2500), (8, 200)]}
TARGETS = {"C": 1 / 3, "dict": 5, "numpy": 1.5, "released": 100}  # least time of each over the time of the kernel


def make_chunks(group_size: int, length: int, n_tokens: int, seed: int = 0) -> list[Batch]:
    """Draw mixed groups, as chunks of whole groups of about CHUNK_TOKENS tokens."""
    random = np.random.default_rng(seed)
    per_chunk = max(1, CHUNK_TOKENS // (group_size * length))
    chunks = []
    for _ in range(max(1, n_tokens // (per_chunk * group_size * length))):
        n_rollouts = per_chunk * group_size
        lengths = random.integers(length // 2, length * 3 // 2 + 1, n_rollouts)
        correct = (random.random((per_chunk, group_size)) < random.uniform(0.2, 0.8, (per_chunk, 1))).astype(np.int8)
        correct[:, 0], correct[:, 1] = 0, 1
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        groups = np.repeat(np.arange(per_chunk), group_size)
        home = random.integers(0, VOCABULARY, per_chunk)[groups]
        ids = zipf_ids(random, np.repeat(home, lengths))
        chunks.append(Batch(ids, offsets, groups, correct.ravel()))
    return chunks


def score_with_kernel(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Score with the estimator `ktae`."""
    arrays = (batch.token_ids, batch.offsets, batch.correct.astype(np.float64), batch.correct, batch.group_index)
    estimate = ktae(GroupBatch(*map(torch.from_numpy, arrays)))
    return estimate.advantages.numpy(), estimate.columns["key_weight"].numpy()


def count_alone(batch: Batch) -> None:
    """Take the counting half of the kernel alone."""
    count_tokens(*map(torch.from_numpy, (batch.token_ids, batch.offsets, batch.group_index, batch.correct)))


def check_agreement(scorers: dict[str, Callable], batch: Batch) -> float:
    """Assert that all agree, and return the share of positions on which the released arithmetic agrees to 1e-3.

    The released float32 tests miss ties and p-values of 1, so that their key weights differ at a part of the positions.
    """
    expected = scorers["kernel"](batch)
    for name in scorers.keys() - {"kernel", "counts", "released"}:
        for mine, theirs in zip(expected, scorers[name](batch), strict=True):
            assert mine.dtype == theirs.dtype == np.float32
            error = np.abs(mine - theirs).max()
            assert error <= 1e-6, f"kernel and {name} differ by {error}"
    first = take_first_group(batch)
    share = float((np.abs(scorers["kernel"](first)[1] - scorers["released"](first)[1]) < 1e-3).mean())
    assert share > 0.5, f"the released algorithm agrees on a share of {share} only"
    return share


def take_first_group(batch: Batch) -> Batch:
    """Cut a batch to its first group."""
    n = int((batch.group_index == 0).sum())
    end = batch.offsets[n]
    return Batch(batch.token_ids[:end], batch.offsets[: n + 1], batch.group_index[:n], batch.correct[:n])


def time_row(scorers: dict[str, Callable], chunks: list[Batch], repeats: int) -> dict[str, list[float]]:
    """Return the ns per token of each repeat; the released algorithm sees one group, another one in each repeat."""
    times = {name: [] for name in scorers}
    for repeat in range(repeats):
        for name, scorer in scorers.items():
            work = [take_first_group(chunks[repeat % len(chunks)])] if name == "released" else chunks
            start = time.perf_counter()
            for chunk in work:
                scorer(chunk)
            times[name].append((time.perf_counter() - start) * 1e9 / sum(len(chunk.token_ids) for chunk in work))
    return times


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="little data, three repeats, no targets")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    repeats, n_tokens = (3, 1 << 17) if options.quick else (options.repeats, 1 << 20)
    torch.set_num_threads(1)
    rows, missed, plainly = [], [], []
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as directory:
        scorers = {
            "kernel": score_with_kernel,
            "counts": count_alone,
            "C": CFloor(Path(directory)) if shutil.which("cc") else None,
            "numpy": score_with_numpy,
            "numpy tuned": NumpyTuned(),
            "dict": score_with_dicts,
            "released": score_as_released,
        }
        scorers = {name: scorer for name, scorer in scorers.items() if scorer}
        for row, (group_size, length) in ROWS.items():
            say(row)
            chunks = make_chunks(group_size, length, n_tokens)
            share = check_agreement(scorers, chunks[0])
            times = time_row(scorers, chunks, repeats)
            medians = {name: statistics.median(times[name]) for name in scorers}
            ratios = {name: statistics.median(np.divide(times[name], times["kernel"])) for name in scorers}
            cells = [f"{medians[name]:.1f} ({ratios[name]:.2f}x)" for name in scorers]
            rows.append([row, f"{sum(len(c.token_ids) for c in chunks) / 1e6:.2f}", *cells, f"{share:.0%}"])
            plainly.append(f"{medians['kernel']:.1f} at {row}")
            missed += [
                f"{row}: {n} is {ratios[n]:.2f}x, wanted {TARGETS[n]:.2f}x"
                for n in TARGETS.keys() & scorers
                if ratios[n] < TARGETS[n]
            ]
    rows.append(["target", "", *(f">= {TARGETS[n]:.2f}x" if n in TARGETS else "" for n in scorers), ""])
    head = [f"ns/token, median of {repeats}", "M tokens", *scorers, "released within 1e-3"]
    print(format_table(head, rows, options.markdown))
    print(f"\nkernel, ns/token: {', '.join(plainly)}", flush=True)
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
