"""A batch of rows as rules see it: canonical columns as flat numpy arrays, made when they are asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.mapping import Mapping, fits
from ktae_cli.off_policy_rows import Pair, PairRows, read_pair
from ktae_cli.readers.base import column_at, decoded, list_lengths, list_values
from ktae_cli.rollouts import ReadOptions, RowErrors, reward_and_verdict, was_truncated


@dataclass(frozen=True)
class Input:
    """What is known before a row is read. `problem` says why the columns make no groups, "" where they do."""

    schema: pa.Schema
    mapping: Mapping
    place: Callable[[int], str]
    problem: str = ""
    threshold: float = 0.0
    tokenizer: Any = None
    eos_ids: tuple[int, ...] = ()
    pad_ids: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """What the reader counted: lines and rows that it left out."""
    refused: dict[str, str] = field(default_factory=dict)
    """Part of what was counted -> where the first one is and what is wrong with it."""

    def path(self, name: str) -> str | None:
        """Return where a canonical column, or one of `score`, stands in the input, or None."""
        if name == "advantages":
            there = name in self.schema.names and fits(self.schema.field(name).type, "list<float32>")
            return name if there else None
        return self.mapping.columns.get(name)

    def has(self, name: str) -> bool:
        """Tell whether there is such a column."""
        return self.path(name) is not None


class Rows:
    """The rows of one batch. `numbers` (n,) are their places in the input, `group` (n,) codes, -1 without a group."""

    def __init__(self, batch: pa.RecordBatch, input: Input, numbers: np.ndarray, group: np.ndarray):
        self.batch, self.input, self.numbers, self.group = batch, input, numbers, group
        self.pairs: dict[Pair, PairRows] = {}

    def place(self, row: int) -> str:
        """Name row `row` of the batch for a message."""
        return self.input.place(int(self.numbers[row]))

    def has(self, name: str) -> bool:
        """Tell whether the input has the column."""
        return self.input.has(name)

    def column(self, name: str) -> pa.Array:
        """Return a column as Arrow holds it."""
        return column_at(self.batch, self.input.path(name))

    def lengths_of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (lengths, is_valid) of a list column, (n,) each."""
        return list_lengths(self.column(name))

    def text(self, name: str) -> pa.Array:
        """Return a text column as Arrow strings; raise `InputError` where one is not UTF-8."""
        array = self.column(name).cast(pa.large_string())
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            where = f"{self.place(0)} or a row after it"
            raise InputError(f"{where}: {name} is not UTF-8 text; the file is damaged") from None
        return array

    def texts(self, name: str) -> list[str | None]:
        """Return a text column as Python strings."""
        return decoded(self.column(name).cast(pa.large_string()), name, self.place(0))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Return the number of response tokens of each row (n,); 0 where response_ids is null or absent."""
        return self.lengths_of("response_ids")[0] if self.has("response_ids") else np.zeros(len(self.numbers), np.int64)

    @cached_property
    def ends(self) -> np.ndarray:
        """Return where the tokens of each row end in the flat arrays (n,)."""
        return np.cumsum(self.lengths)

    @cached_property
    def ids(self) -> np.ndarray:
        """Return the response ids of all rows end to end (n_tokens,) int64, -1 for a null."""
        return np.asarray(list_values(self.column("response_ids")).cast(pa.int64(), safe=False).fill_null(-1))

    @cached_property
    def row_of(self) -> np.ndarray:
        """Return the row of each token (n_tokens,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def mask(self) -> np.ndarray:
        """Return where the policy sampled the token (n_tokens,) bool: all true without a usable response_mask."""
        if not self.has("response_mask"):
            return np.ones(len(self.row_of), bool)
        values = self.flat("response_mask", missing=1.0)
        return ~(values == 0)

    def fits(self, name: str) -> np.ndarray:
        """Tell for each row (n,) whether a per-token column has a value for each id."""
        own, valid = self.lengths_of(name)
        return valid & (own == self.lengths)

    def flat(self, name: str, missing: float = np.nan) -> np.ndarray:
        """Return a per-token column (n_tokens,) float64 beside the ids: `missing` in rows that are null or do not fit.

        A null among the values is NaN.
        """
        values = list_values(self.column(name)).cast(pa.float64(), safe=False).fill_null(np.nan)
        flat, fits = values.to_numpy(zero_copy_only=False), self.fits(name)
        if fits.all():
            return flat
        out = np.full(len(self.row_of), missing)
        out[fits[self.row_of]] = flat[np.repeat(fits, self.lengths_of(name)[0])]
        return out

    def any_token(self, bad: np.ndarray) -> np.ndarray:
        """Tell for each row (n,) whether one of its tokens (n_tokens,) is marked."""
        return np.bincount(self.row_of[bad], minlength=len(self.lengths)) > 0

    def first_token(self, row: int, bad: np.ndarray) -> int:
        """Return the flat place of the first marked token of a row."""
        start = int(self.ends[row] - self.lengths[row])
        return start + int(np.flatnonzero(bad[start : self.ends[row]])[0])

    @cached_property
    def policy_lengths(self) -> np.ndarray:
        """Return the number of tokens that the policy sampled (n,)."""
        return np.bincount(self.row_of[self.mask], minlength=len(self.lengths))

    @cached_property
    def tail_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (last id, how often it stands at the end in a row) of each row (n,); -1 and 0 without tokens."""
        if not len(self.ids):
            return np.full(len(self.lengths), -1), np.zeros(len(self.lengths), np.int64)
        at = np.arange(len(self.ids))
        changes = (np.diff(self.ids, prepend=-2) != 0) | (np.diff(self.row_of, prepend=-1) != 0)
        last = np.maximum(self.ends - 1, 0)
        run = self.ends - np.maximum.accumulate(np.where(changes, at, 0))[last]
        some = self.lengths > 0
        return np.where(some, self.ids[last], -1), np.where(some, run, 0)

    @cached_property
    def rewards(self) -> tuple[np.ndarray, np.ndarray, RowErrors]:
        """Return reward (n,) with NaN unknown, verdict (n,) int8 with -1 unknown, and the rows that cannot be read."""
        errors = RowErrors(len(self.numbers), self.place, "skip")
        column = {name: self.column(name) for name in ("reward", "correct") if self.has(name)}
        if not column:
            return np.full(len(self.numbers), np.nan), np.full(len(self.numbers), -1, np.int8), errors
        reward, correct = reward_and_verdict(column, ReadOptions(self.input.threshold), errors)
        return np.where(errors.bad, np.nan, reward), np.where(errors.bad, -1, correct).astype(np.int8), errors

    @cached_property
    def truncated(self) -> np.ndarray:
        """Tell for each row (n,) whether finish_reason is "length"."""
        column = self.column("finish_reason") if self.has("finish_reason") else None
        return was_truncated(column, len(self.numbers))

    def compare(self, pair: Pair) -> PairRows:
        """Return the log ratios of two policies on these rows."""
        if pair not in self.pairs:
            self.pairs[pair] = read_pair(self.batch, self.input.mapping, pair, self.place)
        return self.pairs[pair]
