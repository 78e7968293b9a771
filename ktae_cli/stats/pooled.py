"""Statistics of the batch of a step that merge by addition: the same bits however the input is cut and ordered."""

import itertools
import math
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

COMPACT_AT = 1 << 20


class Pool(Protocol):
    """What a pass over the input gathers: merged part by part, complete when no further pass is needed."""

    complete: bool

    def merge(self, other: Self) -> Self:
        """Return the statistics of both parts; either may be used up."""


def steps_of(step: Tensor | None, n_rollouts: int) -> np.ndarray:
    """Return the step of each rollout (n_rollouts,) int64; without steps everything is one batch."""
    return np.zeros(n_rollouts, np.int64) if step is None else step.cpu().numpy()


class StepCounts:
    """Whole numbers by step: `sums` are added, `largest` keeps the maximum."""

    complete = True

    def __init__(self, step: np.ndarray, sums: dict[str, np.ndarray], largest: dict[str, np.ndarray] | None = None):
        """step, and every array of `sums` and `largest`, has one value a rollout."""
        self.steps, place = np.unique(step, return_inverse=True)
        self.sums = {name: _sum_at(place, values, len(self.steps)) for name, values in sums.items()}
        self.largest = {name: _largest_at(place, v, len(self.steps)) for name, v in (largest or {}).items()}

    def merge(self, other: "StepCounts") -> "StepCounts":
        """Return the counts of both."""
        step = np.concatenate([self.steps, other.steps])
        join = {
            kind: {n: np.concatenate([v, getattr(other, kind)[n]]) for n, v in getattr(self, kind).items()}
            for kind in ("sums", "largest")
        }
        return StepCounts(step, **join)

    def of(self, name: str, step: Tensor | None, n_rollouts: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the count of each rollout's step (n_rollouts,) float64."""
        values = self.sums.get(name, self.largest.get(name))
        return _at(values, self.steps, steps_of(step, n_rollouts)).to(device)


class StepMoments(NamedTuple):
    """Of each rollout's step (n_rollouts,): total weight, mean, and variance with divisor weight - 1."""

    weight: Tensor
    mean: Tensor
    variance: Tensor


class WeightedValues:
    """Values with whole-number weights by step, kept apart, so that sums do not depend on how they came together.

    Holds one entry for each distinct (step, value): a few numbers a rollout at most.
    """

    complete = True

    def __init__(self, step: np.ndarray, value: np.ndarray, weight: np.ndarray):
        """All three are (n_rollouts,); entries of weight 0 count for nothing."""
        kept = weight > 0
        self.parts = [(step[kept], value[kept].astype(np.float64), weight[kept].astype(np.int64))]
        self.loose = int(kept.sum())
        self.merged: tuple | None = None

    def merge(self, other: "WeightedValues") -> "WeightedValues":
        """Return the values of both."""
        self.parts += other.parts
        self.loose += other.loose
        self.merged = None
        if self.loose > COMPACT_AT:
            self.parts = [self._entries()]
            self.loose = len(self.parts[0][0]) // 2  # grows before the next time: no quadratic cost
        return self

    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the distinct (step, value) with their weights, sorted."""
        step, value, weight = (np.concatenate(columns) for columns in zip(*self.parts, strict=True))
        value = value + 0.0  # one zero, not two
        order = np.lexsort((value, step))
        step, value, weight = step[order], value[order], weight[order]
        first = np.flatnonzero(np.concatenate([[True], (np.diff(step) != 0) | (np.diff(value) != 0)])[: len(step)])
        return step[first], value[first], np.add.reduceat(weight, first) if len(first) else weight

    def moments(self, step: Tensor | None, n_rollouts: int, device: torch.device | str = "cpu") -> StepMoments:
        """Return the weighted moments of each rollout's step; means and variances are sums over sorted values."""
        if self.merged is None:
            self.merged = self._by_step()
        steps, *columns = self.merged
        return StepMoments(*(_at(column, steps, steps_of(step, n_rollouts)).to(device) for column in columns))

    def _by_step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        step, value, weight = self._entries()
        steps, first = np.unique(step, return_index=True)
        rows = []
        for start, stop in itertools.pairwise([*first.tolist(), len(step)]):
            x, w = value[start:stop], weight[start:stop]
            total = int(w.sum())
            mean = math.fsum(x * w) / total if len(x) > 1 else float(x[0])  # a constant is its own mean, unrounded
            rows.append((total, mean, math.fsum((x - mean) ** 2 * w) / max(total - 1, 1)))
        columns = np.array(rows, np.float64).reshape(-1, 3).T
        return steps, *columns


def _sum_at(place: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, np.int64)
    np.add.at(out, place, values.astype(np.int64))
    return out


def _largest_at(place: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, np.int64)
    np.maximum.at(out, place, values.astype(np.int64))
    return out


def _at(values: np.ndarray, steps: np.ndarray, wanted: np.ndarray) -> Tensor:
    """Return the value of each wanted step; 0 for a step that the statistics do not hold."""
    if not len(steps):
        return torch.zeros(len(wanted), dtype=torch.float64)
    place = np.searchsorted(steps, wanted).clip(max=len(steps) - 1)
    return torch.from_numpy(np.where(steps[place] == wanted, values[place], 0).astype(np.float64))
