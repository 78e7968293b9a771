"""What every export shares: full-sequence rows, `value t belongs to token t`, built batch by batch from flat arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError, KtaeError
from ktae_cli.readers.base import list_lengths, list_values
from ktae_cli.readers.scored import Columns, ScoredFile, floats_of, ids_of, unknown_id
from ktae_cli.rollouts import was_truncated
from ktae_cli.schema import SCHEMA_VERSION
from ktae_cli.tokens import visible

LOG_PROBS = ("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs")
ALIGNMENT = "full sequence; value t belongs to token t; 0 on the prompt"
_IDS = ("group_id", "rollout_id")

_TYPES = {
    "group_id": pa.string(),
    "rollout_id": pa.string(),
    "input_ids": pa.list_(pa.int32()),
    "loss_mask": pa.list_(pa.int8()),
    "advantages": pa.list_(pa.float32()),
    **{name: pa.list_(pa.float32()) for name in LOG_PROBS},
    "reward": pa.float64(),
    "step": pa.int64(),
}


@dataclass
class ExportRows:
    """A stream of full-sequence record batches and, once it is read, what it held."""

    scored: ScoredFile
    column: str
    null_advantages: str
    schema: pa.Schema
    metadata: dict[str, Any]
    counts: dict[str, int] = field(
        default_factory=lambda: {"rollouts": 0, "tokens": 0, "dropped": 0, "zeroed": 0, "without_prompt_ids": 0}
    )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        names = [name for name in _TYPES if name in self.schema.names and name not in ("input_ids", "loss_mask")]
        names = [name for name in names if name != "advantages"]
        masking = self.scored.metadata.get("truncated") == "mask"
        more = ["prompt_ids", "response_ids", "response_mask", *(["finish_reason"] if masking else [])]
        for rows, columns in self.scored.batches([*names, self.column, *more]):
            unscored = ~np.asarray(columns[self.column].is_valid())
            if self.null_advantages == "drop" and unscored.any():
                self.counts["dropped"] += int(unscored.sum())
                kept = pa.array(~unscored)
                rows, columns = rows[~unscored], {name: array.filter(kept) for name, array in columns.items()}
                unscored = unscored[~unscored]
            self.counts["zeroed"] += int(unscored.sum())
            if len(rows):
                yield self._batch(rows, columns, unscored)

    def _batch(self, rows: np.ndarray, columns: Columns, unscored: np.ndarray) -> pa.RecordBatch:
        ids = {name: pa.array(ids_of(columns[name], self.scored.path, name), pa.string()) for name in _IDS}
        where = _Rows(self.scored.path.name, rows, columns)
        response, has_response = list_lengths(columns["response_ids"])
        where.refuse(~has_response, "response_ids is null; score it with --tokenizer, or leave the row out")
        prompt = np.zeros(len(rows), np.int64)
        if "prompt_ids" in columns:
            prompt, has_prompt = list_lengths(columns["prompt_ids"])
            self.counts["without_prompt_ids"] += int((~has_prompt).sum())
        else:
            self.counts["without_prompt_ids"] += len(rows)
        layout = Layout(prompt, response)
        mask = _policy_mask(columns, response, where)
        built: dict[str, pa.Array] = {
            **ids,
            "input_ids": layout.lists(_ids(columns["response_ids"], where), _ids(columns.get("prompt_ids"), where)),
            "loss_mask": layout.lists(mask.astype(np.int8)),
            "advantages": layout.lists(_values(columns[self.column], self.column, response, mask, where, unscored)),
        }
        for name in LOG_PROBS:
            if name in columns:
                absent = ~np.asarray(columns[name].is_valid())
                built[name] = layout.lists(_values(columns[name], name, response, mask, where, absent), null=absent)
        if "reward" in columns:
            built["reward"] = pa.array(floats_of(columns["reward"]), pa.float64(), from_pandas=True)
        if "step" in columns:
            built["step"] = _steps(columns["step"], where)
        self.counts["rollouts"] += len(rows)
        self.counts["tokens"] += int(layout.starts[-1])
        return pa.RecordBatch.from_arrays([built[name] for name in self.schema.names], schema=self.schema)


class Layout:
    """Where prompt and response of each row lie in the flat arrays of a batch."""

    def __init__(self, prompt: np.ndarray, response: np.ndarray):
        self.starts = np.concatenate(([0], np.cumsum(prompt + response)))
        if self.starts[-1] >= 2**31:
            raise InputError("one batch of rows holds more than 2^31 tokens")
        self.prompt = _places(self.starts[:-1], prompt)
        self.response = _places(self.starts[:-1] + prompt, response)

    def lists(
        self, response: np.ndarray, prompt: np.ndarray | None = None, null: np.ndarray | None = None
    ) -> pa.ListArray:
        """Return one list for each row: the response values in their places, the prompt's (else 0) before them."""
        flat = np.zeros(self.starts[-1], response.dtype)
        flat[self.response] = response
        if prompt is not None:
            flat[self.prompt] = prompt
        nulls = pa.array(null) if null is not None and null.any() else None
        return pa.ListArray.from_arrays(pa.array(self.starts, pa.int32()), pa.array(flat), mask=nulls)


