"""The exact quantile of the float32 values of a step, in two passes that merge by addition.

A float32 is ordered like a 32-bit code made of its bits. The first pass counts the values by the upper 16 bits; the
second counts those that share them with a sought rank by the whole code. Counts are whole numbers: the result is the
same however the input is cut and ordered, and no pass keeps the values.
"""

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ktae_cli.stats.pooled import COMPACT_AT, steps_of

_LOW_BITS = 16
_NO_HALF = 1 << 20  # of no value
_NEXT_TO_WHOLE = 1e-9  # a rank this near to a whole number is one: 0.9 * 10 is no more than 9


class StepQuantile:
    """The q-quantile by step: counts of codes, of their upper half in the first pass and whole in the second."""

    def __init__(self, step: Tensor | None, lengths: Tensor, values: Tensor, q: float, known: "StepQuantile | None"):
        """Count the values of rollouts: step and lengths (n_rollouts,), values float32 (lengths.sum(),) end to end.

        known: the merged result of the first pass, None in the first.
        """
        self.q, self.coarse, self.complete = q, known, known is not None
        steps, place = np.unique(steps_of(step, len(lengths)), return_inverse=True)
        place = torch.from_numpy(place.reshape(-1)).to(values.device, torch.int32)
        place = torch.repeat_interleave(place, lengths, output_size=len(values))
        code = codes_of(values)
        half = code >> _LOW_BITS
        if known is None:
            counted = _count_halves(place, half, len(steps))
        else:
            low, high = (
                torch.from_numpy(side).to(half)[0 if len(steps) == 1 else place] for side in known.sought(steps)
            )
            kept = torch.nonzero((half == low) | (half == high)).squeeze(1)
            counted = _count(place[kept], code[kept])
        self.parts, self.loose = [(steps[counted[0]], *counted[1:])], len(counted[0])

    def merge(self, other: "StepQuantile") -> "StepQuantile":
        """Return the counts of both; the other part is used up."""
        self.parts += other.parts
        self.loose += other.loose
        for name in ("entries", "steps", "ranks", "_quantiles"):
            self.__dict__.pop(name, None)
        if self.loose > COMPACT_AT:
            self.parts = [self.entries]
            self.loose = len(self.parts[0][0]) // 2  # grows before the next time: no quadratic cost
        return self

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distinct (step, code) with their counts, sorted."""
        step, code, count = (np.concatenate(columns) for columns in zip(*self.parts, strict=True))
        order = np.lexsort((code, step))
        step, code, count = step[order], code[order], count[order]
        if not len(step):
            return step, code, count
        first = np.flatnonzero(np.concatenate([[True], (np.diff(step) != 0) | (np.diff(code) != 0)]))
        return step[first], code[first], np.add.reduceat(count, first)

    @cached_property
    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The steps that hold values, how many values stand before each, and how many it holds."""
        step, _, count = self.entries
        steps, first = np.unique(step, return_index=True)
        sizes = np.add.reduceat(count, first) if len(first) else count
        return steps, np.cumsum(sizes) - sizes, sizes

    @cached_property
    def ranks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each step: rank of the value below the quantile, of the one above, and the part of the way between."""
        sizes = self.steps[2]
        exact = self.q * (sizes - 1)
        exact = np.where(np.abs(exact - np.rint(exact)) < _NEXT_TO_WHOLE, np.rint(exact), exact)
        low = np.floor(exact).astype(np.int64)
        return low, np.minimum(low + 1, sizes - 1), exact - low

    def _entries_at(self, rank: np.ndarray) -> np.ndarray:
        """Return the entry that holds the value of each rank among all values."""
        return np.searchsorted(np.cumsum(self.entries[2]), rank, side="right")

    def sought(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the upper halves of the values below and above the quantile of each wanted step, each (n,) int64."""
        steps, before, _ = self.steps
        place = np.searchsorted(steps, wanted).clip(max=max(len(steps) - 1, 0))
        found = [np.append(self.entries[1][self._entries_at(before + rank)], _NO_HALF) for rank in self.ranks[:2]]
        held = np.append(steps, 0)[place] == wanted
        return tuple(np.where(held, half[place], _NO_HALF) for half in found)

    def of(self, step: Tensor | None, n_rollouts: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the quantile of each rollout's step (n_rollouts,) float32, linear between two values, as numpy's.

        Infinite for a step without values: none is as large.
        """
        wanted = steps_of(step, n_rollouts)
        steps, quantiles = self.coarse.steps[0], self._quantiles
        if not len(steps):
            return torch.full((n_rollouts,), math.inf, device=device)
        place = np.searchsorted(steps, wanted).clip(max=len(steps) - 1)
        found = np.where(steps[place] == wanted, quantiles[place], np.inf).astype(np.float32)
        return torch.from_numpy(found).to(device)

    @cached_property
    def _quantiles(self) -> np.ndarray:
        low, high, part = self.coarse.ranks
        _, before, _ = self.coarse.steps
        bucket = self.coarse._entries_at(before + low)
        skipped = (np.cumsum(self.coarse.entries[2]) - self.coarse.entries[2])[bucket] - before  # smaller values
        fine_before = self.steps[1]  # the same steps: each holds the values that it was asked for
        below, above = (
            values_of(self.entries[1][self._entries_at(fine_before + rank - skipped)]).astype(np.float64)
            for rank in (low, high)
        )
        return below + part * (above - below)


def codes_of(values: Tensor) -> Tensor:
    """Return whole numbers (n,) int32 in the order of float32 values (n,), the two zeros alike."""
    bits = (values + 0.0).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def values_of(codes: np.ndarray) -> np.ndarray:
    """Return the float32 values (n,) of codes."""
    return np.where(codes < 0, codes ^ 0x7FFFFFFF, codes).astype(np.int32).view(np.float32)


def _count_halves(place: Tensor, half: Tensor, n_places: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the distinct (place, upper half), in a table where that is not much larger than the values."""
    if n_places > 4 + (len(half) >> _LOW_BITS):
        return _count(place, half)
    cell = half + (1 << (_LOW_BITS - 1))
    table = torch.bincount(cell if n_places == 1 else cell.add_(place, alpha=1 << _LOW_BITS)).cpu().numpy()
    cell = np.flatnonzero(table)
    return cell >> _LOW_BITS, (cell & ((1 << _LOW_BITS) - 1)) - (1 << (_LOW_BITS - 1)), table[cell]


def _count(place: Tensor, code: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the distinct (place, code): place, code and count of each, sorted."""
    key = place.to(torch.int64) * (1 << 32) + code
    if key.device.type == "cpu":  # numpy's sort is several times as fast there
        key, count = np.unique(key.numpy(), return_counts=True)
    else:
        key, count = (part.cpu().numpy() for part in torch.unique(key, return_counts=True))
    place = (key + (1 << 31)) >> 32
    return place, key - place * (1 << 32), count
