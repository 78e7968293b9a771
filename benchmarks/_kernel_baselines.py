"""Five other ways to the advantages of benchmarks/kernel.py: C, dicts, numpy, tuned numpy, the released algorithm.

All read one Batch of mixed groups and return float32 advantages and key weights. The first four look their tests up in
`build_tests`; the last computes every test anew, in float32, as the released code does.
"""

import ctypes
import functools
import math
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _data import VOCABULARY

TF_EPSILON = 1e-5


@dataclass(frozen=True)
class Batch:
    """Hold whole mixed groups, flat: the arrays of a GroupBatch that the kernel needs."""

    token_ids: np.ndarray  # (n_tokens,) int32, as files hold them
    offsets: np.ndarray  # (n_rollouts + 1,) int64
    group_index: np.ndarray  # (n_rollouts,) int64
    correct: np.ndarray  # (n_rollouts,) int8


@functools.cache
def build_tests(n_right: int, n_wrong: int) -> np.ndarray:
    """Tabulate (n_right + 1, n_wrong + 1, 2) float64: (exp(-2p) + information gain) / 2, and Cohen's term."""
    n = n_right + n_wrong

    def entropy(*parts: int) -> float:
        return -sum(x / sum(parts) * math.log2(x / sum(parts)) for x in parts if x)

    def log_choose(m: int, k: int) -> float:
        return math.lgamma(m + 1) - math.lgamma(k + 1) - math.lgamma(m - k + 1)

    table = np.zeros((n_right + 1, n_wrong + 1, 2))
    for a in range(n_right + 1):
        for b in range(n_wrong + 1):
            held = a + b
            support = range(max(0, held - n_wrong), min(held, n_right) + 1)
            law = [log_choose(n_right, k) + log_choose(n_wrong, held - k) - log_choose(n, held) for k in support]
            law = [math.exp(x) for x in law]
            kept = [x for x in law if x <= law[a - support.start] * (1 + 1e-7)]
            fisher = 0.0 if len(kept) == len(law) else math.exp(-2 * math.fsum(kept))
            given = held / n * entropy(a, b) + (n - held) / n * entropy(n_right - a, n_wrong - b)
            table[a, b, 0] = (fisher + entropy(n_right, n_wrong) - given) / 2
            table[a, b, 1] = math.asin(math.sqrt(a / n_right)) - math.asin(math.sqrt(b / n_wrong))
    return table


def build_base(batch: Batch) -> np.ndarray:
    """Compute the GRPO advantage (R - mean) / (std + 1e-6), ddof 1, of each rollout; the reward is the verdict."""
    n = np.bincount(batch.group_index)
    mean = (np.bincount(batch.group_index, batch.correct) / n)[batch.group_index]
    deviation = np.bincount(batch.group_index, (batch.correct - mean) ** 2) / (n - 1)
    return (batch.correct - mean) / (np.sqrt(deviation)[batch.group_index] + 1e-6)


class CFloor:
    """Call the C loop of _kernel_floor.c, compiled with `cc -O3` into `directory`; its scratch is allocated once."""

    def __init__(self, directory: Path):
        library = directory / "floor.so"
        source = Path(__file__).with_name("_kernel_floor.c")
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
        self.function = ctypes.CDLL(str(library)).score
        self.place = np.zeros(VOCABULARY, np.int32)
        self.size = 0

    def __call__(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        first = np.flatnonzero(np.diff(batch.group_index, prepend=-1, append=batch.group_index[-1] + 1))
        right = np.bincount(batch.group_index, batch.correct).astype(int)
        sizes = zip(right.tolist(), (np.diff(first) - right).tolist(), strict=True)
        tests, table_start = _concatenate_tests(tuple(sizes))
        size = int(np.diff(batch.offsets[first]).max())
        if size > self.size:
            self.size = size
            self.scratch = [np.zeros((size, 6), np.int32), np.zeros(size, np.int32), np.zeros(size)]
        out = np.empty(len(batch.token_ids), np.float32), np.empty(len(batch.token_ids), np.float32)
        arrays = [batch.token_ids, batch.offsets, first, batch.correct, build_base(batch), tests, table_start]
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*arrays, self.place, *self.scratch, *out)]
        self.function(*pointers[:3], ctypes.c_int64(len(first) - 1), *pointers[3:])
        return out


