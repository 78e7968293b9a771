"""Estimators side by side: score the same rollouts with each in one run, measure as the rows come out."""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.comparison.aligned import AlignedRows
from ktae_cli.comparison.report import SideBySide, mixed_groups
from ktae_cli.comparison.rows import ComparedRows, check_output
from ktae_cli.comparison.token_sample import SAMPLE_TOKENS
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.inputs import open_rollouts
from ktae_cli.key_weight.figures import passes_of_null
from ktae_cli.key_weight.specs import left_out_twins, with_key_weight
from ktae_cli.key_weight_facts import Observed, key_weight_facts, lean, measure_chance
from ktae_cli.names import Spec
from ktae_cli.pipeline import column_plan
from ktae_cli.plan import Plan, ScoreOptions, make_plan, pick_device
from ktae_cli.readers._relabelled import ChosenColumns
from ktae_cli.readers.base import Source, column_at
from ktae_cli.rollouts import Rollouts, read_rollouts, roots_to_read
from ktae_cli.runners.local import Job, ResultRows, Totals, run


@dataclass(frozen=True)
class CompareOptions:
    """What `compare` adds to the options of `score`."""

    shuffles: int = 3
    seed: int = 0
    ranked_tokens: int = SAMPLE_TOKENS


def compare_inputs(
    inputs: list[str], output: Path | None, force: bool, options: ScoreOptions, more: CompareOptions
) -> dict[str, Any]:
    """Compare the estimators of `options` on files; return the report and write the rows to `output` if given."""
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        source = open_rollouts(inputs, scratch, options.input)
        if output:
            check_output(output, force, source.paths)
        return compare_rollouts(source, output, force, options, more)


def compare_rollouts(
    source: Source, output: Path | None, force: bool, options: ScoreOptions, more: CompareOptions
) -> dict[str, Any]:
    """Compare the estimators of `options` on the rollouts of a source."""
    if len(options.estimators) < 2:
        raise KtaeError("compare needs two estimators or more: give -e for each")
    if more.shuffles < 0 or more.seed < 0:
        raise KtaeError(f"--null and --seed take numbers of at least 0, found {more.shuffles} and {more.seed}")
    plan = make_plan(source, options)
    weighted = with_key_weight(plan.specs)
    twins, hidden = left_out_twins(weighted, plan.eos_ids)
    passes = 1 + (passes_of_null(more.shuffles) if weighted else 0)
    job = _job(plan, plan.specs + hidden, options, passes)
    measured = _Measured(plan, job, [*weighted, *hidden], more.ranked_tokens)
    with contextlib.ExitStack() as stack:
        names = [str(spec) for spec in plan.specs]
        if output:
            measured.sink = stack.enter_context(ComparedRows(output, force, [s.slug for s in plan.specs]))
        totals = run(job, measured.on_rows, lambda tokens: None)
        _speak_of(totals, measured, options)
        if not measured.table.rows:
            raise InputError("no rollout has a known reward: there is nothing to compare")
        report = {"compared": "estimators", "names": names, **measured.table.report(), **measured.counts}
        mixed, observed = measured.mixed(), measured.observed
        observed.pooled = totals.pooled
        shares: dict[Spec, list[float]] = {spec: [] for spec in weighted}
        if weighted and more.shuffles:
            report["null"], shares = measure_chance(plan, job, observed, weighted, more.shuffles, more.seed)
        for entry, spec in zip(report["estimators"], plan.specs, strict=True):
            entry["key_weight"] = (
                key_weight_facts(spec, twins[spec], observed.sums, mixed, shares[spec]) if spec in weighted else None
            )
        report |= {"seed": more.seed, "output": str(output) if output else None}
        if measured.sink:
            measured.sink.close({**report, "input_columns": dict(plan.mapping.columns)}, source.fingerprints())
    return report


def _job(plan: Plan, specs: list[Spec], options: ScoreOptions, passes: int) -> Job:
    """Return the job, over the columns that scoring and naming need."""
    done, total = 0, plan.kept_rows * passes

    def progress(rows: int) -> None:
        nonlocal done
        done += rows
        options.progress(done, total)

    columns = roots_to_read(plan.mapping, plan.read, plan.source.schema)
    source = ChosenColumns(plan.source, columns)
    return Job(
        source, plan.mapping, plan.index, specs, plan.read, pick_device(options.device), options.jobs,
        plan.eos_ids, False, progress,
    )  # fmt: skip


