"""What a file of rollouts holds: groups, verdicts, lengths, columns, estimators' needs, distance of its policies."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import missing_needs, names, resolve_spec
from ktae_cli.errors import KtaeError
from ktae_cli.groups import GroupIndex, scan_groups
from ktae_cli.mapping import Mapping, fits, resolve_mapping
from ktae_cli.off_policy_columns import check_output, off_policy_file
from ktae_cli.off_policy_facts import Bounds, measure_off_policy
from ktae_cli.off_policy_rows import Pair, find_pairs
from ktae_cli.readers.base import column_at, decoded, list_lengths, root_of
from ktae_cli.rollouts import ReadOptions, RowErrors, reward_and_verdict, was_truncated
from ktae_cli.schema import BY_NAME
from ktae_cli.token_text import choose_decoder


@dataclass
class Rows:
    """Per-row facts of the whole input: a few numbers a row, never its tokens."""

    reward: list[np.ndarray] = field(default_factory=list)
    correct: list[np.ndarray] = field(default_factory=list)
    length: list[np.ndarray] = field(default_factory=list)
    rollout: list[np.ndarray] = field(default_factory=list)
    """A hash of each rollout_id; rows without an id have hashes of their own."""
    truncated: int = 0
    unreadable: str = ""


def inspect_rollouts(
    source,
    overrides: dict[str, str],
    group_by: list[str],
    threshold: float,
    bounds: Bounds,
    output: Path | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Read an input once and return its facts; a missing or unfit column is a fact, not an error.

    Log-probs are read once besides, and their facts token by token written to `output` where it is given.
    """
    mapping, problem = _mapping(source, overrides, group_by)
    pairs = find_pairs(mapping.columns)
    if output:
        check_output(output, force, source, pairs)
    facts: dict[str, Any] = {"rollouts": source.n_rows, "columns": dict(mapping.columns), "problem": problem}
    used = {path.partition(".")[0] for path in (*mapping.columns.values(), *mapping.group_key)}
    facts["passes_through"] = [name for name in source.schema.names if name not in used]
    facts["group_key"] = list(mapping.group_key)
    rows = _read(source, mapping, ReadOptions(correct_threshold=threshold, on_error="skip"))
    correct = np.concatenate(rows.correct) if rows.correct else np.full(source.n_rows, -1, np.int8)
    facts["pass_rate"] = _mean(correct[correct >= 0])
    facts["verdict_unknown"] = int((correct < 0).sum())
    facts["truncated"] = rows.truncated if "finish_reason" in mapping.columns else None
    facts["unreadable"] = rows.unreadable
    reward = np.concatenate(rows.reward) if rows.reward else None
    if reward is not None:
        known = reward[~np.isnan(reward)]
        facts["unscored"] = int(np.isnan(reward).sum())
        values, counts = np.unique(known, return_counts=True)
        facts["reward_values"] = dict(zip(values.tolist(), counts.tolist(), strict=True)) if len(values) <= 8 else None
        facts["reward_range"] = [float(known.min()), float(known.max())] if len(known) else None
    if "response_ids" in mapping.columns:
        facts |= _lengths(np.concatenate(rows.length or [np.zeros(0, np.int64)]), correct)
    index = scan_groups(source.batches, source.schema, mapping, source.place) if mapping.group_key else None
    if index:
        rollout = np.concatenate(rows.rollout) if rows.rollout else np.arange(source.n_rows)
        scored = np.ones(source.n_rows, bool) if reward is None else ~np.isnan(reward)
        facts |= _groups(*_trajectories(index.codes, rollout, scored, correct), n_groups=len(index.keys))
        facts["contiguous"], facts["warnings"] = index.contiguous, list(index.warnings)
    have = set(mapping.columns) | ({"reward"} if "correct" in mapping.columns else set())
    facts["problem"] = problem or _what_is_missing(mapping, have)
    decoder, _ = choose_decoder(None, getattr(source, "paths", []))
    text = {"response_tokens"} if hasattr(decoder, "tokenizer") else set()
    facts["estimators"] = {
        name: list(dict.fromkeys([*({"response_ids"} - have), *missing_needs(resolve_spec(name), have | text)]))
        for name in names("estimators")
    }
    written = source.own_metadata() or {}
    facts["scored_with"] = [estimator["spec"] for estimator in written.get("estimators", [])]
    facts["null"] = written.get("null")
    facts["off_policy"] = _off_policy(source, mapping, index, pairs, bounds, output, force) if pairs else None
    return facts


def _off_policy(
    source,
    mapping: Mapping,
    index: GroupIndex | None,
    pairs: list[Pair],
    bounds: Bounds,
    output: Path | None,
    force: bool,
) -> dict[str, Any]:
    if not output:
        return measure_off_policy(source, mapping, pairs, bounds) | {"output": None}
    with off_policy_file(output, force, source, mapping, index, pairs, bounds) as write:
        found = measure_off_policy(source, mapping, pairs, bounds, write)
    return found | {"output": str(output)}


