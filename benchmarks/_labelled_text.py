"""Text whose labels are drawn: rollouts as the units they hold, groups sampled from them, verdicts by length."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ktae_cli.stats.conditional import Strata, draw_probabilities, draw_verdicts

SHARED = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Text:
    """Rollouts, group by group: sizes (n_groups,), length and right (n_rollouts,), and distinct pairs (unit, rollout)
    sorted by unit, then rollout; ids: all token ids, end to end, where there are some.
    """

    sizes: np.ndarray
    length: np.ndarray
    right: np.ndarray
    unit: np.ndarray
    rollout: np.ndarray
    n_units: int
    ids: np.ndarray | None = None


@functools.cache
def real_text(name: str) -> Text | None:
    """Read a file of ../shared/data; None where there is none."""
    path = SHARED / f"{name}.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path, columns=["prompt_id", "response_ids", "reward"])
    _, group = np.unique(table["prompt_id"].to_pylist(), return_inverse=True)
    order = np.argsort(group, kind="stable")
    column = table["response_ids"].take(order).combine_chunks()
    length, ids = pc.list_value_length(column).to_numpy().astype(np.int64), column.flatten().to_numpy()
    codes, unit = np.unique(ids, return_inverse=True)
    right = (table["reward"].to_numpy()[order] > 0).astype(np.uint8)
    pair = np.unique(unit.astype(np.int64) * len(length) + np.repeat(np.arange(len(length)), length))
    unit, rollout = np.divmod(pair, len(length))
    return Text(np.bincount(group), length, right, unit, rollout, len(codes), ids)


def bursty_text(length: np.ndarray, sizes: np.ndarray, random: np.random.Generator, n_units: int = 1200) -> Text:
    """Draw which units stand in rollouts of these lengths: counts are negative binomial with k = 0.2.

    A unit of rate r stands in a rollout of L tokens with probability 1 - (1 + r L / k)^-k; rates run evenly in their
    logarithm from one in 10,000 tokens to one in 10.
    """
    k, rate = 0.2, 10 ** np.linspace(-4, -1, n_units)
    held = random.random((n_units, len(length))) < 1 - (1 + rate[:, None] * length / k) ** -k
    return Text(sizes, length, np.zeros(len(length), np.uint8), *np.nonzero(held), n_units)


def mixed_groups(text: Text) -> tuple[Strata, Text]:
    """Keep the groups that hold right and wrong rollouts."""
    starts = np.cumsum(text.sizes) - text.sizes
    n_right = np.add.reduceat(text.right.astype(np.int64), starts)
    mixed = (n_right > 0) & (n_right < text.sizes)
    kept = np.flatnonzero(np.repeat(mixed, text.sizes))
    return Strata(text.sizes[mixed], n_right[mixed]), _rollouts(text, kept, text.sizes[mixed])


def sample_groups(text: Text, size: int, each: int, random: np.random.Generator) -> Text:
    """Sample `each` disjoint groups of `size` rollouts of every prompt."""
    starts = np.cumsum(text.sizes) - text.sizes
    chosen = [
        s + random.permutation(n)[: size * each] for s, n in zip(starts, text.sizes, strict=True) if n >= size * each
    ]
    return _rollouts(text, np.concatenate(chosen), np.full(len(chosen) * each, size))


def _rollouts(text: Text, chosen: np.ndarray, sizes: np.ndarray) -> Text:
    place = np.full(len(text.length), -1)
    place[chosen] = np.arange(len(chosen))
    rollout = place[text.rollout]
    kept = rollout >= 0
    pair = np.sort(text.unit[kept] * len(chosen) + rollout[kept])
    unit, rollout = np.divmod(pair, len(chosen))
    ends = np.cumsum(text.length)
    ids = text.ids
    if ids is not None:
        at = np.repeat(ends[chosen] - np.cumsum(text.length[chosen]), text.length[chosen])
        ids = ids[at + np.arange(len(at))]
    return Text(sizes, text.length[chosen], text.right[chosen], unit, rollout, text.n_units, ids)


def draw_compositions(sizes: np.ndarray, random: np.random.Generator) -> Strata:
    """Draw how many of each group are right: 1/8 to 7/8 of it, in eighths."""
    return Strata(sizes, random.integers(1, 8, len(sizes)) * sizes // 8)


def median_ratio(right: np.ndarray, length: np.ndarray, strata: Strata) -> float:
    """Return the median over groups of median length of the wrong over that of the right."""
    pairs = zip(np.split(length, strata.starts[1:]), np.split(right, strata.starts[1:]), strict=True)
    return float(np.median([np.median(n[y == 0]) / np.median(n[y == 1]) for n, y in pairs]))


def draw_by_length(
    driver: np.ndarray, slope: float, strata: Strata, random: np.random.Generator, times: int = 1
) -> np.ndarray:
    """Draw verdicts (n_rollouts, times) with log odds -slope x driver in each group, given its number right."""
    return draw_verdicts(draw_probabilities(-slope * driver, strata), strata, times, random)


def slope_for_ratio(text: Text, size: int, ratio: float) -> float:
    """Find the slope in log length at which the median ratio is as wanted, by bisection on ten fixed draws."""
    if ratio == 1:
        return 0.0
    random = np.random.default_rng(0)
    sampled = sample_groups(text, size, 1, random)
    strata, low, high = draw_compositions(sampled.sizes, random), 0.0, 20.0
    for _ in range(12):
        middle = (low + high) / 2
        drawn = draw_by_length(np.log(sampled.length), middle, strata, np.random.default_rng(1), 10)
        found = np.mean([median_ratio(right, sampled.length, strata) for right in drawn.T])
        low, high = (middle, high) if found < ratio else (low, middle)
    return (low + high) / 2


def plant(text: Text, right: np.ndarray, random: np.random.Generator) -> Text:
    """Add a unit, the last, that stands in 60 % of the right and 40 % of the wrong rollouts."""
    holders = np.flatnonzero(random.random(len(right)) < np.where(right == 1, 0.6, 0.4))
    unit = np.concatenate([text.unit, np.full(len(holders), text.n_units)])
    return Text(text.sizes, text.length, right, unit, np.concatenate([text.rollout, holders]), text.n_units + 1)
