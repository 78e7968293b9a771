"""The mixed groups of an input scored again: under labels drawn from a null, and in random halves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.evidence.incidence import Informative, informative_rollouts
from ktae_cli.evidence.labels import Labels, read_labels
from ktae_cli.key_weight.halves import Entries, paired_moments, split_halves
from ktae_cli.key_weight.sums import ShiftSums
from ktae_cli.names import Spec
from ktae_cli.plan import Plan
from ktae_cli.readers._relabelled import RelabelledRollouts, exchange_labels
from ktae_cli.runners.local import Job, ResultRows, run
from ktae_cli.stats.conditional import draw_verdicts
from ktae_cli.stats.length_fit import LengthFit, fit_length, length_basis


@dataclass(frozen=True)
class MixedGroups:
    """The rollouts of the groups that hold right and wrong ones, and the job over these groups alone.

    length (n_rollouts,): counted tokens; place (n_groups,): where the job numbers each group of rollouts.strata.
    kept_rows: rows of the whole input, as which every pass counts.
    """

    job: Job
    labels: Labels
    rollouts: Informative
    length: np.ndarray
    place: np.ndarray
    kept_rows: int

    def model_length(self) -> LengthFit:
        """Model the verdicts by length."""
        basis = length_basis(self.length, self.rollouts.truncated, self.rollouts.strata)
        return fit_length(self.rollouts.right, basis, self.rollouts.strata)

    def giver(self, law: LengthFit | None, random: np.random.Generator) -> np.ndarray:
        """Draw for each row of the input the row whose labels it gets; without a law all labels are exchangeable."""
        labels, rollouts = self.labels, self.rollouts
        known = (rollouts.of_row >= 0) & (labels.correct >= 0)
        if law is None:
            return exchange_labels(self.job.index.codes, labels.trajectory, known, random)
        drawn = draw_verdicts(law.p, rollouts.strata, 1, random)[rollouts.of_row, 0]
        return exchange_labels(self.job.index.codes, labels.trajectory, known, random, labels.correct, drawn)


def mixed_groups_of(plan: Plan, job: Job, scored: np.ndarray, counted: np.ndarray) -> MixedGroups:
    """Find the mixed groups among the scored rows (n_rows,), of which counted (n_rows,) tokens lie on the mask."""
    labels = read_labels(plan)
    labels = replace(labels, correct=np.where(scored, labels.correct, -1).astype(np.int8))
    rollouts = informative_rollouts(labels, plan.index.keys)
    inside = rollouts.of_row >= 0
    length = np.bincount(rollouts.of_row[inside], counted[inside], len(rollouts)).astype(np.int64)
    place = np.argsort(np.argsort(rollouts.group_code))
    only_mixed = replace(job, index=plan.index.only(rollouts.group_code))
    return MixedGroups(only_mixed, labels, rollouts, length, place, plan.kept_rows)


def shuffled_sums(
    mixed: MixedGroups, specs: list[Spec], law: LengthFit | None, random: np.random.Generator
) -> ShiftSums:
    """Return the sums by group of the job under labels that have changed hands inside each group."""
    codes = mixed.job.index.codes
    codes = codes[codes >= 0]
    sums, first = ShiftSums(specs, specs, len(mixed.place)), 0

    def on_rows(batch: pa.RecordBatch, results: ResultRows) -> None:
        nonlocal first
        group = codes[first : first + len(batch)]
        first += len(batch)
        sums.add(group, np.full(len(group), -1), results.lengths, results.columns)

    _run(mixed, replace(mixed.job, specs=specs), mixed.giver(law, random), on_rows, _ignore)
    return sums


def halves_moments(
    mixed: MixedGroups, specs: list[Spec], random: np.random.Generator
) -> tuple[dict[Spec, np.ndarray], np.ndarray]:
    """Return the `paired_moments` (6, n_groups) of a random split, and which groups (n_groups,) it splits.

    A half is scored with the rewards of the other hidden, so that its rollouts are in no statistic.
    """
    rollouts = mixed.rollouts
    half = split_halves(rollouts.right, rollouts.strata, random)
    split = np.unique(rollouts.strata.group[half >= 0])
    split = split[np.argsort(mixed.place[split])]
    entries = [{spec: Entries([]) for spec in specs} for _ in (0, 1)]
    job = replace(mixed.job, specs=specs, index=mixed.job.index.only(mixed.place[split]), want_tokens=True)
    for side, found in enumerate(entries):
        shown = (rollouts.of_row >= 0) & (half[rollouts.of_row] == side)
        _run(mixed, job, np.where(shown, np.arange(len(shown)), -1), _ignore, _keeper(found))
    moments = {spec: np.zeros((6, len(mixed.place))) for spec in specs}
    for spec in specs:
        moments[spec][:, split] = paired_moments(entries[0][spec], entries[1][spec], len(split))
    return moments, np.isin(np.arange(len(mixed.place)), split)


def _keeper(found: dict[Spec, Entries]) -> Callable:
    def on_tokens(results: list[tuple[Spec, dict[str, np.ndarray]]]) -> None:
        for spec, table in results:
            found[spec].add(table)

    return on_tokens


def _run(mixed: MixedGroups, job: Job, giver: np.ndarray, on_rows: Callable, on_tokens: Callable) -> None:
    """Score the rows of a job with the labels of the rows in giver (n_rows,), with none where that is -1."""
    rows = int(np.count_nonzero(job.index.codes >= 0))
    if rows:
        source = RelabelledRollouts(job.source, job.mapping, giver, job.read.truncated)
        run(replace(job, source=source, mapping=source.mapping), on_rows, on_tokens)
    job.progress(mixed.kept_rows - rows)


def _ignore(*results: Any) -> None:
    return None
