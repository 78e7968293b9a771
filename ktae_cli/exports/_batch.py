"""Rollouts of a scored file as flat arrays without padding, every length, mask, id and value checked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError
from ktae_cli.readers.base import list_lengths, list_values
from ktae_cli.readers.scored import Columns, ScoredFile, floats_of, ids_of
from ktae_cli.rollouts import was_truncated
from ktae_cli.token_text import visible

LOG_PROBS = ("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs")
_ALWAYS = ("group_id", "rollout_id", "prompt_ids", "response_ids", "response_mask", "reward", "step")


@dataclass(frozen=True)
class Batch:
    """Consecutive rollouts. Arrays over tokens are flat, one rollout after the other; `split` cuts them.

    numbers: (n,) rows of the scored file. prompt, response: (n,) lengths. prompt_ids, response_ids: int32.
    mask: bool over response tokens, true where the policy sampled the token and the loss sees it.
    values: float32 over response tokens, the exported column, 0 off the mask.
    log_probs: by canonical name, (float32 over response tokens, 0 off the mask; (n,) bool, false where a row has none).
    rewards, steps: float64 and int64 with nulls, None where the file has no such column. columns: other columns asked
    for, as Arrow arrays. has_prompt, unscored: (n,) bool.
    """

    numbers: np.ndarray
    group_ids: list[str]
    rollout_ids: list[str]
    prompt: np.ndarray
    response: np.ndarray
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    mask: np.ndarray
    values: np.ndarray
    log_probs: dict[str, tuple[np.ndarray, np.ndarray]]
    rewards: pa.Array | None
    steps: pa.Array | None
    columns: Columns
    has_prompt: np.ndarray
    unscored: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of prompt and response together."""
        return self.prompt + self.response

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each full sequence begins, and where the last one ends: (n + 1,)."""
        starts = np.concatenate(([0], np.cumsum(self.lengths)))
        if starts[-1] >= 2**31:
            raise InputError("one batch of rows holds more than 2^31 tokens")
        return starts

    def full(self, response: np.ndarray, prompt: np.ndarray | None = None) -> np.ndarray:
        """Return values over full sequences: the response's in their places, the prompt's (else 0) before them."""
        flat = np.zeros(self.starts[-1], response.dtype)
        flat[_places(self.starts[:-1] + self.prompt, self.response)] = response
        if prompt is not None:
            flat[_places(self.starts[:-1], self.prompt)] = prompt
        return flat

    def slice(self, start: int, stop: int) -> "Batch":
        """Return some of the rows."""
        own = slice(start, stop)
        prompt = slice(*(int(self.prompt[:at].sum()) for at in (start, stop)))
        response = slice(*(int(self.response[:at].sum()) for at in (start, stop)))
        return Batch(
            numbers=self.numbers[own],
            group_ids=self.group_ids[own],
            rollout_ids=self.rollout_ids[own],
            prompt=self.prompt[own],
            response=self.response[own],
            prompt_ids=self.prompt_ids[prompt],
            response_ids=self.response_ids[response],
            mask=self.mask[response],
            values=self.values[response],
            log_probs={name: (values[response], there[own]) for name, (values, there) in self.log_probs.items()},
            rewards=None if self.rewards is None else self.rewards[own],
            steps=None if self.steps is None else self.steps[own],
            columns={name: array[own] for name, array in self.columns.items()},
            has_prompt=self.has_prompt[own],
            unscored=self.unscored[own],
        )

    def full_ids(self) -> np.ndarray:
        """Return the token ids of the full sequences."""
        return self.full(self.response_ids, self.prompt_ids)


def split(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Cut a flat array into one view for each row."""
    stops = np.cumsum(lengths).tolist()
    return [flat[stop - length : stop] for stop, length in zip(stops, lengths.tolist(), strict=True)]


def _places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start+1, … of each row, one row after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def read_batches(
    scored: ScoredFile,
    column: str,
    names: Sequence[str] = (),
    mask_truncated: bool = False,
    rows: np.ndarray | None = None,
) -> Iterator[Batch]:
    """Read rows (all without `rows`) with the values of a per-token column and the further columns that there are.

    Responses cut at the length limit are off the mask when they were scored so, or with mask_truncated. Raises
    `InputError` that names the first row whose ids, lengths or values are wrong.
    """
    masking = mask_truncated or scored.metadata.get("truncated") == "mask"
    wanted = [*_ALWAYS, column, *names, *(["finish_reason"] if masking else [])]
    for numbers, columns in scored.batches(wanted, rows):
        yield _batch(_Rows(scored.path, numbers, columns), column, names, masking)