def _places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start+1, … of each row, one row after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


@dataclass(frozen=True)
class _Rows:
    """Names the first row at fault."""

    file: str
    numbers: np.ndarray
    columns: Columns

    def refuse(self, bad: np.ndarray, problem: str, **details: np.ndarray) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            rollout = visible(str(self.columns["rollout_id"][at].as_py()))
            shown = problem.format(**{name: values[at] for name, values in details.items()})
            raise InputError(f"{self.file}, row {self.numbers[at]} (rollout {rollout}): {shown}")

    def refuse_tokens(self, bad: np.ndarray, lengths: np.ndarray, problem: str) -> None:
        if bad.any():
            row = np.repeat(np.arange(len(lengths)), lengths)[int(np.argmax(bad))]
            self.refuse(np.arange(len(lengths)) == row, problem)


def _ids(array: pa.Array | None, where: _Rows) -> np.ndarray | None:
    if array is None:
        return None
    values = list_values(array)
    if pa.types.is_null(values.type):
        return np.zeros(0, np.int32)
    if values.null_count:
        where.refuse_tokens(np.asarray(values.is_null()), list_lengths(array)[0], "a token id is null")
    try:
        return values.cast(pa.int32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise InputError(f"{where.file}: token ids do not fit in int32: {error}") from None


def _policy_mask(columns: Columns, response: np.ndarray, where: _Rows) -> np.ndarray:
    """Return True where the policy sampled the token; a null mask is all true.

    Where `finish_reason` is among the columns, responses cut at the length limit are off: they were scored so.
    """
    mask = np.ones(int(response.sum()), bool)
    if "response_mask" in columns:
        lengths, valid = list_lengths(columns["response_mask"])
        _refuse_lengths(lengths, response, valid, "response_mask", where)
        mask[np.repeat(valid, response)] = np.nan_to_num(floats_of(list_values(columns["response_mask"]))) != 0
    mask[np.repeat(was_truncated(columns.get("finish_reason"), len(response)), response)] = False
    return mask


def _steps(array: pa.Array, where: _Rows) -> pa.Array:
    """Return training steps as int64; fractions and what lies outside int64 are refused."""
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


def read_rows(scored: ScoredFile, column: str, null_advantages: str) -> ExportRows:
    """Return the rows to export; raise on a column that cannot be an advantage or is not there."""
    if column.startswith("grad_weight_"):
        raise KtaeError(
            f"{column} is a coefficient of the gradient, ratio and clip included: a trainer that multiplies it by its "
            "own ratio counts the ratio twice; choose advantages or adv_…"
        )
    known = scored.value_columns()
    if column not in known:
        raise unknown_id("per-token column", column, [name for name in known if not name.startswith("grad_weight_")])
    scored.require(["group_id", "rollout_id", "response_ids"])
    always = ("group_id", "rollout_id", "input_ids", "loss_mask", "advantages")
    names = [name for name in _TYPES if name in always or scored.has(name)]
    metadata = {"alignment": ALIGNMENT, "source": scored.path.name, "advantages": column}
    metadata |= {"spec": scored.spec_of(column), "schema_version": SCHEMA_VERSION}
    return ExportRows(scored, column, null_advantages, pa.schema([(name, _TYPES[name]) for name in names]), metadata)


def refuse_retokenized(scored: ScoredFile) -> None:
    """Raise where token ids were made by encoding a text again: a trainer would credit tokens nobody sampled."""
    if not scored.has("retokenized"):
        return
    for numbers, columns in scored.batches(["group_id", "retokenized"]):
        marked = floats_of(columns["retokenized"]) == 1
        if marked.any():
            raise InputError(
                f"{scored.path.name}, row {numbers[int(np.argmax(marked))]}: the token ids come from encoding the text "
                "again and may not be the sampled ones; record the ids in the run (docs/recording.md), or give "
                "--allow-retokenized"
            )


def refuse_source(target: Path, sources: Sequence[Path | None]) -> None:
    """Raise where the target is one of the files that are read, whatever name leads to it."""
    if any(source is not None and target.exists() and target.samefile(source) for source in sources):
        raise KtaeError(f"{target} is the file that is read; choose another name with -o")
