"""From an Arrow batch to checked numbers: rewards, verdicts, token ids, masks and per-token columns of its rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError
from ktae_cli.mapping import Mapping
from ktae_cli.prompts import prompt_numbers, prompt_paths
from ktae_cli.readers.base import column_at, decoded, list_lengths, list_values, root_of
from ktae_cli.schema import COLUMNS
from ktae_cli.spans import marks_of_ids, marks_of_texts
from ktae_cli.token_text import plain_stored_texts

MAX_ID = 2**31 - 1
MAX_REWARD = 1e30
"""Larger rewards leave the range of float32 advantages."""
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


@dataclass(frozen=True)
class ReadOptions:
    """How rows become rewards and verdicts."""

    correct_threshold: float = 0.0
    reward_from: str = "reward"
    truncated: str = "keep"
    on_error: str = "stop"
    token_columns: tuple[str, ...] = ()
    """Canonical per-token float columns that the estimators need."""
    reward_parts: bool = False
    """Read the named parts of the reward."""
    text_marks: bool = False
    """Mark where the decoded text can be cut, from the tokenizer's text of the ids, else from response_tokens."""
    text_of: Callable[[int], str | None] | None = None
    prompts: bool = False
    """Number the prompts, and tell which rollouts were cut at the length limit."""
    before_outcome: Callable[..., np.ndarray] | None = None
    """Tells which tokens stand before the outcome is settled (n_tokens,) bool, from ids, lengths, mask, the stored text
    of each token and the responses; None is absent."""


