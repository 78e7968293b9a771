"""`score` as one function: inputs -> plan -> runner -> the scored file and its token table."""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import needs
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.estimators.base import notices
from ktae_cli.inputs import SCORED_SUFFIX, TOKEN_TABLE_SUFFIX, default_target, open_rollouts
from ktae_cli.key_weight.figures import passes_of_null
from ktae_cli.key_weight.specs import with_key_weight
from ktae_cli.plan import Plan, ScoreOptions, make_plan, pick_device
from ktae_cli.readers._memory import TableRollouts
from ktae_cli.readers._relabelled import ChosenColumns
from ktae_cli.readers.base import Source
from ktae_cli.rollouts import roots_to_read
from ktae_cli.runners.local import Job, run
from ktae_cli.schema import SCHEMA_VERSION
from ktae_cli.scored_table import ScoredTable, metadata_of
from ktae_cli.verifying import VerifyOptions, with_verdicts
from ktae_cli.writers.atomic import atomic_path, check_no_input, check_target
from ktae_cli.writers.parquet import ParquetOutput
from ktae_cli.writers.scored import ENCODED_TOKEN_SCHEMA, PLAIN, TokenTable

SUMMARY_COUNTS = (
    "rollouts", "tokens", "groups", "groups_mixed", "groups_all_correct", "groups_all_wrong", "groups_singleton",
    "unscored", "truncated",
)  # fmt: skip
_NOTED = ("skipped", "without_tokens", "groups_mixed_equal_rewards", "groups_one_verdict_unequal_rewards")


