"""How far an input's policies lie apart: sums over its tokens, read a batch at a time and never held."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli import off_policy
from ktae_cli.errors import KtaeError
from ktae_cli.mapping import Mapping, fits
from ktae_cli.off_policy_rows import Pair, PairRows, read_pair, token_values
from ktae_cli.readers.base import column_at, root_of

N_LARGEST = 5
QUANTILES = {"p1": 0.01, "p5": 0.05, "median": 0.5, "p95": 0.95, "p99": 0.99}
SMALLEST, STEP = 1e-6, 0.002
"""The histogram of log r: bins of 0.2 % of |log r| on either side from 1e-6 to 20, and one for what is smaller."""
BINS = 1 + math.ceil(math.log(off_policy.LOG_RATIO_BOUND / SMALLEST) / STEP)


@dataclass(frozen=True)
class Bounds:
    """What ratios are held against: PPO clip (DAPO's, arXiv 2503.14476), cap of truncated, range of masked weights."""

    clip: tuple[float, float] = (0.8, 1.28)
    cap: float = 2.0
    mask: tuple[float, float] | None = None
    """None is 1/cap to cap, as the lower bound of verl's compute_is_metrics."""
    key_threshold: float = 0.5

    def __post_init__(self) -> None:
        for name, pair in (("clip", self.clip), ("mask", self.mask or self.clip)):
            if not (len(pair) == 2 and all(map(math.isfinite, pair)) and 0 <= pair[0] < pair[1]):
                shown = ":".join(f"{value:g}" for value in pair)
                raise KtaeError(f"{name} {shown}: expected two numbers with 0 <= LOW < HIGH, as in 0.8:1.28")
        for name, value in (("cap", self.cap), ("key threshold", self.key_threshold)):
            if not (math.isfinite(value) and value > 0):
                raise KtaeError(f"{name} {value:g}: expected a number above 0")

    @property
    def kept(self) -> tuple[float, float]:
        """Return the range in which masked weights are not 0."""
        return self.mask or (min(1 / self.cap, self.cap), max(1 / self.cap, self.cap))


@dataclass
class Tally:
    """Sums over tokens; the histogram gives the quantiles."""

    tokens: int = 0
    k1: float = 0.0
    k3: float = 0.0
    chi_square: float = 0.0
    below: int = 0
    above: int = 0
    truncated: float = 0.0
    n_truncated: int = 0
    masked: float = 0.0
    n_masked: int = 0
    low: float = math.inf
    high: float = -math.inf
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(2 * BINS + 1, np.int64))

    def add(self, log_ratio: np.ndarray, bounds: Bounds) -> None:
        """Add tokens by their log ratios (n_tokens,)."""
        if not len(log_ratio):
            return
        ratio, (clip_low, clip_high), (low, high) = off_policy.ratios(log_ratio), bounds.clip, bounds.kept
        self.tokens += len(log_ratio)
        self.k1 += float(off_policy.k1(log_ratio).sum())
        self.k3 += float(off_policy.k3(log_ratio).sum())
        self.chi_square += float(off_policy.chi_square(log_ratio).sum())
        self.below += int(np.count_nonzero(ratio < clip_low))
        self.above += int(np.count_nonzero(ratio > clip_high))
        self.truncated += float(off_policy.truncated_weights(log_ratio, bounds.cap).sum())
        self.n_truncated += int(np.count_nonzero(ratio > bounds.cap))
        self.masked += float(off_policy.masked_weights(log_ratio, low, high).sum())
        self.n_masked += int(np.count_nonzero((ratio < low) | (ratio > high)))
        self.low, self.high = min(self.low, float(log_ratio.min())), max(self.high, float(log_ratio.max()))
        self.histogram += np.bincount(_bins(log_ratio), minlength=2 * BINS + 1)

    def facts(self) -> dict[str, Any]:
        """Return the means and shares over the tokens, null without any."""
        sums = {
            "k1": self.k1, "k3": self.k3, "chi_square": self.chi_square,
            "share_below_clip": self.below, "share_above_clip": self.above,
            "truncated_weight": self.truncated, "share_truncated": self.n_truncated,
            "masked_weight": self.masked, "share_masked": self.n_masked,
        }  # fmt: skip
        means = {name: value / self.tokens if self.tokens else None for name, value in sums.items()}
        return {"tokens": self.tokens, **means, "ratio": self._quantiles() if self.tokens else None}

    def _quantiles(self) -> dict[str, float]:
        """Return quantiles of r, the value at rank ceil(q n), exact for min and max, else log r within 0.1 %."""
        reached = np.cumsum(self.histogram)
        found = {"min": self.low}
        for name, share in QUANTILES.items():
            place = int(np.searchsorted(reached, math.ceil(share * self.tokens))) - BINS
            size = SMALLEST * math.exp((abs(place) - 0.5) * STEP) if place else 0.0
            found[name] = min(max(math.copysign(size, place), self.low), self.high)
        return {name: math.exp(value) for name, value in (found | {"max": self.high}).items()}


