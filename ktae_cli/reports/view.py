"""What a report shows: all selection, as plain data; the renderers only draw it."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers.base import is_list, list_lengths, list_values
from ktae_cli.readers.scored import (
    RIGHT,
    UNKNOWN,
    WRONG,
    GroupIndex,
    ScoredFile,
    floats_of,
    ids_of,
    texts_of,
    token_rows,
    unknown_id,
)
from ktae_cli.reports.chance import chance_of
from ktae_cli.scale import limit_of
from ktae_cli.token_text import Decoder, Piece, visible_token

KEY_TOKENS = 12
TOKENS_SHOWN = 160
TOKENS_AROUND = 8
SMALLEST_GAP = 6
SHARE_OF_LIMIT = 0.25
PROMPT_LENGTH = 240
ROWS_FOR_LIMIT = 256

_ROLLOUT_COLUMNS = ("rollout_id", "reward", "response_ids", "response_tokens", "response_mask")

Trajectories = dict[str | int, list[int]]


@dataclass(frozen=True)
class DrawnPiece:
    """A piece of text with the value of its strongest token; masked where the policy sampled none of its tokens."""

    text: str
    kind: str
    start: int
    stop: int
    value: float
    masked: bool = False


@dataclass(frozen=True)
class Segment:
    """A run of tokens start..stop-1 that is shown; what lies between two segments is not."""

    start: int
    stop: int
    pieces: list[DrawnPiece]


@dataclass(frozen=True)
class RolloutView:
    """One response; verdict is right, wrong, unknown or unscored."""

    row: int
    rollout_id: str
    part: str
    verdict: str
    reward: float | None
    n_tokens: int
    mean_size: float
    segments: list[Segment]


@dataclass(frozen=True)
class KeyToken:
    """A line of the token table: in how many right and wrong rollouts the token stands, and its statistics."""

    token_id: int
    text: str | None
    key_weight: float
    effect: float
    p_value: float
    information_gain: float
    correct_with: int
    n_correct: int
    incorrect_with: int
    n_incorrect: int


@dataclass(frozen=True)
class GroupView:
    """One prompt with some of its right and wrong rollouts, every value on one scale."""

    file: str
    group_id: str
    prompt: str
    column: str
    spec: str
    counts: dict[str, int]
    decoder: str
    limit: float
    threshold: float
    rollouts: list[RolloutView]
    rollouts_left_out: int
    key_tokens: list[KeyToken] = field(default_factory=list)
    key_spec: str = ""
    tokens_tested: int = 0
    smallest_p: float | None = None
    p_is_point: bool = False
    leaves_out_itself: bool = False
    chance: str = ""
    other_groups: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the view as JSON values; what is not finite is null."""
        return _finite(asdict(self))


@dataclass(frozen=True)
class Choice:
    """What to show: None means the strongest group, all its verdicts, or `per_verdict` rollouts of each."""

    column: str
    group: str | None = None
    rollout: str | None = None
    per_verdict: int | None = 2
    full: bool = False


def value_column(scored: ScoredFile, by: str | None) -> str:
    """Return the column to draw: `by`, else key_weight, else advantages; raise UnknownNameError on a wrong name."""
    known = scored.value_columns()
    if by is None:
        return "key_weight" if "key_weight" in known else "advantages"
    if by not in known:
        raise unknown_id("per-token column", by, known)
    return by


