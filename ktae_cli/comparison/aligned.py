"""Rollouts with the per-token values of several estimators side by side, and what is kept of each of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class AlignedRows:
    """Scored rows of an input, flat; masked tokens are counted out by `counted`.

    values (n_compared, n_tokens) float32, finite. lengths (n_rows,) int64 with masked tokens. verdict (n_rows,) int8:
    1 right, 0 wrong, -1 unknown. group (n_rows,) int64 codes. rollout_ids (n_rows,) strings.
    token_ids (n_tokens,) int64, -1 where unknown. text_of(row, position) gives a token's text, visible, or None.
    """

    group: np.ndarray
    rollout_ids: pa.Array
    verdict: np.ndarray
    lengths: np.ndarray
    values: np.ndarray
    counted: np.ndarray | None = None
    token_ids: np.ndarray | None = None
    text_of: Callable[[int, int], str | None] = lambda row, position: None

    def __len__(self) -> int:
        return len(self.lengths)

    def policy_tokens(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (values, row, position) of the tokens that the policy sampled."""
        row = np.repeat(np.arange(len(self)), self.lengths)
        position = np.arange(len(row)) - (np.cumsum(self.lengths) - self.lengths)[row]
        if self.counted is None:
            return self.values, row, position
        return self.values[:, self.counted], row[self.counted], position[self.counted]


@dataclass(frozen=True)
class RowFacts:
    """What is kept of each row (n_rows,): policy tokens, and for each compared the sums of A and |A| over them.

    flips[i] = (offsets (n_rows + 1,), positions): the tokens at which the sign of i opposes that of the first.
    """

    group: np.ndarray
    verdict: np.ndarray
    n_tokens: np.ndarray
    sums: np.ndarray
    absolute_sums: np.ndarray
    flips: list[tuple[np.ndarray, np.ndarray]]


def facts_of(rows: AlignedRows, tokens: tuple[np.ndarray, np.ndarray, np.ndarray]) -> RowFacts:
    """Reduce rows to their facts; tokens are the rows' `policy_tokens`."""
    values, row, position = tokens
    n_tokens = np.bincount(row, minlength=len(rows))
    sums = np.stack([np.bincount(row, v, len(rows)) for v in values])
    absolute = np.stack([np.bincount(row, np.abs(v), len(rows)) for v in values])
    flips = []
    for other in values[1:]:
        at = np.flatnonzero(np.sign(other) * np.sign(values[0]) < 0)
        counts = np.bincount(row[at], minlength=len(rows))
        flips.append((np.concatenate([[0], np.cumsum(counts)]), position[at]))
    return RowFacts(rows.group, rows.verdict, n_tokens, sums, absolute, flips)


def join_rollouts(rows: list[RowFacts], trajectory: np.ndarray) -> tuple[np.ndarray, RowFacts]:
    """Return (first row of each rollout, facts of whole rollouts): rows of one trajectory (n_rows,) are its parts.

    Sums are added; the verdict is that of the first part that has one.
    """
    group, verdict, n_tokens = (np.concatenate([getattr(r, n) for r in rows]) for n in ("group", "verdict", "n_tokens"))
    sums, absolute = (np.concatenate([getattr(r, n) for r in rows], 1) for n in ("sums", "absolute_sums"))
    _, first, rollout = np.unique(trajectory, return_index=True, return_inverse=True)
    if len(first) == len(group):
        return np.arange(len(group)), RowFacts(group, verdict, n_tokens, sums, absolute, [])
    known = np.full(len(first), -1, np.int8)
    for row in np.flatnonzero(verdict >= 0)[::-1].tolist():
        known[rollout[row]] = verdict[row]
    n_tokens = np.bincount(rollout, n_tokens).astype(np.int64)
    sums, absolute = (np.stack([np.bincount(rollout, row) for row in part]) for part in (sums, absolute))
    return first, RowFacts(group[first], known, n_tokens, sums, absolute, [])