@dataclass(frozen=True)
class Rollouts:
    """Rows as flat arrays. `scored` is false where the reward is unknown or the row was skipped for an error."""

    group: np.ndarray  # (n_rows,) int64 group code
    reward: np.ndarray  # (n_rows,) float64, NaN unknown
    correct: np.ndarray  # (n_rows,) int8: 1, 0, -1 unknown
    scored: np.ndarray  # (n_rows,) bool
    lengths: np.ndarray  # (n_rows,) int64
    token_ids: np.ndarray  # (n_tokens,) int32
    mask: np.ndarray | None = None  # (n_tokens,) bool
    trajectory: np.ndarray | None = None  # (n_rows,) object, rollout_id text
    step: np.ndarray | None = None  # (n_rows,) int64
    tokens: dict[str, np.ndarray] = field(default_factory=dict)  # name -> (n_tokens,) float32; marks are uint8 or bool
    parts: dict[str, np.ndarray] | None = None  # named part of the reward -> (n_rows,) float64, NaN without it
    prompt: np.ndarray | None = None  # (n_rows,) int64, see prompts.py
    cut_off: np.ndarray | None = None  # (n_rows,) bool, ended by the length limit
    n_truncated: int = 0
    n_skipped: int = 0
    first_error: str = ""

    def __len__(self) -> int:
        return len(self.group)

    def slice(self, start: int, stop: int) -> "Rollouts":
        """Return rows start..stop, sharing memory; the counters stay with the whole."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        rows, flat = np.s_[start:stop], np.s_[ends[start] : ends[stop]]
        return Rollouts(
            self.group[rows], self.reward[rows], self.correct[rows], self.scored[rows], self.lengths[rows],
            self.token_ids[flat], None if self.mask is None else self.mask[flat],
            None if self.trajectory is None else self.trajectory[rows],
            None if self.step is None else self.step[rows],
            {name: values[flat] for name, values in self.tokens.items()},
            None if self.parts is None else {name: values[rows] for name, values in self.parts.items()},
            None if self.prompt is None else self.prompt[rows],
            None if self.cut_off is None else self.cut_off[rows],
        )  # fmt: skip


def concat_rollouts(parts: list[Rollouts]) -> Rollouts:
    """Join rows end to end; a mask that only some parts have is all true in the others."""
    if len(parts) == 1:
        return parts[0]

    def join(name: str):
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    masks = None
    if any(part.mask is not None for part in parts):
        masks = np.concatenate([np.ones(len(p.token_ids), bool) if p.mask is None else p.mask for p in parts])
    tokens = {name: np.concatenate([part.tokens[name] for part in parts]) for name in parts[0].tokens}
    rewards = None
    if parts[0].parts is not None:
        rewards = {
            name: np.concatenate([part.parts.get(name, np.full(len(part), np.nan)) for part in parts])
            for name in sorted({name for part in parts for name in part.parts})
        }
    fields = ("group", "reward", "correct", "scored", "lengths", "token_ids")
    return Rollouts(
        *map(join, fields), masks, join("trajectory"), join("step"), tokens, rewards, join("prompt"), join("cut_off")
    )


def read_rollouts(
    batch: pa.RecordBatch, mapping: Mapping, group: np.ndarray, options: ReadOptions, place: Callable[[int], str]
) -> Rollouts:
    """Check the rows of a batch and return them as arrays.

    place(i) names row i of the batch in messages. A row that cannot be scored (null, negative or too large ids, lists
    of unequal length, an unreadable reward) raises `InputError`, or with on_error="skip" is left unscored.
    """
    errors = RowErrors(len(batch), place, options.on_error)
    column = {name: column_at(batch, path) for name, path in mapping.columns.items() if name in _read_names(options)}
    ids, lengths = _token_ids(column["response_ids"], errors)
    masks, token_columns = None, {}
    for spec in COLUMNS:
        if spec.level == "token" and spec.name != "response_ids" and spec.name in column:
            _check_lengths(spec.name, column[spec.name], lengths, errors)
    if "response_mask" in column:
        masks = _mask(column["response_mask"], lengths, errors)
    for name in options.token_columns:
        token_columns[name] = _token_floats(name, column[name], lengths, masks, errors)
    if options.text_marks:
        token_columns["text_marks"] = _text_marks(ids, lengths, options, column, place)
    if options.before_outcome:
        stored, texts = _stored_text(column, lengths), column.get("response")
        token_columns["before_outcome"] = options.before_outcome(
            ids, lengths, masks, stored, None if texts is None else texts.to_pylist()
        )
    reward, correct = reward_and_verdict(column, options, errors)
    truncated = was_truncated(column.get("finish_reason"), len(batch))
    if options.truncated == "zero":
        reward, correct = np.where(truncated, 0.0, reward), np.where(truncated, 0, correct).astype(np.int8)
    if options.truncated == "mask" and truncated.any():
        masks = (np.ones(len(ids), bool) if masks is None else masks) & ~np.repeat(truncated, lengths)
    trajectory = column["rollout_id"].cast(pa.string()).to_numpy(False) if "rollout_id" in column else None
    step = np.asarray(column["step"].cast(pa.int64(), safe=False).fill_null(-1)) if "step" in column else None
    parts = reward_parts(column["rewards"]) if options.reward_parts else None
    if parts and options.truncated == "zero":
        parts = {name: np.where(truncated, 0.0, values) for name, values in parts.items()}
    scored = ~np.isnan(reward) & ~errors.bad
    rows = Rollouts(
        group, reward, correct, scored, lengths, ids, masks, trajectory, step, token_columns, parts,
        prompt_numbers(batch, mapping, place) if options.prompts else None, truncated if options.prompts else None,
        int(truncated.sum()), int(errors.bad.sum()), errors.first,
    )  # fmt: skip
    return _without_bad_tokens(rows, errors.bad)


def _without_bad_tokens(rows: Rollouts, bad: np.ndarray) -> Rollouts:
    """Drop the tokens of rows that were skipped and take them out of their trajectories: what they hold is in doubt."""
    if not bad.any():
        return rows
    keep = ~np.repeat(bad, rows.lengths)
    return replace(
        rows,
        lengths=np.where(bad, 0, rows.lengths),
        trajectory=None if rows.trajectory is None else np.where(bad, None, rows.trajectory),
        token_ids=rows.token_ids[keep],
        mask=None if rows.mask is None else rows.mask[keep],
        tokens={name: values[keep] for name, values in rows.tokens.items()},
    )


def _read_names(options: ReadOptions) -> set[str]:
    names = {column.name for column in COLUMNS if column.level == "token"}
    names |= {"rollout_id", "reward", "correct", "finish_reason", "step"}
    names |= {"rewards"} if options.reward_parts else set()
    return names | ({"response"} if options.before_outcome else set())


def roots_to_read(mapping: Mapping, options: ReadOptions, schema: pa.Schema) -> list[str]:
    """Return the top-level columns that `read_rollouts` looks at, in file order."""
    paths = [path for name, path in mapping.columns.items() if name in _read_names(options)]
    wanted = {root_of(schema, path) for path in [*paths, *(prompt_paths(mapping) if options.prompts else [])]}
    return [name for name in schema.names if name in wanted]


class RowErrors:
    """Collect the rows that cannot be scored, or stop at the first."""

    def __init__(self, n_rows: int, place: Callable[[int], str], on_error: str):
        self.bad, self.place, self.on_error, self.first = np.zeros(n_rows, bool), place, on_error, ""

    def add(self, rows: np.ndarray, message: Callable[[int], str]) -> None:
        """Report rows (bool or index array); message(i) says what was found in row i."""
        rows = np.nonzero(rows)[0] if rows.dtype == bool else rows
        if not len(rows):
            return
        text = f"{self.place(int(rows[0]))}: {message(int(rows[0]))}"
        if self.on_error == "stop":
            raise InputError(f"{text}; correct the row, or leave such rows unscored with --on-error skip")
        self.first = self.first or text
        self.bad[rows] = True


def _token_ids(array: pa.Array, errors: RowErrors) -> tuple[np.ndarray, np.ndarray]:
    lengths, valid = list_lengths(array)
    errors.add(~valid, lambda row: "response_ids is null")
    values = list_values(array)
    if values.null_count:
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        errors.add(np.unique(row_of[np.asarray(values.is_null())]), lambda row: "response_ids holds a null")
        values = values.fill_null(0)
    numbers = values.to_numpy(zero_copy_only=False) if len(values) else np.zeros(0, np.int32)
    if len(numbers):
        low, high = numbers.min(), numbers.max()
        if low < 0 or high > MAX_ID:
            outside = (numbers < 0) | (numbers > MAX_ID)
            row_of = np.repeat(np.arange(len(lengths)), lengths)
            shown = dict(zip(row_of[outside][::-1].tolist(), numbers[outside][::-1].tolist(), strict=True))
            errors.add(
                np.unique(row_of[outside]),
                lambda row: f"response_ids holds {shown[row]}, token ids lie between 0 and {MAX_ID}",
            )
            numbers = np.where(outside, 0, numbers)
    return numbers.astype(np.int32, copy=False), lengths


def _check_lengths(name: str, array: pa.Array, lengths: np.ndarray, errors: RowErrors) -> None:
    own, valid = list_lengths(array)
    errors.add(
        valid & (own != lengths),
        lambda row: f"{name} has {own[row]} values for {lengths[row]} response_ids",
    )


def _aligned(
    array: pa.Array, lengths: np.ndarray, missing: float | bool, dtype: type, null: float | bool = False
) -> np.ndarray:
    """Return list values aligned to the ids: rows that are null or of another length are filled with `missing`."""
    own, valid = list_lengths(array)
    values = list_values(array)
    if pa.types.is_null(values.type):
        return np.full(int(lengths.sum()), missing, dtype)
    if values.null_count:
        filled = values.cast(pa.float64(), safe=False) if pa.types.is_decimal(values.type) or null != 0 else values
        values = filled.fill_null(null)
    flat = values.to_numpy(zero_copy_only=False)
    fits = valid & (own == lengths)
    if fits.all():
        return flat.astype(dtype, copy=False)
    out = np.full(int(lengths.sum()), missing, dtype)
    out[np.repeat(fits, lengths)] = flat[np.repeat(fits, own)]
    return out


def _mask(array: pa.Array, lengths: np.ndarray, errors: RowErrors) -> np.ndarray | None:
    values = list_values(array)
    if values.null_count or not (pa.types.is_boolean(values.type) or pa.types.is_null(values.type)):
        numbers = np.asarray(values.cast(pa.float64(), safe=False).fill_null(np.nan))
        row_of = np.repeat(np.arange(len(lengths)), list_lengths(array)[0])
        odd = ~np.isin(numbers, (0.0, 1.0))
        errors.add(np.unique(row_of[odd]), lambda row: "response_mask holds a value other than 0 and 1")
    aligned = _aligned(array, lengths, True, bool)
    return None if aligned.all() else aligned


def _token_floats(
    name: str, array: pa.Array, lengths: np.ndarray, mask: np.ndarray | None, errors: RowErrors
) -> np.ndarray:
    """Return a needed per-token column (n_tokens,) float32; off the mask a value that is no number becomes 0."""
    _, valid = list_lengths(array)
    errors.add(~valid & (lengths > 0), lambda row: f"{name} is null, and the estimator needs it")
    values = _aligned(array, lengths, np.nan, np.float32, null=np.nan)
    odd = ~np.isfinite(values)
    if odd.any():
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        counted = odd if mask is None else odd & mask
        shown = dict(zip(row_of[counted][::-1].tolist(), values[counted][::-1].tolist(), strict=True))
        errors.add(
            np.unique(row_of[counted]),
            lambda row: f"{name} holds {shown[row]:g} at a token of the policy, expected a finite number",
        )
        values = np.where(odd, np.float32(0), values)
    return values


def _text_marks(
    ids: np.ndarray, lengths: np.ndarray, options: ReadOptions, column: dict[str, pa.Array], place: Callable[[int], str]
) -> np.ndarray:
    """Return the marks of each token's text (n_tokens,) uint8, from the tokenizer or from the stored texts."""
    if options.text_of:
        return marks_of_ids(ids, options.text_of)
    encoded = list_values(column["response_tokens"]).cast(pa.large_string()).dictionary_encode()
    texts = decoded(encoded.dictionary, "response_tokens", place(0))
    marks = marks_of_texts(plain_stored_texts(texts))
    flat = np.append(marks, np.uint8(0))[np.asarray(encoded.indices.fill_null(len(marks)))]
    return _aligned(pa.ListArray.from_arrays(_offsets(column["response_tokens"]), pa.array(flat)), lengths, 0, np.uint8)