def view_group(scored: ScoredFile, choice: Choice, decoder: Decoder, decoder_note: str) -> GroupView:
    """Select one group, its rollouts, their tokens and the group's strongest tokens."""
    scored.require(["group_id", "rollout_id", "response_ids", choice.column])
    index = scored.index(choice.column)
    notices: list[str] = []
    group, rollout_rows = _chosen_group(scored, index, choice, notices)
    rows = index.rows_of(group)
    trajectories = _trajectories(scored, rows)
    if index.is_mixed().any() and not index.is_mixed()[group]:
        notices.append("this group does not hold right and wrong rollouts, so no token can tell them apart")
    shown = _chosen_rows(index, trajectories, choice) if rollout_rows is None else rollout_rows
    limit = limit_of(_values(scored, choice.column, rows[:ROWS_FOR_LIMIT]))
    rollouts = _rollout_views(scored, index, trajectories, shown, choice, decoder, SHARE_OF_LIMIT * limit)
    tokens, key_spec, tested = _key_tokens(scored, index.groups[group], choice.column, decoder, notices)
    parameters = _parameters(scored, key_spec)
    point = parameters.get("fisher") == "point"
    foreign = _ids_without_text(rollouts, decoder)
    if foreign:
        notices.append(f"{foreign} of the tokens shown are not in the tokenizer: is it the one of this model?")
    return GroupView(
        file=scored.path.name,
        group_id=index.groups[group],
        prompt=_prompt(scored, rows[:1], decoder),
        column=choice.column,
        spec=scored.spec_of(choice.column),
        counts=_counts(index, trajectories),
        decoder=decoder_note,
        limit=limit,
        threshold=_short(SHARE_OF_LIMIT * limit),
        rollouts=rollouts,
        rollouts_left_out=sum(set(parts).isdisjoint(shown.tolist()) for parts in trajectories.values()),
        key_tokens=tokens,
        key_spec=key_spec,
        tokens_tested=tested,
        smallest_p=smallest_p(tokens[0].n_correct, tokens[0].n_incorrect, point) if tokens else None,
        p_is_point=point,
        leaves_out_itself=bool(parameters.get("loo")),
        chance=chance_of(scored.metadata, scored.spec_of(choice.column) or key_spec),
        other_groups=_other_groups(index, group) if choice.group is None and choice.rollout is None else [],
        notices=notices,
    )


def _chosen_group(
    scored: ScoredFile, index: GroupIndex, choice: Choice, notices: list[str]
) -> tuple[int, np.ndarray | None]:
    """Return the group, and the rows of the rollout where one is asked for."""
    group = None
    if choice.group is not None:
        if choice.group not in index.groups:
            raise unknown_id("group", choice.group, index.groups)
        group = index.groups.index(choice.group)
    if choice.rollout is not None:
        rows = _rows_of_rollout(scored, choice.rollout, None if group is None else index.rows_of(group))
        group = int(index.group_of_row[rows[0]])
        return group, rows[index.group_of_row[rows] == group]
    if group is None:
        ranked = _ranked_groups(index)
        if not index.is_mixed().any():
            notices.append("no group holds right and wrong rollouts, so no token can tell them apart")
        group = int(ranked[0])
    return group, None


def _ranked_groups(index: GroupIndex) -> np.ndarray:
    """Return the mixed groups (all groups if none is mixed), largest mean |value| first."""
    mixed = np.flatnonzero(index.is_mixed())
    groups = mixed if len(mixed) else np.arange(len(index.groups))
    return groups[np.argsort(-index.group_strength()[groups], kind="stable")]


def _other_groups(index: GroupIndex, group: int) -> list[str]:
    return [index.groups[other] for other in _ranked_groups(index) if other != group][:2]


def _rows_of_rollout(scored: ScoredFile, rollout: str, within: np.ndarray | None) -> np.ndarray:
    found, known = [], []
    for numbers, columns in scored.batches(["rollout_id"], within):
        ids = ids_of(columns["rollout_id"], scored.path)
        found += [row for row, name in zip(numbers.tolist(), ids, strict=True) if name == rollout]
        known += ids[: max(0, 20000 - len(known))]
    if not found:
        raise unknown_id("rollout", rollout, known)
    return np.asarray(found)


def _trajectories(scored: ScoredFile, rows: np.ndarray) -> Trajectories:
    """Return the rows of each rollout of the group: more than one where a trajectory is stored in parts.

    The key is the rollout_id; a row without one stands for itself, under its number.
    """
    parts: Trajectories = {}
    for numbers, columns in scored.batches(["rollout_id"], rows):
        for row, name in zip(numbers.tolist(), ids_of(columns["rollout_id"], scored.path), strict=True):
            parts.setdefault(row if name is None else name, []).append(row)
    return parts


def _verdict(index: GroupIndex, row: int) -> str:
    if not index.is_scored[row]:
        return "unscored"
    return {RIGHT: "right", WRONG: "wrong", UNKNOWN: "unknown"}[int(index.verdict[row])]


def _verdict_of_parts(index: GroupIndex, rows: list[int]) -> str:
    """Return the verdict of a trajectory: the first that is known, wherever among its parts it stands."""
    verdicts = [_verdict(index, row) for row in rows]
    return next((verdict for verdict in verdicts if verdict in ("right", "wrong")), verdicts[0])


def _counts(index: GroupIndex, trajectories: Trajectories) -> dict[str, int]:
    verdicts = [_verdict_of_parts(index, rows) for rows in trajectories.values()]
    return {name: verdicts.count(name) for name in ("right", "wrong", "unknown", "unscored")}