class _Measured:
    """What is gathered while the rows come out of the runner."""

    def __init__(self, plan: Plan, job: Job, weighted: list[Spec], ranked_tokens: int):
        self.plan, self.job, self.row, self.sink = plan, job, 0, None
        self.table = SideBySide([str(spec) for spec in plan.specs], plan.index.keys, ranked_tokens)
        at = {owner: name for name, owner in column_plan(job.specs).items()}
        self.columns = [at[spec, "advantages"] for spec in plan.specs]
        self.observed = Observed(plan, weighted, job.specs)
        self.numbers = np.flatnonzero(plan.index.codes >= 0)
        self.verdict = np.full(plan.source.n_rows, -1, np.int8)
        self.read = lean(plan.read)
        self.counts = {"unscored": 0}

    def on_rows(self, batch: pa.RecordBatch, results: ResultRows) -> None:
        """Measure the next rows of the input."""
        numbers = self.numbers[self.row : self.row + len(batch)]
        self.row += len(batch)
        codes = self.plan.index.codes[numbers]
        rows = read_rollouts(batch, self.plan.mapping, codes, self.read, lambda i: self.plan.source.place(numbers[i]))
        self.observed.add(numbers, rows, results)
        self.verdict[numbers] = np.where(results.scored, rows.correct, -1)
        self.counts["unscored"] += int(np.count_nonzero(~results.scored))
        if results.scored.any():
            aligned = self._aligned(batch, rows, self._rollout_ids(batch, numbers), results)
            facts = self.table.add(aligned)
            if self.sink:
                self.sink.write(aligned, facts, self.plan.index.keys)

    def _aligned(self, batch: pa.RecordBatch, rows: Rollouts, ids: pa.Array, results: ResultRows) -> AlignedRows:
        kept = results.scored
        tokens = np.repeat(kept, rows.lengths)
        at = np.flatnonzero(kept)
        stored = self.plan.mapping.columns.get("response_tokens")
        decoder = self.plan.decoder
        token_ids = rows.token_ids[tokens]
        starts = np.cumsum(results.lengths[kept]) - results.lengths[kept]

        def text_of(row: int, position: int) -> str | None:
            if hasattr(decoder, "tokenizer"):
                return decoder.token_text(int(token_ids[starts[row] + position]))
            return stored_text(column_at(batch, stored)[int(at[row])].as_py(), position) if stored else None

        return AlignedRows(
            rows.group[kept], ids.filter(pa.array(kept)), rows.correct[kept], results.lengths[kept],
            np.stack([results.columns[name] for name in self.columns]),
            None if rows.mask is None else rows.mask[tokens], token_ids, text_of,
        )  # fmt: skip

    def _rollout_ids(self, batch: pa.RecordBatch, numbers: np.ndarray) -> pa.Array:
        path = self.plan.mapping.columns.get("rollout_id")
        if path:
            return column_at(batch, path).cast(pa.string())
        return pa.array(self.plan.source.row_names(numbers), pa.string())

    def mixed(self) -> np.ndarray:
        """Tell which groups hold right and wrong rollouts."""
        return mixed_groups(self.plan.index.codes[self.numbers], self.verdict[self.numbers], len(self.plan.index.keys))


def stored_text(texts: list[str | None] | None, position: int) -> str | None:
    """Return the text that a file stores for one token, visible and on one line."""
    from ktae_cli.token_text import plain_stored_texts, visible_token

    return None if texts is None else visible_token(plain_stored_texts(texts)[position])


def _speak_of(totals: Totals, measured: _Measured, options: ScoreOptions) -> None:
    """Warn of rows left out; under --strict raise `InputError`."""
    skipped, unscored = totals.counts.get("skipped", 0), measured.counts["unscored"]
    warnings = []
    if totals.first_error:
        warnings.append(f"{skipped} row(s) left out, the first: {totals.first_error}")
    if unscored > skipped:
        warnings.append(f"{unscored - skipped} row(s) have no reward and are left out")
    for text in warnings:
        options.warn(text)
    if options.strict and warnings:
        raise InputError(f"--strict, nothing is written: {warnings[0]}")
