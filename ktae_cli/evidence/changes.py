"""`ktae tokens A B`: what two checkpoints or runs write on the same prompts, and what it is worth in each."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.evidence.findings import LITTLE_OVERLAP, finite_rows
from ktae_cli.evidence.gathering import gather
from ktae_cli.evidence.incidence import Incidence, only_groups, rollouts_of_prompts
from ktae_cli.evidence.labels import Labels, read_labels
from ktae_cli.evidence.migration import migration
from ktae_cli.evidence.pooling import UnitOptions, check_units, plan_with_key_weight, views_of, write_table
from ktae_cli.evidence.unit_tests import TestOptions
from ktae_cli.evidence.vocabularies import check_same_vocabulary
from ktae_cli.inputs import open_rollouts
from ktae_cli.plan import Plan, ScoreOptions
from ktae_cli.stats.adjust import benjamini_hochberg
from ktae_cli.stats.conditional import Strata, subset_laws
from ktae_cli.stats.length_fit import exchangeable, fit_length, length_basis
from ktae_cli.stats.mantel_haenszel import mantel_haenszel
from ktae_cli.stats.odds_change import CountLaws, odds_change_p_values
from ktae_cli.stats.pooled_score import cells_of
from ktae_cli.stats.pooled_tests import pooled_tests
from ktae_cli.units.base import Vocabulary
from ktae_cli.units.choice import units_of
from ktae_cli.writers.atomic import check_no_input, check_target

_WHOLE, _REAL = pa.int64(), pa.float64()
SHOWN = 20
"""Rows of the table that a report holds, of usage and of value."""

SCHEMA = pa.schema(
    {
        "unit": pa.string(), "token_id": pa.int32(), "state": pa.string(),
        "with_a": _WHOLE, "with_b": _WHOLE, "n_a": _WHOLE, "n_b": _WHOLE, "n_prompts": _WHOLE,
        "usage_odds_ratio": _REAL, "p_usage": _REAL, "p_usage_given_length": _REAL, "q_usage": _REAL,
        "q_usage_given_length": _REAL,
        "odds_ratio_a": _REAL, "odds_ratio_b": _REAL, "n_groups_a": _WHOLE, "n_groups_b": _WHOLE,
        "p_value_change": _REAL, "p_value_change_given_length": _REAL, "q_value_change": _REAL,
        "q_value_change_given_length": _REAL,
    }
)  # fmt: skip


def compare_units(
    first: str, second: str, output: Path | None, force: bool, units: UnitOptions, tests: TestOptions,
    options: ScoreOptions,
) -> dict[str, Any]:  # fmt: skip
    """Compare the units of two inputs on their common prompts, write the table if asked, return the report.

    usage: how often a unit is written, tested within prompts by exchanging which input a rollout is of, freely, and
    given length by the same length model as verdicts. value: the odds of a right answer given that it is written, over
    groups of prompts that are mixed in both inputs, tested exactly by `odds_change_p_values` under either law.
    """
    check_units(units, tests)
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch:
        sources = []
        for number, name in enumerate((first, second)):
            place = Path(scratch) / str(number)
            place.mkdir()
            sources.append(open_rollouts([name], str(place), options.input))
        if output:
            check_target(output, force)
            check_no_input(output, [path for source in sources for path in source.paths], "-o")
        plans = [plan_with_key_weight(source, options) for source in sources]
        check_same_vocabulary(plans, (first, second), units.unit)
        labels = [read_labels(plan) for plan in plans]
        sides, vocabulary = _gathered(plans, labels, (first, second), units, tests, options)
        table, overlap = change_table(*sides, vocabulary, tests)
        report = _report(sides, table, overlap, tests) | {
            "unit": units.unit,
            "within": units.within,
            "before": units.before,
        }
        if output:
            write_table(output, force, table, {"changes": report}, *sources)
    return report | {"names": [first, second], "output": str(output) if output else None}


def _gathered(
    plans: list[Plan], labels: list[Labels], names: tuple[str, str], units: UnitOptions, tests: TestOptions,
    options: ScoreOptions,
) -> tuple[list[Incidence], Vocabulary]:  # fmt: skip
    """Return the incidence of each input on the common prompts, all groups of known verdicts, and the vocabulary."""
    prompts = [np.unique(found.prompt[(found.correct >= 0) & (found.group >= 0)]) for found in labels]
    common = np.intersect1d(*prompts)
    if not len(common):
        raise _no_common_prompt(names, prompts)
    reader = units_of(units.unit, plans[0].decoder, units.within)
    whole = replace(tests, length_control="off")
    sides = []
    for plan, found in zip(plans, labels, strict=True):
        rollouts = rollouts_of_prompts(found, plan.index.keys, common)
        view = views_of(plan, rollouts, units, whole)["counted"]
        sides += gather(
            plan, rollouts, reader, [view], device=options.device, jobs=options.jobs, progress=options.progress,
            warn=options.warn,
        )  # fmt: skip
    read = np.intersect1d(*(side.rollouts.prompt for side in sides))
    if not len(read):
        raise _no_common_prompt(names, [np.unique(side.rollouts.prompt) for side in sides])
    return [only_groups(side, np.isin(side.rollouts.prompt, read)) for side in sides], reader.vocabulary


def _no_common_prompt(names: tuple[str, str], prompts: list[np.ndarray]) -> InputError:
    return InputError(
        f"{names[0]} and {names[1]} have no prompt in common ({len(prompts[0])} and {len(prompts[1])} prompts with "
        "verdicts, matched by their text, else by their name)"
    )


def change_table(a: Incidence, b: Incidence, vocabulary: Vocabulary, tests: TestOptions) -> tuple[pa.Table, float]:
    """Return one row a unit of either input, the smallest p of usage first, and how far lengths of both overlap."""
    codes = np.union1d(a.code, b.code)
    usage, overlap = _usage(a, b, codes, tests)
    columns = usage | _value(a, b, codes, tests)
    born, dead = columns["with_a"] == 0, columns["with_b"] == 0
    state = np.where(born, "born", np.where(dead, "dead", "kept"))
    leading = "p_usage" if tests.length_control == "off" else "p_usage_given_length"
    order = np.lexsort((codes, np.nan_to_num(columns[leading], nan=2.0)))
    named = {
        "unit": [vocabulary.name(code) for code in codes[order].tolist()],
        "token_id": [vocabulary.token_id(code) for code in codes[order].tolist()],
        "state": state[order].tolist(),
    }
    arrays = []
    for field in SCHEMA:
        if field.name in named:
            arrays.append(pa.array(named[field.name], field.type))
        else:
            values = columns[field.name][order]
            absent = np.isnan(values) if values.dtype.kind == "f" else None
            arrays.append(pa.array(values, mask=absent).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA), overlap


def _usage(a: Incidence, b: Incidence, codes: np.ndarray, tests: TestOptions) -> tuple[dict[str, np.ndarray], float]:
    """Test within each prompt whether a rollout that holds the unit is of the second input; return also the overlap."""
    n_a, n_units = len(a.rollouts), len(codes)
    prompt = np.concatenate([side.rollouts.prompt[side.rollouts.strata.group] for side in (a, b)])
    of_b = np.arange(len(prompt)) >= n_a
    order = np.lexsort((of_b, prompt))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    new = np.flatnonzero(np.diff(prompt[order], prepend=-1) != 0)
    sizes = np.diff(np.append(new, len(order)))
    strata = Strata(sizes, np.add.reduceat(of_b[order].astype(np.int64), new))
    unit = np.concatenate([np.searchsorted(codes, side.code)[side.unit] for side in (a, b)])
    rollout = place[np.concatenate([a.rollout, b.rollout + n_a])]
    pairs = np.lexsort((rollout, unit))
    unit, rollout = unit[pairs], rollout[pairs]
    side_of = of_b[order].astype(np.uint8)
    cells = cells_of(unit, rollout, side_of, strata)
    length = np.concatenate([a.length, b.length])[order]
    truncated = np.concatenate([a.rollouts.truncated, b.rollouts.truncated])[order]
    fit = fit_length(side_of, length_basis(length, truncated, strata), strata)
    n_prompts = np.bincount(cells.unit, minlength=n_units)
    tested = n_prompts >= tests.min_groups
    free, given = (
        np.where(tested, pooled_tests(cells, law, strata, n_units).p, np.nan) for law in (exchangeable(strata), fit)
    )
    with_b = np.bincount(unit, side_of[rollout], n_units).astype(np.int64)
    n_right, size = strata.n_right[cells.group], strata.sizes[cells.group]
    odds = mantel_haenszel(cells.right, cells.size - cells.right, n_right, size - n_right, cells.unit, n_units)
    return {
        "with_a": np.bincount(unit, minlength=n_units) - with_b, "with_b": with_b,
        "n_a": np.full(n_units, n_a), "n_b": np.full(n_units, len(b.rollouts)), "n_prompts": n_prompts,
        "usage_odds_ratio": odds.odds_ratio, "p_usage": free, "p_usage_given_length": given,
        "q_usage": benjamini_hochberg(free), "q_usage_given_length": benjamini_hochberg(given),
    }, fit.overlap  # fmt: skip


def _value(a: Incidence, b: Incidence, codes: np.ndarray, tests: TestOptions) -> dict[str, np.ndarray]:
    """Test whether the odds of a right answer given the unit are the same, over prompts that are mixed in both."""
    mixed = [(s.n_right > 0) & (s.n_right < s.sizes) for s in (a.rollouts.strata, b.rollouts.strata)]
    both = np.intersect1d(a.rollouts.prompt[mixed[0]], b.rollouts.prompt[mixed[1]])
    n_units = len(codes)
    absent = np.full(n_units, np.nan)
    names = ("p_value_change", "p_value_change_given_length", "q_value_change", "q_value_change_given_length")
    found: dict[str, np.ndarray] = {"odds_ratio_a": absent, "odds_ratio_b": absent} | dict.fromkeys(names, absent)
    found |= {"n_groups_a": np.zeros(n_units, np.int64), "n_groups_b": np.zeros(n_units, np.int64)}
    if not len(both):
        return found
    parts = [only_groups(s, m & np.isin(s.rollouts.prompt, both)) for s, m in zip((a, b), mixed, strict=True)]
    laws: list[list[CountLaws]] = []
    for part, name in zip(parts, "ab", strict=True):
        strata, right = part.rollouts.strata, part.rollouts.right
        cells = cells_of(np.searchsorted(codes, part.code)[part.unit], part.rollout, right, strata)
        n_right, size = strata.n_right[cells.group], strata.sizes[cells.group]
        odds = mantel_haenszel(cells.right, cells.size - cells.right, n_right, size - n_right, cells.unit, n_units)
        found[f"odds_ratio_{name}"] = odds.odds_ratio
        found[f"n_groups_{name}"] = np.bincount(cells.unit, minlength=n_units)
        fit = fit_length(right, length_basis(part.length, part.rollouts.truncated, strata), strata)
        laws.append(
            [
                CountLaws(cells.right, *subset_laws(law.p, strata, cells.group, cells.size, cells.place), cells.unit)
                for law in (exchangeable(strata), fit)
            ]
        )
    tested = np.minimum(found["n_groups_a"], found["n_groups_b"]) >= tests.min_groups
    for law, suffix in enumerate(("", "_given_length")):
        p = np.where(tested, odds_change_p_values(laws[0][law], laws[1][law], n_units)[0], np.nan)
        found[f"p_value_change{suffix}"], found[f"q_value_change{suffix}"] = p, benjamini_hochberg(p)
    return found


def _report(sides: list[Incidence], table: pa.Table, overlap: float, tests: TestOptions) -> dict[str, Any]:
    """Return what has changed as JSON values; value is None where no common prompt is mixed in both."""
    state = np.array(table["state"].to_pylist())
    off = tests.length_control == "off"
    usage, value = ("q_usage", "q_value_change") if off else ("q_usage_given_length", "q_value_change_given_length")
    by_usage = table.slice(0, SHOWN)
    used, worth = _numbers(table, usage), _numbers(table, value)
    by_value = table.take(pa.array(np.argsort(worth, kind="stable")[:SHOWN]))
    return {
        "rollouts": [len(side.rollouts) for side in sides], "prompts": len(np.unique(sides[0].rollouts.prompt)),
        "units": table.num_rows, "level": tests.level, "min_groups": tests.min_groups,
        "length_control": tests.length_control,
        "overlap": overlap, "length_separates": not off and overlap < LITTLE_OVERLAP,
        "median_length": [float(np.median(side.length)) for side in sides],
        "born": int((state == "born").sum()), "dead": int((state == "dead").sum()),
        "usage_tested": int(np.isfinite(used).sum()),
        "usage_changed": int((used <= tests.level).sum()),
        "value_tested": int(np.isfinite(worth).sum()),
        "value_changed": int((worth <= tests.level).sum()),
        "migration": migration(*(side.rollouts for side in sides), tests.resamples, tests.seed),
        "strongest_usage": finite_rows(by_usage), "strongest_value": finite_rows(by_value),
    }  # fmt: skip


def _numbers(table: pa.Table, column: str) -> np.ndarray:
    """Return the values of a column (n_rows,), NaN where there are none."""
    return table[column].to_numpy().astype(np.float64)