def _chosen_rows(index: GroupIndex, trajectories: Trajectories, choice: Choice) -> np.ndarray:
    """Return rows of the strongest rollouts of each verdict; without right or wrong ones, of the others."""
    by_verdict: dict[str, list[list[int]]] = {"right": [], "wrong": [], "unknown": [], "unscored": []}
    for rows in sorted(trajectories.values(), key=lambda rows: -float(index.strength[rows].mean())):
        by_verdict[_verdict_of_parts(index, rows)].append(rows)
    kinds = ["right", "wrong"]
    if choice.per_verdict is None or not (by_verdict["right"] or by_verdict["wrong"]):
        kinds = list(by_verdict)
    return np.asarray(
        [row for kind in kinds for rows in by_verdict[kind][: choice.per_verdict] for row in rows], np.int64
    )


def _values(scored: ScoredFile, column: str, rows: np.ndarray) -> np.ndarray:
    parts = [floats_of(list_values(columns[column])) for _, columns in scored.batches([column], rows)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _rollout_views(
    scored: ScoredFile,
    index: GroupIndex,
    trajectories: Trajectories,
    shown: np.ndarray,
    choice: Choice,
    decoder: Decoder,
    threshold: float,
) -> list[RolloutView]:
    views = {}
    for numbers, columns in scored.batches([*_ROLLOUT_COLUMNS, choice.column], np.sort(shown)):
        for at, row in enumerate(numbers.tolist()):
            one = {name: array.slice(at, 1) for name, array in columns.items()}
            rollout_id = ids_of(one["rollout_id"], scored.path)[0]
            parts = trajectories[row if rollout_id is None else rollout_id]
            reward = float(floats_of(one["reward"])[0]) if "reward" in one else math.nan
            pieces, n_tokens = _drawn_pieces(one, choice.column, decoder, f"{scored.path.name}, row {row}")
            views[row] = RolloutView(
                row=row,
                rollout_id=f"row {row}" if rollout_id is None else rollout_id,
                part=f"{parts.index(row) + 1} of {len(parts)}" if len(parts) > 1 else "",
                verdict=_verdict_of_parts(index, parts) if index.is_scored[row] else "unscored",
                reward=None if math.isnan(reward) else _short(reward),
                n_tokens=n_tokens,
                mean_size=_short(float(index.strength[row])),
                segments=cut(pieces, n_tokens, None if choice.full else TOKENS_SHOWN, threshold),
            )
    return [views[row] for row in shown.tolist()]


def _drawn_pieces(one: dict[str, pa.Array], column: str, decoder: Decoder, where: str) -> tuple[list[DrawnPiece], int]:
    """Return the pieces of one response with their values; lengths that disagree raise InputError."""
    ids = list_values(one["response_ids"]).to_numpy(zero_copy_only=False)
    values = np.nan_to_num(floats_of(list_values(one[column])))
    if one[column].null_count:
        values = np.zeros(len(ids))
    if len(values) != len(ids):
        raise InputError(f"{where}: response_ids holds {len(ids)} tokens, {column} {len(values)} values")
    mask = np.ones(len(ids), bool)
    if "response_mask" in one and list_lengths(one["response_mask"])[1][0]:
        mask = np.nan_to_num(floats_of(list_values(one["response_mask"]))) != 0
        if len(mask) != len(ids):
            raise InputError(f"{where}: response_ids holds {len(ids)} tokens, response_mask {len(mask)}")
    stored = None
    if "response_tokens" in one and one["response_tokens"].null_count == 0:
        stored = texts_of(list_values(one["response_tokens"]))
    return [_drawn(piece, values, mask) for piece in decoder.pieces(ids, stored)], len(ids)


def _drawn(piece: Piece, values: np.ndarray, mask: np.ndarray) -> DrawnPiece:
    covered = values[piece.start : piece.stop]
    value = covered[0] if len(covered) == 1 else covered[np.argmax(np.abs(covered))]
    masked = not mask[piece.start : piece.stop].any()
    return DrawnPiece(piece.text, piece.kind, piece.start, piece.stop, _short(float(value)), masked)


def cut(pieces: list[DrawnPiece], n_tokens: int, budget: int | None, threshold: float) -> list[Segment]:
    """Cut a response to about `budget` tokens: its end and what stands around its strongest pieces.

    None, or a response not longer than that, keeps all. Different texts come first, so that a token that is everywhere
    does not hide the others.
    """
    if not pieces:
        return []
    if budget is None or n_tokens <= budget:
        return [Segment(0, n_tokens, pieces)]
    seen: dict[tuple[str, float], int] = {}
    repeats = []
    for piece in pieces:
        key = (piece.text, piece.value)
        seen[key] = seen.get(key, -1) + 1
        repeats.append(seen[key])
    sizes = np.abs([piece.value for piece in pieces])
    order = np.lexsort((np.arange(len(pieces)), -sizes, np.where(sizes >= threshold, repeats, len(pieces))))
    keep = np.zeros(len(pieces), bool)
    keep[-TOKENS_AROUND:] = True
    for at in order.tolist():
        window = slice(max(0, at - TOKENS_AROUND), at + TOKENS_AROUND + 1)
        if keep.sum() + (~keep[window]).sum() > budget:
            break
        keep[window] = True
    return _segments(pieces, keep)


def _segments(pieces: list[DrawnPiece], keep: np.ndarray) -> list[Segment]:
    runs = [pieces[start:stop] for start, stop in _runs_of(_runs_filled(keep))]
    return [Segment(run[0].start, run[-1].stop, run) for run in runs]


def _runs_filled(keep: np.ndarray) -> np.ndarray:
    """Keep also what lies between two runs that are close: the note of a gap would be longer than the gap."""
    filled = keep.copy()
    for start, stop in _runs_of(~keep):
        filled[start:stop] = stop - start <= SMALLEST_GAP
    return filled


def _runs_of(keep: np.ndarray) -> list[list[int]]:
    return np.flatnonzero(np.diff(keep.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist()


def _key_tokens(
    scored: ScoredFile, group_id: str, column: str, decoder: Decoder, notices: list[str]
) -> tuple[list[KeyToken], str, int]:
    if not any(name.startswith("key_weight") for name in scored.value_columns()):
        return [], "", 0
    path, reason = scored.token_table()
    if path is None:
        notices.append(f"the strongest tokens of the group are left out: {reason}")
        return [], "", 0
    rows, tested = token_rows(path, group_id, scored.spec_of(column), KEY_TOKENS)
    tokens = [
        KeyToken(
            text=decoder.token_text(row["token_id"]) or (visible_token(row["token"]) if row["token"] else None),
            **{name: row[name] for name in KeyToken.__dataclass_fields__ if name != "text"},
        )
        for row in rows
        if row["key_weight"]
    ]
    return tokens, rows[0]["spec"] if rows else "", tested


def _parameters(scored: ScoredFile, spec: str) -> dict[str, Any]:
    return next((e.get("parameters") or {} for e in scored.estimators if e["spec"] == spec), {})


def _ids_without_text(rollouts: list[RolloutView], decoder: Decoder) -> int:
    """Count the tokens shown that a tokenizer does not know; 0 without a tokenizer."""
    if not hasattr(decoder, "tokenizer"):
        return 0
    segments = [segment for rollout in rollouts for segment in rollout.segments]
    return sum(piece.kind == "id" for segment in segments for piece in segment.pieces)


def smallest_p(n_right: int, n_wrong: int, point: bool = False) -> float | None:
    """Return the smallest p that Fisher's exact test can give: a token in all of one side and none of the other."""
    if not n_right or not n_wrong:
        return None
    return (2 if n_right == n_wrong and not point else 1) / math.comb(n_right + n_wrong, n_right)


def _prompt(scored: ScoredFile, row: np.ndarray, decoder: Decoder) -> str:
    for _, columns in scored.batches([name for name in ("prompt", "prompt_ids") if scored.has(name)], row):
        for name in ("prompt", "prompt_ids"):
            value = _value_of(columns[name]) if name in columns else None
            if name == "prompt_ids" and value and is_list(columns[name].type):
                value = "".join(piece.text for piece in decoder.pieces(value))
            if value:
                return shorten(value if isinstance(value, str) else _messages(value))
    return ""


def _value_of(array: pa.Array) -> Any:
    """Return the first value; text that is not UTF-8 is shown with replacement characters."""
    try:
        return array[0].as_py()
    except UnicodeDecodeError:
        return "(not UTF-8 text)" if pa.types.is_nested(array.type) else texts_of(array)[0]


def _messages(value: Any) -> str:
    """Return the text of a chat: the content of each message."""
    if isinstance(value, list) and all(isinstance(part, dict) and "content" in part for part in value):
        return "\n".join(f"{part.get('role') or ''}: {part['content']}" for part in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def shorten(text: str, length: int = PROMPT_LENGTH) -> str:
    """Return text on one line, its middle left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length * 2 // 3].rstrip()} … {line[-(length // 3) :].lstrip()}"


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
