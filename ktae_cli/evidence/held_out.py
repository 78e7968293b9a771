"""Do the units predict verdicts that they were not chosen on? Each half of the prompts against the other."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ktae_cli.evidence.incidence import Incidence, only_groups
from ktae_cli.evidence.unit_tests import TestOptions
from ktae_cli.stats.auc import auc_within_groups
from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.length_fit import LengthFit, exchangeable, fit_length, length_basis
from ktae_cli.stats.pooled_score import Cells, cell_moments, cells_of, only_cells
from ktae_cli.stats.resampling import draw_weights, percentile_interval

OVERALL_RESAMPLES = 200

SPLITS = 5


def held_out(incidence: Incidence, options: TestOptions) -> dict[str, Any]:
    """Score the rollouts of each half of the prompts by what was fitted on the other half; return the AUCs.

    A rollout's score is its mean over SPLITS random halvings, each fitted without its prompt.

    units: s = sum over the units of a rollout of their shrunken log odds, omega^2 U / (omega^2 V + 1), for those that
    vary in at least min_groups groups of the other half, under the law free; omega^2 the spread of the log odds by
    moments. length: the log odds of the length model. both: the latter, plus units under the law given-length: does
    anything carry over that length does not say? pass_rate: the share of right among a rollout's siblings.
    `within`: AUC over pairs of a right and a wrong rollout of one group, where the pass rate says nothing;
    `overall`: over all pairs. Intervals (95 %) by resampling prompts. None where there are fewer than four prompts.
    """
    rollouts = incidence.rollouts
    strata = rollouts.strata
    prompts, prompt = np.unique(rollouts.prompt, return_inverse=True)
    if len(prompts) < 4:
        return {"within": None, "overall": None}
    random = np.random.default_rng([options.seed, 2])
    basis = length_basis(incidence.length, rollouts.truncated, strata)
    scores = {name: np.zeros(len(rollouts)) for name in ("units", "length", "both")}
    for _ in range(SPLITS):
        half = np.zeros(len(prompts), bool)
        half[random.permutation(len(prompts))[: len(prompts) // 2]] = True
        for chosen in (half[prompt], ~half[prompt]):
            taken = chosen[strata.group]
            for name, score in _fitted(only_groups(incidence, ~chosen), basis[~taken], incidence, basis, options):
                scores[name][taken] += score[taken] / SPLITS
    n_right, size = strata.n_right[strata.group], strata.sizes[strata.group]
    overall = scores | {"pass_rate": (n_right - rollouts.right) / (size - 1)}
    of_rollout, right = prompt[strata.group], rollouts.right == 1
    return {
        "within": {
            name: auc_within_groups(s, right, strata.group, of_rollout, random, options.resamples)._asdict()
            for name, s in scores.items()
        },
        "overall": {name: _overall(s, right, of_rollout, random) for name, s in overall.items()},
    }


def _fitted(
    part: Incidence, part_basis: np.ndarray, incidence: Incidence, basis: np.ndarray, options: TestOptions
) -> Iterator[tuple[str, np.ndarray]]:
    """Fit on a part and yield the scores (n_rollouts,) of all rollouts by name."""
    strata, right = part.rollouts.strata, part.rollouts.right
    fit = fit_length(right, part_basis, strata)
    length = basis @ fit.slopes
    every = cells_of(part.unit, part.rollout, right, strata)
    family = np.bincount(every.unit, minlength=part.n_units) >= options.min_groups
    cells, code = only_cells(every, family), part.code[family]
    free, given = (
        _sums(incidence, code, _log_odds(cells, law, strata, len(code))) for law in (exchangeable(strata), fit)
    )
    yield from (("units", free), ("length", length), ("both", length + given))


def _log_odds(cells: Cells, law: LengthFit, strata: Strata, n_units: int) -> np.ndarray:
    """Return the shrunken log odds of each unit (n_units,)."""
    moments = cell_moments(cells, law, strata)
    u = np.bincount(cells.unit, cells.right - moments.expected, n_units)
    v = np.maximum(np.bincount(cells.unit, moments.variance, n_units), 1e-300)
    spread = max(0.0, float(np.average((u / v) ** 2 - 1 / v, weights=v))) if n_units else 0.0
    return spread * u / (spread * v + 1)


def _sums(incidence: Incidence, code: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the sum of the weights of the units of each rollout (n_rollouts,)."""
    of_unit = np.zeros(incidence.n_units)
    of_unit[np.searchsorted(incidence.code, code)] = weight
    return np.bincount(incidence.rollout, of_unit[incidence.unit], len(incidence.rollouts))


def _overall(score: np.ndarray, right: np.ndarray, prompt: np.ndarray, random) -> dict[str, float]:
    """Return the AUC over all pairs, ties one half, and its interval; scores are sorted once for all resamples."""
    order = np.argsort(score, kind="stable")
    right, prompt = right[order], prompt[order]
    first = np.flatnonzero(np.diff(score[order], prepend=np.nan) != 0)
    n_prompts = int(prompt.max()) + 1

    def auc(times: np.ndarray) -> float:
        weight = times[prompt]
        rights = np.add.reduceat(weight * right, first)
        wrongs = np.add.reduceat(weight * ~right, first)
        return float(rights @ (np.cumsum(wrongs) - wrongs / 2) / (rights.sum() * wrongs.sum()))

    drawn = [auc(times) for times in draw_weights(n_prompts, OVERALL_RESAMPLES, random)]
    low, high = percentile_interval(np.array(drawn))
    return {"auc": auc(np.ones(n_prompts, np.int64)), "low": low, "high": high}