def _batch(where: "_Rows", column: str, names: Sequence[str], masking: bool) -> Batch:
    columns, n = where.columns, len(where.numbers)
    response, has_response = list_lengths(columns["response_ids"])
    where.refuse(~has_response, "response_ids is null; score it with --tokenizer, or leave the row out")
    prompt, has_prompt = np.zeros(n, np.int64), np.zeros(n, bool)
    if "prompt_ids" in columns:
        prompt, has_prompt = list_lengths(columns["prompt_ids"])
    mask = _policy_mask(columns, response, where, masking)

    def values(name: str) -> tuple[np.ndarray, np.ndarray]:
        present = np.asarray(columns[name].is_valid())
        return _values(columns[name], name, response, mask, where, ~present), present

    exported, scored = values(column)
    return Batch(
        numbers=where.numbers,
        group_ids=ids_of(columns["group_id"], where.path, "group_id"),
        rollout_ids=ids_of(columns["rollout_id"], where.path, "rollout_id"),
        prompt=prompt,
        response=response,
        prompt_ids=_ids(columns.get("prompt_ids"), where),
        response_ids=_ids(columns["response_ids"], where),
        mask=mask,
        values=exported,
        log_probs={name: values(name) for name in names if name in LOG_PROBS and name in columns},
        rewards=_rewards(columns.get("reward")),
        steps=_steps(columns.get("step"), where),
        columns={name: columns[name] for name in names if name in columns and name not in LOG_PROBS},
        has_prompt=has_prompt,
        unscored=~scored,
    )


@dataclass(frozen=True)
class _Rows:
    """Names the first row at fault."""

    path: Path
    numbers: np.ndarray
    columns: Columns

    def refuse(self, bad: np.ndarray, problem: str, **details: np.ndarray) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            rollout = visible(str(self.columns["rollout_id"][at].as_py()))
            shown = problem.format(**{name: values[at] for name, values in details.items()})
            raise InputError(f"{self.path.name}, row {self.numbers[at]} (rollout {rollout}): {shown}")

    def refuse_tokens(self, bad: np.ndarray, lengths: np.ndarray, problem: str) -> None:
        if bad.any():
            row = np.repeat(np.arange(len(lengths)), lengths)[int(np.argmax(bad))]
            self.refuse(np.arange(len(lengths)) == row, problem)


def _ids(array: pa.Array | None, where: _Rows) -> np.ndarray:
    if array is None:
        return np.zeros(0, np.int32)
    values = list_values(array)
    if pa.types.is_null(values.type):
        return np.zeros(0, np.int32)
    if values.null_count:
        where.refuse_tokens(np.asarray(values.is_null()), list_lengths(array)[0], "a token id is null")
    try:
        return values.cast(pa.int32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise InputError(f"{where.path.name}: token ids do not fit in int32: {error}") from None


def _policy_mask(columns: Columns, response: np.ndarray, where: _Rows, masking: bool) -> np.ndarray:
    """Return True where the policy sampled the token; a null mask is all true."""
    mask = np.ones(int(response.sum()), bool)
    if "response_mask" in columns:
        lengths, valid = list_lengths(columns["response_mask"])
        _refuse_lengths(lengths, response, valid, "response_mask", where)
        mask[np.repeat(valid, response)] = np.nan_to_num(floats_of(list_values(columns["response_mask"]))) != 0
    if masking:
        mask[np.repeat(was_truncated(columns.get("finish_reason"), len(response)), response)] = False
    return mask


def _values(
    array: pa.Array, name: str, response: np.ndarray, mask: np.ndarray, where: _Rows, absent: np.ndarray
) -> np.ndarray:
    """Return float32 values, 0 off the mask and in absent rows; what is not finite on the mask is refused."""
    lengths, _ = list_lengths(array)
    _refuse_lengths(lengths, response, ~absent, name, where)
    values = np.zeros(len(mask), np.float32)
    values[np.repeat(~absent, response)] = floats_of(list_values(array))
    values[~mask] = 0.0
    where.refuse_tokens(~np.isfinite(values), response, f"{name} holds a value that is not finite at a policy token")
    return values


def _refuse_lengths(lengths: np.ndarray, response: np.ndarray, valid: np.ndarray, name: str, where: _Rows) -> None:
    problem = f"response_ids holds {{expected}} tokens, {name} {{found}} values; they must be equal"
    where.refuse(valid & (lengths != response), problem, expected=response, found=lengths)


def _rewards(array: pa.Array | None) -> pa.Array | None:
    return None if array is None else pa.array(floats_of(array), pa.float64(), from_pandas=True)


def _steps(array: pa.Array | None, where: _Rows) -> pa.Array | None:
    """Return training steps as int64; fractions and what lies outside int64 are refused."""
    if array is None:
        return None
    if pa.types.is_integer(array.type):
        if array.type == pa.uint64():
            above = pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())).fill_null(False)
            where.refuse(np.asarray(above), "step is above 2^63 - 1")
        return array.cast(pa.int64())
    values = floats_of(array)
    absent = np.isnan(values)
    whole = np.where(absent, 0, values)
    unfit = (whole != np.floor(whole)) | (np.abs(whole) >= 2**63)
    where.refuse(unfit, "step is {found}, no whole number below 2^63", found=values)
    return pa.array(whole.astype(np.int64), mask=absent)