def _stored_text(column: dict[str, pa.Array], lengths: np.ndarray) -> pa.Array | None:
    """Return the stored text of each token (n_tokens,), or None where it is absent or does not fit the ids."""
    if "response_tokens" not in column or not np.array_equal(list_lengths(column["response_tokens"])[0], lengths):
        return None
    return list_values(column["response_tokens"])


def _offsets(array: pa.Array) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(list_lengths(array)[0])]).astype(np.int32))


def reward_parts(array: pa.Array) -> dict[str, np.ndarray]:
    """Return the named parts of a map or struct column, name -> (n_rows,) float64, NaN where a row lacks a part."""
    parts = {}
    if pa.types.is_struct(array.type):
        for i, name in enumerate(field.name for field in array.type):
            values = pc.struct_field(array, [i])
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.int8())
            numbers = values.cast(pa.float64(), safe=False).fill_null(np.nan)
            parts[name] = numbers.to_numpy(zero_copy_only=False).astype(np.float64)
        return parts
    for row, pairs in enumerate(array.to_pylist()):
        for name, value in pairs or ():
            part = parts.setdefault(name, np.full(len(array), np.nan))
            part[row] = np.nan if value is None else value
    return parts


def reward_and_verdict(
    column: dict[str, pa.Array], options: ReadOptions, errors: RowErrors
) -> tuple[np.ndarray, np.ndarray]:
    """Return (reward float64 with NaN unknown, verdict int8 with -1 unknown) from the columns that there are."""
    reward = _numbers("reward", column["reward"], errors) if "reward" in column else None
    verdict = _numbers("correct", column["correct"], errors) if "correct" in column else None
    if verdict is not None:
        odd = ~np.isnan(verdict) & ~np.isin(verdict, (0.0, 1.0))
        errors.add(odd, lambda row: f"correct is {verdict[row]:g}, expected true, false or null")
    if reward is None or options.reward_from == "correct":
        reward = verdict.copy()
    errors.add(
        np.abs(reward) > MAX_REWARD,
        lambda row: f"reward is {reward[row]:g}, beyond what float32 advantages hold",
    )
    if verdict is None:
        verdict = np.where(np.isnan(reward), np.nan, reward > options.correct_threshold)
    correct = np.where(np.isin(verdict, (0.0, 1.0)), verdict, -1).astype(np.int8)
    return reward, correct


