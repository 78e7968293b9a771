"""`ktae tokens` as one function: an input -> the table of its units, and what the evidence amounts to."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import columns
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.evidence.findings import findings
from ktae_cli.evidence.gathering import View, cut_at, gather, shortest_in_group, written_before
from ktae_cli.evidence.incidence import Incidence, Informative, informative_rollouts, only_informative
from ktae_cli.evidence.labels import Labels, read_labels
from ktae_cli.evidence.unit_classes import classes_of
from ktae_cli.evidence.unit_table import unit_table
from ktae_cli.evidence.unit_tests import TestedUnits, TestOptions, test_units
from ktae_cli.evidence.verdict_noise import verdict_noise
from ktae_cli.inputs import open_rollouts
from ktae_cli.plan import Plan, ScoreOptions, make_plan
from ktae_cli.readers.base import Source
from ktae_cli.schema import SCHEMA_VERSION
from ktae_cli.units.base import UnitReader
from ktae_cli.units.choice import units_of
from ktae_cli.units.nested import drop_nested
from ktae_cli.units.outcome import check_before
from ktae_cli.units.places import check_within
from ktae_cli.version import __version__
from ktae_cli.writers.atomic import atomic_path, check_no_input, check_target
from ktae_cli.writers.parquet import ParquetOutput


@dataclass(frozen=True)
class UnitOptions:
    """What is counted, where in a response, and until when, under the names of the command line."""

    unit: str = "token"
    within: str | None = None
    before: str | None = None
    outcome: str = "correct"
    verdict_noise: bool = False


@dataclass(frozen=True)
class PooledUnits:
    """What one input gives: its units with their tests, as arrays, as the table, and as a report of JSON values."""

    plan: Plan
    labels: Labels
    incidence: Incidence
    tested: TestedUnits
    table: pa.Table
    report: dict[str, Any]


def pool_files(
    inputs: list[str], output: Path | None, force: bool, units: UnitOptions, tests: TestOptions, options: ScoreOptions
) -> dict[str, Any]:
    """Pool the units of files, write the table to `output` if given, and return the report of `ktae tokens`."""
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        source = open_rollouts(inputs, scratch, options.input)
        if output:
            check_target(output, force)
            check_no_input(output, source.paths, "-o")
        found = pool_rollouts(source, units, tests, options)
        if output:
            write_table(output, force, found.table, {"tokens": found.report}, source)
    return found.report | {"output": str(output) if output else None}


def write_table(output: Path, force: bool, table: pa.Table, metadata: dict[str, Any], *sources: Source) -> None:
    """Write a table complete or not at all, with what it was made from in its metadata; no paths stand there."""
    known = {"version": __version__, "schema_version": SCHEMA_VERSION}
    inputs = [fingerprint for source in sources for fingerprint in source.fingerprints()]
    with atomic_path(output, force) as path:
        sink = ParquetOutput(path, table.schema)
        try:
            for batch in table.to_batches():
                sink.write(batch)
            sink.close(known | metadata | {"inputs": inputs})
        except BaseException:  # Ctrl-C too: the file is let go before it is removed
            sink.abandon()
            raise


def pool_rollouts(source: Source, units: UnitOptions, tests: TestOptions, options: ScoreOptions) -> PooledUnits:
    """Pool the units of the rollouts of a source."""
    check_units(units, tests)
    plan = plan_with_key_weight(source, options)
    labels = _as_verdicts(read_labels(plan, units.outcome))
    reader = units_of(units.unit, plan.decoder, units.within)
    incidence, tested, whole = _test(plan, labels, reader, units, tests, options)
    kept = _events(incidence, tested, reader)
    table = unit_table(incidence, tested, reader.vocabulary, classes_of(incidence, reader.vocabulary, plan, kept), kept)
    report = {"unit": units.unit, "within": units.within, "before": units.before, "outcome": units.outcome}
    report |= findings(incidence, tested, table, tests)
    survivors, events = _survivors(incidence, tested, tests, kept)
    if whole:
        report["vanished"] = _vanished(_survivors(*whole, tests, _events(*whole, reader)), (survivors, events))
    if units.verdict_noise:

        def survivors_under(others: Labels) -> tuple[set[int], int]:
            incidence, tested, _ = _test(plan, others, reader, units, tests, options)
            found, events = _survivors(incidence, tested, tests, _events(incidence, tested, reader))
            return found, len(events)

        report["verdict_noise"] = verdict_noise(plan, labels, events, survivors_under)
    return PooledUnits(plan, labels, incidence, tested, table, report)


def plan_with_key_weight(source: Source, options: ScoreOptions) -> Plan:
    """Return the plan of an input; raise `KtaeError` where the estimator gives no key weight."""
    plan = make_plan(source, options)
    if "key_weight" not in columns(plan.specs[0]):
        raise KtaeError(f"-e {plan.specs[0]}: gives no key weight; name a KTAE spec, such as ktae or 'ktae(loo=true)'")
    return plan


def check_units(units: UnitOptions, tests: TestOptions) -> None:
    """Raise `KtaeError` for values that cannot be, and for what does not go together."""
    if units.within:
        check_within(units.within)
    if units.before:
        check_before(units.before)
    for name in ("min_groups", "permutations", "resamples"):
        if getattr(tests, name) < 1:
            raise KtaeError(f"--{name.replace('_', '-')} takes a number of at least 1, found {getattr(tests, name)}")
    if units.outcome != "correct" and units.verdict_noise:
        raise KtaeError(f"--verdict-noise is about the verdict: leave out --outcome {units.outcome}")
    if units.outcome != "correct" and tests.length_control in ("prefix", "exposure"):
        raise KtaeError(
            f"--length-control {tests.length_control} is for the verdict; with --outcome take verdict or off"
        )


def _as_verdicts(labels: Labels) -> Labels:
    """Return labels whose verdict is the outcome where it takes two values: the larger one is right."""
    values = np.unique(labels.outcome[~np.isnan(labels.outcome) & (labels.group >= 0)])
    if len(values) != 2:
        return labels
    known = ~np.isnan(labels.outcome)
    return replace(labels, correct=np.where(known, labels.outcome == values[1], -1).astype(np.int8))


def _test(
    plan: Plan, labels: Labels, reader: UnitReader, units: UnitOptions, tests: TestOptions, options: ScoreOptions
) -> tuple[Incidence, TestedUnits, tuple[Incidence, TestedUnits] | None]:
    """Gather and test; with `before` also whole responses, to compare."""
    values = np.unique(labels.outcome[~np.isnan(labels.outcome) & (labels.group >= 0)])
    rollouts = informative_rollouts(labels, plan.index.keys, by_outcome=len(values) > 2)
    _check_mixed(rollouts, plan, units)
    views = views_of(plan, rollouts, units, tests)
    gathered = gather(
        plan, rollouts, reader, list(views.values()), device=options.device, jobs=options.jobs,
        progress=options.progress, warn=options.warn,
    )  # fmt: skip
    found = dict(zip(views, map(only_informative, gathered), strict=True))
    _check_mixed(found["counted"].rollouts, plan, units)
    incidence, whole = found["counted"], found.get("whole")
    tested = test_units(incidence, tests, found.get("shortened"))
    return incidence, tested, (whole, test_units(whole, tests, found.get("shortened"))) if whole else None


def _check_mixed(rollouts: Informative, plan: Plan, units: UnitOptions) -> None:
    if not len(rollouts):
        raise InputError(
            f"no group holds rollouts of different {units.outcome} ({len(plan.index.keys)} groups read): nothing tells "
            "units apart; `ktae inspect` shows the groups"
        )


def views_of(plan: Plan, rollouts: Informative, units: UnitOptions, tests: TestOptions) -> dict[str, View]:
    """Return what is gathered: the counted tokens; for `prefix` the same cut short; for `before` also the whole."""

    def whole(tokens, rollout):
        return tokens

    counted = written_before(units.before, plan.decoder) if units.before else whole
    views: dict[str, View] = {"counted": counted}
    if units.before:
        views["whole"] = whole
    if tests.length_control == "prefix":
        cut = cut_at(shortest_in_group(plan, rollouts), rollouts)
        views["shortened"] = lambda tokens, rollout: cut(counted(tokens, rollout), rollout)
    return views


def _events(incidence: Incidence, tested: TestedUnits, reader: UnitReader) -> np.ndarray:
    """Tell which units are kept (n_units,) bool: of nested n-grams that are one event only the best."""
    ids = getattr(reader.vocabulary, "ids", None)
    if ids is None:
        return np.ones(incidence.n_units, bool)
    grams = [ids(code) for code in incidence.code.tolist()]
    return drop_nested(grams, incidence.unit, incidence.rollout, tested.columns["p_value"])


def _survivors(
    incidence: Incidence, tested: TestedUnits, tests: TestOptions, kept: np.ndarray
) -> tuple[set[int], set[int]]:
    """Return the codes of the units that survive in the headline's test, and of those that are kept (n_units,) bool."""
    found = tested.survivors(tested.headline_q, tests.level)
    return set(incidence.code[found].tolist()), set(incidence.code[found[kept[found]]].tolist())


def _vanished(whole: tuple[set[int], set[int]], counted: tuple[set[int], set[int]]) -> dict[str, int]:
    """Count the events that survive over whole responses and not where only a part is counted, and the reverse."""
    return {
        "survive_whole": len(whole[1]), "vanish": len(whole[1] - counted[0]), "appear": len(counted[1] - whole[0]),
    }  # fmt: skip
