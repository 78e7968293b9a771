"""What the readers of units share: a batch of responses, the occurrences in it, and the runs of counted tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

MAX_CODE = 1 << 58
"""Codes of units lie below this, so that a place (below 32) can be added to one."""

CHUNK_TOKENS = 1 << 18
"""Tokens whose text is looked at together: what fits the caches of a core, and bounds memory."""


@dataclass(frozen=True)
class TokenBatch:
    """Responses as flat arrays, and whatever text of them there is; None is absent.

    Only counted tokens, those on the mask, carry units. Units lie within a run: counted tokens of one response and one
    place that follow each other.
    """

    token_ids: np.ndarray  # (n_tokens,) int32
    lengths: np.ndarray  # (n_rows,) int64
    mask: np.ndarray | None = None  # (n_tokens,) bool
    stored: pa.Array | None = None  # (n_tokens,) text of each token as the file stores it, nulls allowed
    texts: Sequence[str | None] | None = None  # (n_rows,) decoded responses
    turn_ids: np.ndarray | None = None  # (n_tokens,) int32
    place: np.ndarray | None = None  # (n_tokens,) int64, see places.py

    @property
    def starts(self) -> np.ndarray:
        """Return the flat index of the first token of each row, and the number of tokens behind (n_rows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def slice(self, start: int, stop: int) -> "TokenBatch":
        """Return rows start..stop, sharing memory."""
        starts = self.starts
        first, last = int(starts[start]), int(starts[stop])

        def flat(values):
            return None if values is None else values[first:last]

        return TokenBatch(
            self.token_ids[first:last], self.lengths[start:stop], flat(self.mask),
            None if self.stored is None else self.stored.slice(first, last - first),
            None if self.texts is None else self.texts[start:stop], flat(self.turn_ids), flat(self.place),
        )  # fmt: skip

    def only(self, keep: np.ndarray) -> "TokenBatch":
        """Return the batch with fewer counted tokens: those of keep (n_tokens,) bool."""
        return replace(self, mask=keep if self.mask is None else self.mask & keep)

    def before(self, positions: np.ndarray) -> "TokenBatch":
        """Return the batch with the first tokens of each response counted alone: positions (n_rows,) of them."""
        ends = self.starts[:-1] + positions
        return self.only(np.arange(len(self.token_ids)) < np.repeat(ends, self.lengths))


@dataclass(frozen=True)
class Occurrences:
    """Where units occur, in the order of the rows and within each of its tokens."""

    unit: np.ndarray  # (n,) int64 code
    rollout: np.ndarray  # (n,) int64 row of the batch, ascending
    position: np.ndarray  # (n,) int64 first token of the occurrence within its response


class Vocabulary(Protocol):
    """What codes stand for. A unit has the same code in all batches, unless it was pruned in between."""

    def text(self, code: int) -> str:
        """Return the unit as it stands in responses; hostile text is not made harmless."""

    def name(self, code: int) -> str:
        """Return the unit in visible form, on one line, its place included."""

    def token_id(self, code: int) -> int | None:
        """Return the id of a unit that is a token."""

    def is_special(self, code: int) -> bool:
        """Tell whether the unit is a special token, such as end of text."""

    def prune(self, keep: np.ndarray) -> None:
        """Forget every unit whose code is not in keep (k,) int64; the codes of the others stay."""


class UnitReader(Protocol):
    """What finds the units of one kind; it remembers their codes from batch to batch."""

    vocabulary: Vocabulary

    def read(self, batch: TokenBatch) -> Occurrences:
        """Return every occurrence of every unit."""


class Runs(NamedTuple):
    """Counted tokens, end to end."""

    kept: np.ndarray  # (k,) int64 flat index of each counted token
    first: np.ndarray  # (k,) bool, begins a run


def runs_of(batch: TokenBatch) -> Runs:
    """Return the counted tokens of a batch and where their runs begin."""
    n = len(batch.token_ids)
    first = np.zeros(n, bool)
    starts = batch.starts[:-1]
    first[starts[batch.lengths > 0]] = True
    if batch.place is not None:
        first[1:] |= batch.place[1:] != batch.place[:-1]
    if batch.mask is None:
        return Runs(np.arange(n), first)
    first[1:] |= ~batch.mask[:-1]
    kept = np.flatnonzero(batch.mask)
    return Runs(kept, first[kept])


def occurrences(unit: np.ndarray, token: np.ndarray, batch: TokenBatch) -> Occurrences:
    """Return occurrences from their first tokens (n,), ascending flat indices into the batch."""
    row = np.repeat(np.arange(len(batch.lengths)), batch.lengths)[token]
    return Occurrences(unit.astype(np.int64, copy=False), row, token - batch.starts[row])


def chunks(batch: TokenBatch, tokens: int = CHUNK_TOKENS) -> Iterator[tuple[int, TokenBatch]]:
    """Yield (first token, rows) of about `tokens` tokens; a row is never cut."""
    starts = batch.starts
    row, n_rows = 0, len(batch.lengths)
    while row < n_rows:
        stop = min(max(int(np.searchsorted(starts, starts[row] + tokens, "right")) - 1, row + 1), n_rows)
        yield int(starts[row]), batch.slice(row, stop)
        row = stop
