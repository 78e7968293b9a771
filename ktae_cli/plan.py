"""An input resolved against the options: columns, groups, estimators; what can be refused is refused here."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import needs, pools_over_prompts, pools_over_steps
from ktae_cli.errors import InputError, MissingColumnError, PrerequisiteError
from ktae_cli.estimators.base import check_needs, check_parameters
from ktae_cli.groups import GroupIndex, scan_groups
from ktae_cli.inputs import ReadInputs, remaining_map, threshold_of
from ktae_cli.mapping import Mapping, fits, resolve_mapping
from ktae_cli.names import Spec
from ktae_cli.pipeline import column_plan, parse_specs
from ktae_cli.readers._canonical import CanonicalRollouts
from ktae_cli.readers._retokenized import RETOKENIZED, RetokenizedRollouts
from ktae_cli.readers.base import READ_IN_PLACE, Source
from ktae_cli.rollouts import MAX_ID, ReadOptions
from ktae_cli.schema import BY_NAME, STAND_INS, is_score_column
from ktae_cli.token_text import choose_decoder, plain_text
from ktae_cli.tokenizer_file import end_of_text_ids


@dataclass(frozen=True)
class ScoreOptions:
    """The options of `ktae score`, under their names on the command line."""

    estimators: tuple[str, ...] = ("ktae",)
    device: str = "auto"
    jobs: int = 0
    limit: int = 0
    group_by: tuple[str, ...] = ()
    map: dict[str, str] = field(default_factory=dict)
    correct_threshold: float | None = None
    """None: what the input's reader declares, else 0."""
    reward_from: str = "reward"
    truncated: str = "keep"
    columns: str = "all"
    on_error: str = "stop"
    tokenizer: Path | None = None
    eos_ids: tuple[int, ...] = ()
    verify: bool = False
    gold: str | None = None
    write_tokens: bool = True
    null: int = 0
    seed: int = 0
    strict: bool = False
    input: ReadInputs = field(default_factory=ReadInputs)
    notice: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None


@dataclass(frozen=True)
class Plan:
    """An input resolved against the options: everything known before the first token is scored."""

    source: Source
    mapping: Mapping
    index: GroupIndex
    specs: list[Spec]
    read: ReadOptions
    decoder: Any
    eos_ids: tuple[int, ...]
    columns: dict[str, Any]
    """Input column -> name in the output; ours of an earlier run are left out."""
    warnings: list[str]
    has_verdict: bool = True
    """The input has a verdict; else it is reward > threshold."""

    @property
    def kept_rows(self) -> int:
        """Rows that will be written."""
        return int(np.count_nonzero(self.index.codes >= 0))


def make_plan(source: Source, options: ScoreOptions) -> Plan:
    """Resolve columns, groups and estimators; everything that can be refused is refused here."""
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        options.warn(text)

    if source.n_rows == 0:
        raise InputError(f"{_name_of(source)}: no rollouts (0 rows)")
    threshold = threshold_of(source, options.correct_threshold)
    if not np.isfinite(threshold):
        raise InputError(f"--correct-threshold takes a finite number, found {threshold}")
    if any(not 0 <= token_id <= MAX_ID for token_id in options.eos_ids):
        raise InputError(f"--eos-id takes a token id between 0 and {MAX_ID}, found {max(options.eos_ids)}")
    specs = parse_specs(list(options.estimators))
    mapping = resolve_mapping(source.schema, remaining_map(source, options.map), list(options.group_by))
    has_verdict = "correct" in mapping.columns
    if source.reader not in READ_IN_PLACE:
        if options.columns == "added":
            raise InputError(
                f"--columns added: rows read as {source.reader} cannot be joined to the results later; "
                "write Parquet with `ktae convert` first, and score that"
            )
        source = CanonicalRollouts(source, mapping, threshold)
        mapping = source.mapping
    source, mapping = _with_token_ids(source, mapping, options, warn)
    beside = getattr(source, "paths", [])
    decoder, origin = choose_decoder(options.tokenizer, beside, "response_tokens" in mapping.columns)
    has_text = hasattr(decoder, "tokenizer")
    _check_columns(mapping, specs, options, has_text)
    for text in mapping.notices:
        options.notice(f"column {text}")
    if "reward" not in mapping.columns:
        options.notice(f"no reward column: reward is 1 or 0 from {mapping.columns['correct']}")
    if not has_verdict:
        options.notice(f"no verdict column: correct is {mapping.columns['reward']} > {threshold:g}")
    index = scan_groups(source.batches, source.schema, mapping, source.place)
    if options.limit:
        index = index.limited(options.limit)
    for text in index.warnings:
        warn(text)
    if mapping.hashed:
        sizes = np.unique(index.sizes)
        shown = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        options.notice(
            f"no group column: {len(index.keys)} groups of {shown} rollouts by {' + '.join(mapping.group_key)}"
        )
    options.notice(origin)
    wanted = _wanted_columns(mapping, specs, options)
    read = ReadOptions(
        threshold,
        options.reward_from,
        options.truncated,
        options.on_error,
        tuple(sorted(name for name in wanted if BY_NAME[name].dtype == "list<float32>")),
        "rewards" in wanted,
        "response_tokens" in wanted,
        partial(plain_text, decoder) if has_text else None,
        any(map(pools_over_prompts, specs)),
        partial(_before_outcome, decoder) if "response" in wanted else None,
    )
    if any(map(pools_over_steps, specs)) and "step" not in mapping.columns:
        _speak_of_steps(source, options, warn)
    eos_ids = options.eos_ids or end_of_text_ids(decoder)
    for spec in specs:
        check_parameters(spec, eos_ids)
    columns = _output_names(source, mapping, list(column_plan(specs)), options)
    if options.strict and warnings:
        raise InputError(f"--strict, nothing is written: {warnings[0]}")
    return Plan(source, mapping, index, specs, read, decoder, eos_ids, columns, warnings, has_verdict)


