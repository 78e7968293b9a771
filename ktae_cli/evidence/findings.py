"""What the tests amount to: the verdict, how much length explains, and what it would take to see more."""

from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.evidence.held_out import held_out
from ktae_cli.evidence.incidence import Incidence
from ktae_cli.evidence.needed_prompts import needed_prompts
from ktae_cli.evidence.unit_tests import TestedUnits, TestOptions

LITTLE_OVERLAP = 0.1
"""Where length leaves less than this share of the labels' freedom, nothing can be said beyond it."""

STRONGEST = 20
"""Rows that a report holds."""

TOP = 10
FORM = ("format", "special")
"""Classes that a verifier reads; where they make up half of the survivors in the TOP, the report says so."""


def findings(incidence: Incidence, tested: TestedUnits, table: pa.Table, options: TestOptions) -> dict[str, Any]:
    """Return the report of tested units as JSON values; None is what was not asked or does not exist."""
    rollouts = incidence.rollouts
    control = options.length_control
    at_all = _count(table, "q_value", options.level)
    beyond = None if control == "off" else _count(table, "q_given_length", options.level)
    leading = [row["class"] for row in table.slice(0, TOP).to_pylist() if _survives(row, options.level)]
    right = rollouts.right == 1
    separates = control != "off" and tested.fit.overlap < LITTLE_OVERLAP
    return {
        "rollouts": len(rollouts),
        "groups_mixed": len(rollouts.group_code),
        "prompts": len(np.unique(rollouts.prompt)),
        "units": table.num_rows,
        "tested": int(tested.family.sum()),
        "min_groups": options.min_groups,
        "level": options.level,
        "length_control": control,
        "law": "given-length" if control == "verdict" else "free",
        "headline": "at all" if control == "off" else "beyond length",
        "outcome_is_number": rollouts.by_outcome,
        "survive_at_all": at_all,
        "survive_beyond_length": beyond,
        "overlap": tested.fit.overlap,
        "length_separates": separates,
        "median_length_right": float(np.median(incidence.length[right])) if right.any() else None,
        "median_length_wrong": float(np.median(incidence.length[~right])) if (~right).any() else None,
        "form_leads": bool(leading) and sum(kind in FORM for kind in leading) * 2 >= len(leading),
        "held_out": None if rollouts.by_outcome else held_out(incidence, options),
        "needed": _needed(incidence, tested, options),
        "strongest": finite_rows(table.slice(0, STRONGEST)),
        "permutations": options.permutations,
        "resamples": options.resamples,
        "seed": options.seed,
    }


def finite_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as dictionaries, None for an infinite odds ratio: JSON has no infinity."""
    return [{name: None if value == np.inf else value for name, value in row.items()} for row in table.to_pylist()]


def _survives(row: dict[str, Any], level: float) -> bool:
    """Tell whether a unit survives at all or beyond length."""
    return any(q is not None and q <= level for q in (row["q_value"], row["q_given_length"]))


def _count(table: pa.Table, column: str, level: float) -> int:
    q = table[column].to_numpy()
    return int(np.count_nonzero(np.nan_to_num(q, nan=2.0) <= level))


def _needed(incidence: Incidence, tested: TestedUnits, options: TestOptions) -> dict[str, Any]:
    tests, rollouts = tested.tests, incidence.rollouts
    cells, n_units = tests.cells, len(tests.variance)
    _, prompt = np.unique(rollouts.prompt, return_inverse=True)
    key, place = np.unique(cells.unit * (prompt.max(initial=0) + 1) + prompt[cells.group], return_inverse=True)
    by_prompt = np.bincount(place, tests.cell_variance, len(key))
    squares = np.bincount(key // (prompt.max(initial=0) + 1), by_prompt**2, n_units)
    spread = tested.columns["heterogeneity"][tested.family]
    sizes = rollouts.strata.sizes
    return needed_prompts(
        tests.score, np.where(tests.variance > 0, tests.variance, 0), squares, spread, len(np.unique(prompt)),
        float(sizes.mean()), options.level, np.random.default_rng([options.seed, 1]),
    )  # fmt: skip
