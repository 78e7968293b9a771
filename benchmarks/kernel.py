"""Time the KTAE kernel against C, dicts, numpy and the released algorithm, all in one run on one thread.

    python benchmarks/kernel.py [--quick]

Input: token ids after Zipf's law over a vocabulary of 151,936, rollouts of about L tokens, mixed groups of G only.
Output: float32 advantages and key weights; the five results are compared before anything is timed. Every repeat times
them one after the other, and a ratio is the median over the repeats of the ratios within a repeat. Exit status 1
where a row misses a target; --quick times little data three times and checks the agreement alone.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _kernel_baselines import VOCABULARY, Batch, CFloor, NumpyRemap, score_as_released, score_with_dicts

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.ktae import ktae
from ktae_cli.stats.counts import count_tokens

CHUNK_TOKENS = 1 << 17
ROWS = {f"G={size} L={length}": (size, length) for size, length in [(16, 1000), (8, 1000), (64, 2500), (8, 200)]}
ZIPF_EXPONENT = 1.2  # some 3,000 distinct ids in 16 rollouts of 1,000 tokens
TARGETS = {"C": 1 / 3, "dict": 5, "numpy": 1.5, "released": 100}  # least time of each over the time of the kernel


def make_chunks(group_size: int, length: int, n_tokens: int, seed: int = 0) -> list[Batch]:
    """Draw mixed groups, as chunks of whole groups of about CHUNK_TOKENS tokens."""
    random = np.random.default_rng(seed)
    law = np.arange(1, VOCABULARY + 1) ** -ZIPF_EXPONENT
    ids = random.permutation(VOCABULARY)
    per_chunk = max(1, CHUNK_TOKENS // (group_size * length))
    chunks = []
    for _ in range(max(1, n_tokens // (per_chunk * group_size * length))):
        n_rollouts = per_chunk * group_size
        lengths = random.integers(length // 2, length * 3 // 2 + 1, n_rollouts)
        correct = (random.random((per_chunk, group_size)) < random.uniform(0.2, 0.8, (per_chunk, 1))).astype(np.int8)
        correct[:, 0], correct[:, 1] = 0, 1
        ranks = np.searchsorted(np.cumsum(law) / law.sum(), random.random(lengths.sum()))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        groups = np.repeat(np.arange(per_chunk), group_size)
        chunks.append(Batch(ids[ranks.clip(max=VOCABULARY - 1)], offsets, groups, correct.ravel()))
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
    for name in ("C", "dict", "numpy"):
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
    options = parser.parse_args()
    repeats, n_tokens = (3, 1 << 17) if options.quick else (options.repeats, 1 << 20)
    torch.set_num_threads(1)
    missed = []
    with tempfile.TemporaryDirectory() as directory:
        scorers = {
            "kernel": score_with_kernel,
            "counts": count_alone,
            "C": CFloor(Path(directory)),
            "dict": score_with_dicts,
            "numpy": NumpyRemap(),
            "released": score_as_released,
        }
        print(f"ns/token, median of {repeats} (in brackets: times the kernel)")
        print(f"{'':12}{'tokens':>9}" + "".join(f"{name:>19}" for name in scorers) + "   released agrees")
        for row, (group_size, length) in ROWS.items():
            chunks = make_chunks(group_size, length, n_tokens)
            share = check_agreement(scorers, chunks[0])
            times = time_row(scorers, chunks, repeats)
            ratios = {n: statistics.median(np.divide(times[n], times["kernel"])) for n in scorers}
            cells = "".join(f"{statistics.median(times[n]):10.1f} ({ratios[n]:6.2f})" for n in scorers)
            print(f"{row:12}{sum(len(chunk.token_ids) for chunk in chunks):9}{cells}   {share:.0%} within 1e-3")
            missed += [f"{row}: {n} is {ratios[n]:.2f}x, wanted {t:.2f}x" for n, t in TARGETS.items() if ratios[n] < t]
    if missed and not options.quick:
        print("missed: " + "; ".join(missed), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