def _name_of(source) -> str:
    paths = getattr(source, "paths", None)
    return "the frame" if not paths else str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"


def _with_token_ids(source, mapping: Mapping, options: ScoreOptions, warn: Callable[[str], None]):
    if "response_ids" in mapping.columns:
        return source, mapping
    text = mapping.columns.get("response")
    if options.tokenizer is None or text is None:
        used = set(mapping.columns.values())
        looked = ", ".join(("response_ids", *BY_NAME["response_ids"].aliases))
        lists = [f for f in source.schema if fits(f.type, "list<int32>") and not pa.types.is_null(f.type)]
        candidates = [f.name for f in lists if f.name not in used]
        remedy = f"name it with --map response_ids={candidates[0] if candidates else 'COLUMN'}"
        if text and not candidates:
            remedy = f"give --tokenizer PATH to encode the text of {text!r}, or {remedy}"
        elif options.tokenizer is not None:
            remedy += ", or name the text to encode with --map response=COLUMN"
        raise MissingColumnError(
            f"{_name_of(source)}: no column of response token ids (looked for {looked}; found "
            f"{', '.join(source.schema.names)}); {remedy}"
        )
    source = RetokenizedRollouts(source, text, options.tokenizer)
    warn(RETOKENIZED.format(text))
    columns = mapping.columns | {"response_ids": "response_ids"}
    return source, replace(mapping, columns=columns)


def _wanted_columns(mapping: Mapping, specs: list[Spec], options: ScoreOptions) -> set[str]:
    """Return the columns that the specs need, stand-ins for those that are absent, and say which stand in."""
    wanted = set()
    for name in dict.fromkeys(name for spec in specs for name in needs(spec)):
        stand_in = STAND_INS.get(name)
        if stand_in and name not in mapping.columns:
            users = ", ".join(str(spec) for spec in specs if name in needs(spec))
            options.notice(f"no {name}: {users} take{'' if ', ' in users else 's'} {stand_in}")
            name = stand_in
        wanted.add(name)
    return wanted


def _before_outcome(decoder, ids: np.ndarray, lengths: np.ndarray, mask, stored, texts) -> np.ndarray:
    """Tell which tokens (n_tokens,) bool are written before their response settles its outcome."""
    from ktae_cli.units.base import TokenBatch
    from ktae_cli.units.outcome import settled_positions

    batch = TokenBatch(ids, lengths, mask, stored, texts)
    position = np.arange(len(ids)) - np.repeat(batch.starts[:-1], lengths)
    return position < np.repeat(settled_positions(batch, decoder), lengths)


def _speak_of_steps(source, options: ScoreOptions, warn: Callable[[str], None]) -> None:
    """Say that all rollouts are one batch, or warn where a step column cannot tell batches apart."""
    if "step" in source.schema.names:
        dtype = source.schema.field("step").type
        warn(
            f"column 'step' is {dtype}, expected whole numbers: all rollouts are taken as one batch; --map step=COLUMN"
        )
    else:
        options.notice("no step column: all rollouts are one batch of the trainer")


def _check_columns(mapping: Mapping, specs: list[Spec], options: ScoreOptions, has_text: bool) -> None:
    have = set(mapping.columns)
    if not {"reward", "correct"} & have:
        looked = ", ".join(n for c in ("reward", "correct") for n in (c, *BY_NAME[c].aliases))
        raise MissingColumnError(f"no reward and no verdict (looked for {looked}); name one with --map reward=COLUMN")
    if options.reward_from == "correct" and "correct" not in have:
        raise MissingColumnError("--reward-from correct needs a verdict column; name it with --map correct=COLUMN")
    if options.truncated != "keep" and "finish_reason" not in have:
        raise MissingColumnError(
            f"--truncated {options.truncated} needs finish_reason; name it with --map finish_reason=COLUMN"
        )
    have |= {"reward"} | ({"response_tokens"} if has_text else set())
    have |= {"response"} if "response_tokens" in have else set()
    for spec in specs:
        check_needs(spec, have)


def _output_names(source, mapping: Mapping, ours: list[str], options: ScoreOptions) -> dict[str, str]:
    """Return input column -> output column: ours of an earlier run go, others of a reserved name move aside."""
    previous = source.own_metadata() or {}
    replaced = {name for estimator in previous.get("estimators", []) for name in estimator["columns"]}
    names = {}
    added = set(ours) | ({"group_id"} if mapping.derives_group_id else set())
    added |= set() if "rollout_id" in mapping.columns else {"rollout_id"}
    for name in source.schema.names:
        if name in replaced:
            continue
        reserved = name in added or is_score_column(name)
        names[name] = f"input_{name}" if reserved else name
        while reserved and names[name] in source.schema.names:
            names[name] = f"input_{names[name]}"
        if reserved:
            options.notice(f"input column {name!r} is kept as {names[name]!r}: score writes columns of that name")
    return names


def pick_device(device: str) -> str:
    """Return the torch device of --device; auto takes CUDA where there is one."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    try:
        kind, index = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError:
        raise PrerequisiteError(f"--device takes auto, cpu, cuda or cuda:N, found {device!r}") from None
    if kind != "cuda":
        raise PrerequisiteError(f"--device takes auto, cpu, cuda or cuda:N, found {device!r}")
    if index >= torch.cuda.device_count():
        raise PrerequisiteError(
            f"--device {device}: {torch.cuda.device_count()} CUDA devices are there; use --device cpu"
        )
    return device