def score_files(
    inputs: list[str], output: Path | None, tokens_out: Path | None, force: bool, options: ScoreOptions
) -> dict:
    """Score files into `output` and the token table beside it; return the summary. See `ktae score --help`."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch, contextlib.ExitStack() as stack:
        output = output or default_target(inputs, SCORED_SUFFIX)
        check_target(output, force)
        source = open_rollouts(inputs, scratch, options.input)
        check_no_input(output, source.paths, "-o")
        plan = make_plan(_verified(source, options, scratch), options)
        _check_null(plan, options)
        has_tokens = options.write_tokens and bool(with_key_weight(plan.specs))
        tokens_out = tokens_out or output.with_name(output.name.removesuffix(".parquet") + TOKEN_TABLE_SUFFIX)
        if has_tokens:
            check_no_input(tokens_out, source.paths, "--tokens-out")
            check_no_input(tokens_out, [output], "--tokens-out", "the scored file")
        table = ScoredTable(plan, options)
        output_path = stack.enter_context(atomic_path(output, force))
        plain = tuple(table.ours)
        sink = ParquetOutput(output_path, table.schema, plain)
        stack.callback(sink.abandon)
        token_sink = None
        with contextlib.ExitStack() as token_stack:
            if has_tokens:
                token_path = token_stack.enter_context(atomic_path(tokens_out, force))
                token_sink = ParquetOutput(token_path, ENCODED_TOKEN_SCHEMA, PLAIN, as_plain=True)
                token_stack.callback(token_sink.abandon)
            progress = _Progress(plan.kept_rows * (1 + _passes_of_null(options)), options.progress)
            counts = _run(plan, options, table, sink.write, token_sink.write if token_sink else None, progress)
            null = _measure_null(plan, options, progress) if options.null else None
            described = None
            if token_sink:
                specs = [str(spec) for spec in with_key_weight(plan.specs)]
                token_sink.close({"schema_version": SCHEMA_VERSION, "specs": specs})
                described = {"name": tokens_out.name, "sha256": _sha256(token_path)}
            sink.close(metadata_of(plan, options, table, counts, described, null))
    seconds = time.perf_counter() - started
    return _summary(counts, plan, options, output, tokens_out if has_tokens else None, seconds, null)


def _check_null(plan: Plan, options: ScoreOptions) -> None:
    if options.null < 0 or options.seed < 0:
        raise KtaeError(f"--null and --seed take numbers of at least 0, found {options.null} and {options.seed}")
    if options.null and not with_key_weight(plan.specs):
        names = ", ".join(str(spec) for spec in plan.specs)
        raise KtaeError(f"--null measures key weights, and {names} has none; add a KTAE estimator, or leave --null out")


def _passes_of_null(options: ScoreOptions) -> int:
    return 1 + passes_of_null(options.null) if options.null else 0


def _measure_null(plan: Plan, options: ScoreOptions, progress: Callable[[int], None]) -> dict[str, Any]:
    """Return what `--null` says of the estimators that have key weights, in passes of its own."""
    from ktae_cli.key_weight_facts import measure_chance, observe  # with the evidence, which plain scoring spares

    job = _job(plan, options, progress, want_tokens=False)
    job = replace(job, source=ChosenColumns(plan.source, roots_to_read(plan.mapping, plan.read, plan.source.schema)))
    specs = with_key_weight(plan.specs)
    return measure_chance(plan, job, observe(plan, job, specs), specs, options.null, options.seed)[0]


def _job(plan: Plan, options: ScoreOptions, progress: Callable[[int], None], want_tokens: bool) -> Job:
    return Job(
        plan.source, plan.mapping, plan.index, plan.specs, plan.read, pick_device(options.device), options.jobs,
        plan.eos_ids, want_tokens, progress,
    )  # fmt: skip


def _run(plan: Plan, options: ScoreOptions, table: ScoredTable, write, write_tokens, progress) -> dict[str, int]:
    job = _job(plan, options, progress, write_tokens is not None or bool(plan.eos_ids))
    eos = _EosWatch(plan.eos_ids)
    text_of = plan.decoder.token_text if hasattr(plan.decoder, "tokenizer") else None
    tokens = TokenTable(plan.index.keys, text_of, write_tokens) if write_tokens else None

    def on_tokens(results) -> None:
        eos.look(results)
        if tokens:
            tokens.add(results)

    totals = run(job, lambda batch, results: write(table.rows(batch, results)), on_tokens)
    if tokens:
        tokens.flush()
    counts = {name: totals.counts.get(name, 0) for name in (*SUMMARY_COUNTS, *_NOTED)}
    _speak_of(counts, totals.first_error, plan, options)
    for text in notices(plan.specs, totals.pooled, totals.spec_counts):
        options.notice(text)
    if eos.groups * 10 > max(counts["groups_mixed"], 1):
        options.notice(
            f"the end-of-text id is among the ten strongest tokens of {eos.groups} of {counts['groups_mixed']} "
            "mixed groups: it marks who finished, not what was written; ktae(zero_ids=eos) takes its weight away"
        )
    return counts


def _speak_of(counts: dict[str, int], first_error: str, plan: Plan, options: ScoreOptions) -> None:
    """Warn of what the counts show; under --strict raise `InputError` with the first warning."""
    warned: list[str] = []

    def warn(text: str) -> None:
        warned.append(text)
        options.warn(text)

    if first_error:
        warn(f"{counts['skipped']} row(s) left unscored, the first: {first_error}")
    if counts["without_tokens"]:
        options.notice(
            f"{counts['without_tokens']} row(s) have no token of the policy (empty or masked): "
            "they count in the means of their groups"
        )
    unknown = counts["unscored"] - counts["skipped"]
    if unknown:
        warn(f"{unknown} row(s) have no reward: their advantages are null, and they are in no statistic")
    equal = counts["groups_mixed_equal_rewards"]
    if equal:
        warn(
            f"{equal} group(s) hold right and wrong rollouts of equal reward: their advantages and key weights are 0; "
            "--reward-from correct takes the reward from the verdict"
        )
    unequal = counts["groups_one_verdict_unequal_rewards"]
    if unequal and not counts["groups_mixed"] and not plan.has_verdict:
        warn(
            f"no group holds right and wrong rollouts, so every key weight is 0, while rewards differ in {unequal} "
            f"group(s): correct is reward > {plan.read.correct_threshold:g}; set --correct-threshold, or name a "
            "verdict with --map correct=COLUMN"
        )
    if counts["groups_singleton"]:
        warn(f"{counts['groups_singleton']} group(s) hold one rollout: nothing to compare it with")
    if options.strict and warned:
        raise InputError(f"--strict, nothing is written: {warned[0]}")


class _Progress:
    def __init__(self, total: int, report: Callable[[int, int], None]):
        self.done, self.total, self.report = 0, total, report

    def __call__(self, rows: int) -> None:
        self.done += rows
        self.report(self.done, self.total)


class _EosWatch:
    """Counts groups in which an end-of-text id is among the ten largest |key weights|."""

    def __init__(self, eos_ids: tuple[int, ...]):
        self.eos_ids, self.groups = eos_ids, 0

    def look(self, results) -> None:
        if not self.eos_ids or not results:
            return
        columns = results[0][1]
        group, size = columns["group"], np.abs(columns["key_weight"])
        for entry in np.flatnonzero(np.isin(columns["token_id"], self.eos_ids) & (size > 0)).tolist():
            start, stop = np.searchsorted(group, [group[entry], group[entry] + 1])
            self.groups += int(np.count_nonzero(size[start:stop] > size[entry]) < 10)


def score_table(table: pa.Table, options: ScoreOptions) -> pa.Table:
    """Score an Arrow table and return it with our columns; nothing is written."""
    if options.null:
        raise KtaeError("null: its figures stand in the summary and in a scored file; give a path to score")
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        plan = make_plan(_verified(TableRollouts(table), options, scratch), options)
        scored, parts = ScoredTable(plan, options), []
        _run(plan, options, scored, parts.append, None, _Progress(plan.kept_rows, options.progress))
    return pa.Table.from_batches(parts, scored.schema)


def _verified(source: Source, options: ScoreOptions, scratch: str) -> Source:
    """Return the source, under --verify with verdicts of our own."""
    if not options.verify:
        if options.gold is not None:
            raise KtaeError("--gold names the answers that --verify compares with; give --verify too")
        return source
    if "correct" in options.map:
        raise KtaeError("--map correct is for verdicts of the input; under --verify they are ours")
    chosen = VerifyOptions(
        gold=options.gold, map=options.map, jobs=options.jobs, strict=options.strict,
        notice=options.notice, warn=options.warn, progress=options.progress,
    )  # fmt: skip
    return with_verdicts(source, chosen, scratch)


def _summary(
    counts: dict,
    plan: Plan,
    options: ScoreOptions,
    output: Path,
    tokens: Path | None,
    seconds: float,
    null: dict | None,
) -> dict:
    return {
        **{name: counts[name] for name in SUMMARY_COUNTS},
        "estimators": [str(spec) for spec in plan.specs],
        "output": str(output),
        "token_table": str(tokens) if tokens else None,
        "schema_version": SCHEMA_VERSION,
        **({"null": null} if null else {}),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(counts["tokens"] / seconds) if seconds else 0,
    }


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def preview(inputs: list[str], options: ScoreOptions) -> Iterator[str]:
    """Yield the lines of `--dry-run`: the mapping, the groups and what would be computed; nothing is scored."""
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        plan = make_plan(_verified(open_rollouts(inputs, scratch, options.input), options, scratch), options)
        _check_null(plan, options)
        for name, path in plan.mapping.columns.items():
            yield f"{name} <- {path}"
        yield f"group key: {' + '.join(plan.mapping.group_key)}"
        order = "one pass" if plan.index.contiguous else "two passes (the rows of groups are apart)"
        yield f"{plan.kept_rows} rollouts in {len(plan.index.keys)} groups, {order}"
        for spec in plan.specs:
            yield f"estimator {spec}: needs {', '.join(needs(spec))}"
        if options.null:
            yield f"--null {options.null}: the rollouts are read and scored {_passes_of_null(options)} times more"
        yield f"columns written: {', '.join(ScoredTable(plan, options).schema.names)}"
        yield "nothing is written (--dry-run)"