def _what_is_missing(mapping: Mapping, have: set[str]) -> str:
    """Say what keeps an input from being scored, and what supplies it."""
    if "reward" not in have:
        return "no reward and no verdict column; name one with --map reward=COLUMN"
    if "response_ids" not in have:
        text = mapping.columns.get("response")
        encode = f", or give score --tokenizer PATH to encode the text of {text!r}" if text else ""
        return f"no column of response token ids; name one with --map response_ids=COLUMN{encode}"
    return ""


def _mapping(source, overrides: dict[str, str], group_by: list[str]) -> tuple[Mapping, str]:
    try:
        return resolve_mapping(source.schema, overrides, group_by), ""
    except KtaeError as error:
        if overrides or group_by:
            raise
        return _usable_mapping(source.schema), str(error)


def _usable_mapping(schema: pa.Schema) -> Mapping:
    """Return what can be mapped without the columns of unfit type, and without a group key where there is none."""
    fit = [f for f in schema if f.name not in BY_NAME or fits(f.type, BY_NAME[f.name].dtype)]
    if not fit:
        return Mapping({}, ())
    try:
        return resolve_mapping(pa.schema(fit))
    except KtaeError:
        return Mapping(resolve_mapping(pa.schema(fit), {}, [fit[0].name]).columns, ())


def _read(source, mapping: Mapping, options: ReadOptions) -> Rows:
    looked_at = ("rollout_id", "reward", "correct", "response_ids", "finish_reason")
    wanted = [name for name in looked_at if name in mapping.columns]
    roots = list(dict.fromkeys(root_of(source.schema, mapping.columns[name]) for name in wanted))
    rows, first = Rows(), 0
    for batch in source.batches(roots) if roots else ():
        column = {name: column_at(batch, mapping.columns[name]) for name in wanted}
        errors = RowErrors(len(batch), lambda i, at=first: source.place(at + i), options.on_error)
        if "reward" in column or "correct" in column:
            reward, correct = reward_and_verdict(column, options, errors)
            rows.reward.append(np.where(errors.bad, np.nan, reward))
            rows.correct.append(np.where(errors.bad, -1, correct).astype(np.int8))
        if "response_ids" in column:
            rows.length.append(list_lengths(column["response_ids"])[0])
        if "rollout_id" in column:
            texts = decoded(column["rollout_id"].cast(pa.large_string()), "rollout_id", source.place(first))
            hashes = [hash((first, i) if text is None else text) for i, text in enumerate(texts)]
            rows.rollout.append(np.array(hashes, np.int64))
        rows.truncated += int(was_truncated(column.get("finish_reason"), len(batch)).sum())
        rows.unreadable = rows.unreadable or errors.first
        first += len(batch)
    return rows


def _lengths(length: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    def quantiles(values: np.ndarray) -> dict[str, float] | None:
        if not len(values):
            return None
        low, middle, high = np.percentile(values, [5, 50, 95]).tolist()
        return {"min": int(values.min()), "p5": low, "median": middle, "p95": high, "max": int(values.max())}

    return {
        "tokens": int(length.sum()),
        "length": quantiles(length),
        "length_right": quantiles(length[correct == 1]),
        "length_wrong": quantiles(length[correct == 0]),
        "empty_responses": int((length == 0).sum()),
    }


def _trajectories(
    codes: np.ndarray, rollout: np.ndarray, scored: np.ndarray, correct: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join the rows of a group that share a rollout_id, as `score` does.

    Return for each trajectory its group, whether a reward is known, and the verdict of its first part with a reward.
    """
    order = np.lexsort((np.arange(len(codes)), ~scored, rollout, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(rollout[order]) == 0)
    first = order[np.concatenate(([True], ~same))[: len(order)]]
    return codes[first], scored[first], correct[first]


def _groups(codes: np.ndarray, scored: np.ndarray, correct: np.ndarray, n_groups: int) -> dict[str, Any]:
    """Count groups by the verdicts of their trajectories with a reward; `group_sizes` counts all trajectories."""
    sizes = np.bincount(codes, minlength=n_groups)
    right = np.bincount(codes[scored & (correct == 1)], minlength=n_groups)
    wrong = np.bincount(codes[scored & (correct == 0)], minlength=n_groups)
    alone = np.bincount(codes[scored], minlength=n_groups) == 1
    values, counts = np.unique(sizes, return_counts=True)
    rate = right / np.maximum(right + wrong, 1)
    return {
        "groups": len(sizes),
        "group_sizes": dict(zip(values.tolist(), counts.tolist(), strict=True)),
        "groups_mixed": int(((right > 0) & (wrong > 0)).sum()),
        "groups_all_correct": int((~alone & (right > 0) & (wrong == 0)).sum()),
        "groups_all_wrong": int((~alone & (wrong > 0) & (right == 0)).sum()),
        "groups_singleton": int(alone.sum()),
        "pass_rate_histogram": np.histogram(rate[(right + wrong) > 0], bins=10, range=(0, 1))[0].tolist(),
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