@functools.lru_cache(maxsize=4096)
def _concatenate_tests(sizes: tuple[tuple[int, int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Lay the tables of the groups' (n_right, n_wrong) end to end, and say where each group's begins."""
    starts, parts, end = {}, [], 0
    for size in dict.fromkeys(sizes):
        starts[size] = end
        parts.append(build_tests(*size).ravel())
        end += parts[-1].size
    return np.concatenate(parts), np.array([starts[size] for size in sizes])


def score_with_dicts(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Score one group after the other with dicts of token ids."""
    tokens, offsets = batch.token_ids.tolist(), batch.offsets.tolist()
    correct, groups = batch.correct.tolist(), batch.group_index.tolist()
    base = build_base(batch)
    key_weight = []
    first = 0
    while first < len(groups):
        last = first
        with_token, count, length, n_rollouts = (Counter(), Counter()), (Counter(), Counter()), [0, 0], [0, 0]
        while last < len(groups) and groups[last] == groups[first]:
            verdict, response = correct[last], tokens[offsets[last] : offsets[last + 1]]
            occurrences = Counter(response)
            with_token[verdict].update(occurrences.keys())
            for token, n in occurrences.items():
                count[verdict][token] += n
            length[verdict] += len(response)
            n_rollouts[verdict] += 1
            last += 1
        tests = _tests_as_lists(n_rollouts[1], n_rollouts[0])
        average = sum(length) / 2
        scale_right, scale_wrong = (length[v] * (1 + length[v] / average) for v in (1, 0))
        weights = {}
        for token in count[0].keys() | count[1].keys():
            strength, cohen = tests[with_token[1][token]][with_token[0][token]]
            n_right, n_wrong = count[1][token], count[0][token]
            right, wrong = 3 * n_right / (scale_right + n_right), 3 * n_wrong / (scale_wrong + n_wrong)
            direction = cohen + right / (wrong + TF_EPSILON) - wrong / (right + TF_EPSILON)
            weights[token] = math.tanh(0.5 * strength * direction)
        key_weight.append(np.array([weights[token] for token in tokens[offsets[first] : offsets[last]]]))
        first = last
    key_weight = np.concatenate(key_weight)
    advantages = key_weight + np.repeat(base, np.diff(batch.offsets))
    return advantages.astype(np.float32), key_weight.astype(np.float32)


@functools.cache
def _tests_as_lists(n_right: int, n_wrong: int) -> list:
    return build_tests(n_right, n_wrong).tolist()


def score_with_numpy(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Score whole chunks in numpy: sort the (group, id) pairs and the (pair, rollout) pairs, count with bincount."""
    lengths = np.diff(batch.offsets)
    rollout = np.repeat(np.arange(len(lengths)), lengths)
    right = batch.correct == 1
    pairs, entry = np.unique(batch.group_index[rollout] * VOCABULARY + batch.token_ids, return_inverse=True)
    n_right = np.bincount(entry[right[rollout]], minlength=len(pairs))
    n_wrong = np.bincount(entry, minlength=len(pairs)) - n_right
    held, holder = np.divmod(np.unique(entry * len(lengths) + rollout), len(lengths))
    with_right = np.bincount(held[right[holder]], minlength=len(pairs))
    with_wrong = np.bincount(held, minlength=len(pairs)) - with_right
    key_weight = _weigh(batch, pairs // VOCABULARY, n_right, n_wrong, with_right, with_wrong)[entry]
    return build_base(batch).astype(np.float32)[rollout] + key_weight, key_weight


def _weigh(
    batch: Batch,
    group: np.ndarray,
    n_right: np.ndarray,
    n_wrong: np.ndarray,
    with_right: np.ndarray,
    with_wrong: np.ndarray,
) -> np.ndarray:
    """Compute the float32 key weight of each (group, id) pair from its counts, the tests looked up."""
    lengths, right = np.diff(batch.offsets), batch.correct == 1
    rights = np.bincount(batch.group_index, right).astype(np.int64)
    wrongs = np.bincount(batch.group_index) - rights
    tests, start = _concatenate_tests(tuple(zip(rights.tolist(), wrongs.tolist(), strict=True)))
    tests = tests.reshape(-1, 2)
    row = (start // 2)[group] + with_right * (wrongs + 1)[group] + with_wrong
    length_right = np.bincount(batch.group_index, lengths * right)
    length_wrong = np.bincount(batch.group_index, lengths * ~right)
    average = (length_right + length_wrong) / 2
    tf_right = 3 * n_right / ((length_right * (1 + length_right / average))[group] + n_right)
    tf_wrong = 3 * n_wrong / ((length_wrong * (1 + length_wrong / average))[group] + n_wrong)
    direction = tests[:, 1][row] + tf_right / (tf_wrong + TF_EPSILON) - tf_wrong / (tf_right + TF_EPSILON)
    return np.tanh(0.5 * tests[:, 0][row] * direction).astype(np.float32)


class NumpyTuned:
    """Score whole chunks in numpy without a sort: number the (group, id) pairs through a dense table kept for later.

    Presence has a dense table too, a row per rollout of a group, right and wrong in the two halves of one integer.
    """

    def __init__(self):
        self.mark = np.zeros(0, bool)
        self.number = np.zeros(0, np.int32)

    def __call__(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        n_groups, n_ids = int(batch.group_index[-1]) + 1, int(batch.token_ids.max()) + 1
        if n_groups * n_ids > len(self.mark):
            self.mark = np.zeros(n_groups * n_ids, bool)
            self.number = np.zeros(n_groups * n_ids, np.int32)
        lengths = np.diff(batch.offsets)
        right = batch.correct == 1
        key = np.repeat(batch.group_index * n_ids, lengths)
        key += batch.token_ids
        self.mark[key] = True
        distinct = np.flatnonzero(self.mark)
        self.mark[distinct] = False
        self.number[distinct] = np.arange(len(distinct), dtype=np.int32)
        entry = self.number.take(key)
        group = distinct // n_ids
        # occurrences
        count = np.bincount(np.repeat(right * len(distinct), lengths) + entry, minlength=2 * len(distinct))
        n_wrong, n_right = count.reshape(2, -1)
        # presence: one row per rollout of a group
        group_first = np.searchsorted(batch.group_index, np.arange(n_groups))
        rank = np.arange(len(lengths)) - group_first[batch.group_index]
        present = np.zeros((rank.max() + 1, len(distinct)), np.uint16 if rank.max() < 255 else np.uint32)
        shift = 8 * present.itemsize // 2
        present.ravel()[np.repeat(rank * len(distinct), lengths) + entry] = np.repeat(
            np.where(right, 1, 1 << shift).astype(present.dtype), lengths
        )
        both = present.sum(0, dtype=present.dtype)
        with_right, with_wrong = (both & ((1 << shift) - 1)).astype(np.int64), (both >> shift).astype(np.int64)
        weight = _weigh(batch, group, n_right, n_wrong, with_right, with_wrong)
        key_weight = weight.take(entry)
        advantages = np.repeat(build_base(batch).astype(np.float32), lengths)
        advantages += key_weight
        return advantages, key_weight


def score_as_released(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Follow the released algorithm: tables over the whole vocabulary per group, one float32 test per distinct id."""
    base = torch.from_numpy(build_base(batch)).float()
    advantages, key_weights = [], []
    for group in np.unique(batch.group_index):
        members = np.flatnonzero(batch.group_index == group).tolist()
        rows = [torch.from_numpy(batch.token_ids[batch.offsets[r] : batch.offsets[r + 1]]).long() for r in members]
        verdicts = batch.correct[members].tolist()
        n_ids = max(int(row.max()) for row in rows) + 1
        table = torch.zeros((n_ids, 4))  # right with, wrong with, right without, wrong without
        count = torch.zeros((2, n_ids))
        length = torch.zeros(2)
        for row, verdict in zip(rows, verdicts, strict=True):
            present = torch.zeros(n_ids, dtype=torch.bool)
            present[row] = True
            table[:, 0 if verdict else 1] += present
            table[:, 2 if verdict else 3] += ~present
            count[verdict] += torch.bincount(row, minlength=n_ids)
            length[verdict] += len(row)
        fisher = torch.zeros(n_ids)
        for token in torch.unique(torch.cat(rows)).tolist():
            p = _test_in_float32(*table[token])
            fisher[token] = torch.exp(-2 * p) if p != 1.0 else 0.0
        a, b, c, d = table.unbind(1)
        gain = _gain(a, b, c, d)
        cohen = torch.asin(torch.sqrt((a / (a + c + 1e-10)).clamp(0, 1)))
        cohen = cohen - torch.asin(torch.sqrt((b / (b + d + 1e-10)).clamp(0, 1)))
        share = count / length[:, None]
        tf = 3 * share / ((1 + length / length.mean())[:, None] + share)
        direction = cohen + tf[1] / (tf[0] + TF_EPSILON) - tf[0] / (tf[1] + TF_EPSILON)
        weight = 2 * (torch.sigmoid((fisher + gain) * direction / 2) - 0.5)
        for member, row in zip(members, rows, strict=True):
            key_weights.append(weight[row])
            advantages.append(base[member] + weight[row])
    return torch.cat(advantages).numpy(), torch.cat(key_weights).numpy()


def _entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n = (x + y).clamp(min=1)
    return -(torch.xlogy(x / n, x / n) + torch.xlogy(y / n, y / n)) / math.log(2)


def _gain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    n = a + b + c + d
    return _entropy(a + c, b + d) - (a + b) / n * _entropy(a, b) - (c + d) / n * _entropy(c, d)


def _test_in_float32(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Sum the hypergeometric probabilities not above the observed one, without a tolerance."""
    held, right, n = a + b, a + c, a + b + c + d

    def log_choose(m: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(m + 1) - torch.lgamma(k + 1) - torch.lgamma(m - k + 1)

    k = torch.arange(max(0, int(held + right - n)), int(min(held, right)) + 1, dtype=torch.float32)
    law = torch.exp(log_choose(right, k) + log_choose(n - right, held - k) - log_choose(n, held))
    observed = torch.exp(log_choose(right, a) + log_choose(n - right, held - a) - log_choose(n, held))
    return law[law <= observed].sum()
