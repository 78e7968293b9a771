"""From an Arrow batch to the log ratios of its rollouts: which pairs of policies an input holds, which rows compare."""

from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ktae_cli.mapping import Mapping
from ktae_cli.off_policy import log_ratios
from ktae_cli.readers.base import column_at, list_lengths, list_values


@dataclass(frozen=True)
class Pair:
    """Two policies on the same tokens: `old` and `new` are canonical columns, r = exp(new - old)."""

    name: str
    label: str
    old: str
    new: str
    note: str = ""


ENGINE_TRAINER = Pair("engine_trainer", "engine to trainer", "rollout_log_probs", "old_log_probs")
OLD_NEW = Pair("old_new", "old to new policy", "old_log_probs", "log_probs")
ENGINE_NEW = Pair(
    "old_new", "old to new policy", "rollout_log_probs", "log_probs", "no old_log_probs: the engine's stand for them"
)
NEEDED = "rollout_log_probs with old_log_probs, or either of them with log_probs"


def find_pairs(columns: Container[str]) -> list[Pair]:
    """Return the pairs that an input's columns make; without old_log_probs the engine's stand for them."""
    later = OLD_NEW if "old_log_probs" in columns else ENGINE_NEW
    return [pair for pair in (ENGINE_TRAINER, later) if pair.old in columns and pair.new in columns]


@dataclass(frozen=True)
class PairRows:
    """The rows of a batch as flat arrays; rows that cannot be compared have no tokens."""

    comparable: np.ndarray  # (n_rows,) bool
    lengths: np.ndarray  # (n_rows,) int64, tokens of the response
    is_policy: np.ndarray  # (n_tokens,) bool, sampled by the policy
    policy_lengths: np.ndarray  # (n_rows,) int64, tokens sampled by the policy
    log_ratio: np.ndarray  # (n_policy_tokens,) float64
    first_skipped: str
    """The place of the first row that cannot be compared and what it holds."""

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return values of the policy's tokens (n_policy_tokens,) at all tokens (n_tokens,), 0 elsewhere."""
        out = np.zeros(len(self.is_policy), values.dtype)
        out[self.is_policy] = values
        return out


def read_pair(batch: pa.RecordBatch, mapping: Mapping, pair: Pair, place: Callable[[int], str]) -> PairRows:
    """Compare the two policies of a pair on the rows of a batch; place(i) names row i in messages.

    A row with a null list, lists of unequal length, a mask of other values than 0 and 1, or a null, NaN or infinite
    log-prob at a token of the policy cannot be compared. Values where response_mask is false are not looked at. TRL
    gives a NaN of the engine the ratio 1 instead.
    """
    names = [name for name in (pair.old, pair.new, "response_ids", "response_mask") if name in mapping.columns]
    column = {name: column_at(batch, mapping.columns[name]) for name in names}
    skipped, lengths = _SkippedRows(len(batch)), list_lengths(column[pair.old])[0]
    for name in names:
        own, valid = list_lengths(column[name])
        if name in (pair.old, pair.new):
            skipped.add(~valid, lambda row, name=name: f"{name} is null")
        skipped.add(
            valid & (own != lengths),
            lambda row, name=name, own=own: f"{name} has {own[row]} values for {lengths[row]} {pair.old}",
        )
    kept = ~skipped.rows
    row_of = np.repeat(np.flatnonzero(kept), lengths[kept])
    mask = _mask(column["response_mask"], kept, lengths) if "response_mask" in column else np.ones(len(row_of))
    skipped.add_tokens(row_of, ~np.isin(mask, (0.0, 1.0)), "response_mask holds a value other than 0 and 1")
    is_policy = mask == 1
    values = {name: _floats(column[name], kept) for name in (pair.old, pair.new)}
    for name, flat in values.items():
        skipped.add_tokens(row_of, is_policy & ~np.isfinite(flat), f"{name} holds no finite number")
    still = ~skipped.rows[row_of]
    is_policy = is_policy[still]
    old, new = (values[name][still][is_policy] for name in (pair.old, pair.new))
    return PairRows(
        ~skipped.rows,
        np.where(skipped.rows, 0, lengths),
        is_policy,
        np.bincount(row_of[still][is_policy], minlength=len(batch)),
        log_ratios(old, new),
        f"{place(skipped.first)}: {skipped.reason}" if skipped.reason else "",
    )


def token_values(array: pa.Array, rows: PairRows) -> np.ndarray:
    """Return another list column's values at the policy's tokens, NaN in rows that are null or of another length."""
    own, valid = list_lengths(array)
    fit = rows.comparable & valid & (own == rows.lengths)
    out = np.full(len(rows.is_policy), np.nan)
    out[np.repeat(fit, rows.lengths)] = _floats(array, fit)
    return out[rows.is_policy]


class _SkippedRows:
    """The rows that cannot be compared, and what is wrong with the first of them."""

    def __init__(self, n_rows: int):
        self.rows, self.first, self.reason = np.zeros(n_rows, bool), n_rows, ""

    def add(self, rows: np.ndarray, reason: Callable[[int], str]) -> None:
        found = np.flatnonzero(rows & ~self.rows)
        if len(found):
            if found[0] < self.first:
                self.first, self.reason = int(found[0]), reason(int(found[0]))
            self.rows |= rows

    def add_tokens(self, row_of: np.ndarray, is_bad: np.ndarray, reason: str) -> None:
        self.add(np.bincount(row_of[is_bad], minlength=len(self.rows)) > 0, lambda row: reason)


def _floats(array: pa.Array, rows: np.ndarray) -> np.ndarray:
    """Return the values of some rows of a list column end to end, float64, null as NaN."""
    flat = list_values(array).cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return flat[np.repeat(rows, list_lengths(array)[0])]


def _mask(array: pa.Array, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the mask of some rows end to end as numbers; a null row is all 1."""
    valid = list_lengths(array)[1]
    out = np.ones(int(lengths[rows].sum()))
    out[np.repeat(valid[rows], lengths[rows])] = _floats(array, rows & valid)
    return out