def _bins(log_ratio: np.ndarray) -> np.ndarray:
    """Return the place of each log ratio in the histogram, from the most negative to the most positive."""
    size = np.maximum(np.abs(log_ratio), SMALLEST / 2)
    place = np.clip(1 + np.floor(np.log(size / SMALLEST) / STEP), 0, BINS).astype(np.int64)
    return BINS + np.where(log_ratio < 0, -place, place)


@dataclass
class PairTally:
    """All sums of one pair; of each rollout one number, its token-level effective sample size."""

    pair: Pair
    bounds: Bounds
    rollouts: int = 0
    without_tokens: int = 0
    skipped: int = 0
    first_skipped: str = ""
    at_bound: int = 0
    every: Tally = field(default_factory=Tally)
    key: Tally = field(default_factory=Tally)
    rest: Tally = field(default_factory=Tally)
    weights: off_policy.WeightSums = field(default_factory=off_policy.WeightSums)
    token_sizes: list[np.ndarray] = field(default_factory=list)
    decile_tokens: np.ndarray = field(default_factory=lambda: np.zeros(10, np.int64))
    decile_k3: np.ndarray = field(default_factory=lambda: np.zeros(10))
    largest: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rows: PairRows, key_weight: np.ndarray | None, describe: Callable[[int, int], dict]) -> None:
        """Add the rows of a batch; describe(row, position) names a token."""
        log_ratio, sampled = rows.log_ratio, rows.policy_lengths > 0
        self.rollouts += int(sampled.sum())
        self.without_tokens += int((rows.comparable & ~sampled).sum())
        self.skipped += int((~rows.comparable).sum())
        self.first_skipped = self.first_skipped or rows.first_skipped
        self.at_bound += int(np.count_nonzero(np.abs(log_ratio) >= off_policy.LOG_RATIO_BOUND))
        self.every.add(log_ratio, self.bounds)
        if key_weight is not None:
            self.key.add(log_ratio[np.abs(key_weight) >= self.bounds.key_threshold], self.bounds)
            self.rest.add(log_ratio[np.abs(key_weight) < self.bounds.key_threshold], self.bounds)
        log_weights = off_policy.log_sequence_weights(log_ratio, rows.policy_lengths)[sampled]
        self.weights = self.weights.merge(off_policy.WeightSums.of(log_weights))
        self.token_sizes.append(off_policy.token_effective_sample_sizes(log_ratio, rows.policy_lengths)[sampled])
        decile = off_policy.position_deciles(rows.lengths)[rows.is_policy]
        self.decile_tokens += np.bincount(decile, minlength=10)
        self.decile_k3 += np.bincount(decile, off_policy.k3(log_ratio), minlength=10)
        self._keep_largest(rows, describe)

    def _keep_largest(self, rows: PairRows, describe: Callable[[int, int], dict]) -> None:
        """Keep the tokens of largest |log r|, of equal ones those that come first; none where the policies agree."""
        size = np.abs(rows.log_ratio)
        least = self.largest[-1]["size"] if len(self.largest) == N_LARGEST else 0.0
        found = np.flatnonzero(size > least)
        if len(found) > N_LARGEST:
            found = found[np.argsort(-size[found], kind="stable")[:N_LARGEST]]
        if not len(found):
            return
        at = np.flatnonzero(rows.is_policy)[found]
        ends = np.cumsum(rows.lengths)
        row = np.searchsorted(ends, at, "right")
        position = at - (ends - rows.lengths)[row]
        for token, i, t in zip(found.tolist(), row.tolist(), position.tolist(), strict=True):
            ratio = math.exp(rows.log_ratio[token])
            self.largest.append({"size": float(size[token]), **describe(i, t), "ratio": ratio})
        self.largest = sorted(self.largest, key=lambda token: -token["size"])[:N_LARGEST]

    def facts(self, has_key_weight: bool) -> dict[str, Any]:
        """Return the facts of the pair."""
        sizes = np.concatenate(self.token_sizes) if self.token_sizes else np.zeros(0)
        means = self.decile_k3 / np.maximum(self.decile_tokens, 1)
        found = {
            "label": self.pair.label,
            "old": self.pair.old,
            "new": self.pair.new,
            "note": self.pair.note,
            "rollouts": self.rollouts,
            "without_tokens": self.without_tokens,
            "skipped": self.skipped,
            "first_skipped": self.first_skipped,
            "tokens_at_bound": self.at_bound,
            **self.every.facts(),
            "effective_sample_size": self.weights.effective_sample_size() if self.weights.n else None,
            "token_effective_sample_size_median": float(np.median(sizes)) if len(sizes) else None,
            "token_effective_sample_size_min": float(sizes.min()) if len(sizes) else None,
            "k3_by_position": [float(mean) if n else None for mean, n in zip(means, self.decile_tokens, strict=True)],
            "largest": [{k: v for k, v in token.items() if k != "size"} for token in self.largest],
        }
        return found | ({"key": self.key.facts(), "rest": self.rest.facts()} if has_key_weight else {})