def _numbers(name: str, array: pa.Array, errors: RowErrors) -> np.ndarray:
    """Return numbers, booleans or their text as float64, null as NaN; other text is an error."""
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    if not (
        pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type)
    ):
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        return array.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False).copy()
    out, unreadable = np.full(len(array), np.nan), []
    try:
        texts = pc.utf8_lower(pc.utf8_trim_whitespace(array.cast(pa.large_string()))).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError):
        where = f"{errors.place(0)} or a row after it"
        raise InputError(f"{where}: {name} is not UTF-8 text; the file is damaged") from None
    for row, text in enumerate(texts):
        if text in _TRUE or text in _FALSE:
            out[row] = text in _TRUE
        elif text not in (None, "", "nan", "none", "null"):
            try:
                out[row] = float(text.replace("_", "?"))
            except ValueError:
                unreadable.append(row)
    errors.add(
        np.array(unreadable, np.int64), lambda row: f"{name} is {texts[row][:40]!r}, expected a number or true/false"
    )
    return out


def was_truncated(array: pa.Array | None, n_rows: int) -> np.ndarray:
    """Tell for each row whether its finish_reason is "length"; false without the column."""
    if array is None:
        return np.zeros(n_rows, bool)
    return np.asarray(pc.equal(array.cast(pa.large_string()), "length").fill_null(False))