def measure_off_policy(
    source,
    mapping: Mapping,
    pairs: list[Pair],
    bounds: Bounds,
    write: Callable[[pa.RecordBatch, dict[str, PairRows]], None] | None = None,
) -> dict[str, Any]:
    """Read the columns of the pairs once and return their facts; `write` gets each batch with its rows.

    Of a scored file the same facts on key tokens, |key_weight| >= key_threshold, stand against those on the rest;
    tokens of unscored rollouts are in neither.
    """
    has_key_weight = "key_weight" in source.schema.names and fits(
        source.schema.field("key_weight").type, "list<float32>"
    )
    tallies, first = {pair.name: PairTally(pair, bounds) for pair in pairs}, 0
    for batch in source.batches(_roots(source, mapping, pairs, has_key_weight, write is not None)):
        found = {}
        for pair in pairs:
            rows = read_pair(batch, mapping, pair, lambda i, at=first: source.place(at + i))
            weight = token_values(column_at(batch, "key_weight"), rows) if has_key_weight else None
            tallies[pair.name].add(rows, weight, _describer(source, batch, mapping, first))
            found[pair.name] = rows
        if write:
            write(batch, found)
        first += len(batch)
    return {
        "clip": list(bounds.clip),
        "cap": bounds.cap,
        "mask": list(bounds.kept),
        "key_threshold": bounds.key_threshold if has_key_weight else None,
        "pairs": {name: tally.facts(has_key_weight) for name, tally in tallies.items()},
    }


def _roots(source, mapping: Mapping, pairs: list[Pair], has_key_weight: bool, writes: bool) -> list[str]:
    wanted = [name for pair in pairs for name in (pair.old, pair.new)] + ["response_ids", "response_mask"]
    paths = [
        mapping.columns[name] for name in (*wanted, *(["rollout_id"] if writes else [])) if name in mapping.columns
    ]
    roots = [root_of(source.schema, path) for path in paths] + (["key_weight"] if has_key_weight else [])
    return list(dict.fromkeys(roots))


def _describer(source, batch: pa.RecordBatch, mapping: Mapping, first: int) -> Callable[[int, int], dict]:
    """Return a function that names the token at a row of the batch and a position of its response."""
    path = mapping.columns.get("response_ids")
    ids = column_at(batch, path) if path else None

    def describe(row: int, position: int) -> dict[str, Any]:
        there = ids is not None and not pa.types.is_null(ids.type) and ids[row].is_valid
        token_id = ids[row].values[position].as_py() if there else None
        return {"place": source.place(first + row), "row": first + row, "position": position, "token_id": token_id}

    return describe
