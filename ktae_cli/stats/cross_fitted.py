"""What the other prompts say of a unit: pooled tests and log odds on all folds of prompts but one."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.stats.adjust import benjamini_hochberg
from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.length_fit import exchangeable, fit_length, length_basis
from ktae_cli.stats.pooled_score import Cells, cells_of
from ktae_cli.stats.pooled_tests import PooledTests, pooled_tests

FOLDS = 5
MIN_GROUPS = 5
"""Units that vary in fewer mixed groups are not tested: they are no part of the family."""


@dataclass(frozen=True)
class Presences:
    """Which rollouts of mixed groups hold which units.

    prompt (n_groups,) int64, not negative; right (n_rollouts,) uint8, length (n_rollouts,) int64: counted tokens,
    truncated (n_rollouts,) bool; unit (n_pairs,) int64 and rollout (n_pairs,) int64: distinct pairs, sorted by unit,
    then rollout.
    """

    strata: Strata
    prompt: np.ndarray
    right: np.ndarray
    length: np.ndarray
    truncated: np.ndarray
    unit: np.ndarray
    rollout: np.ndarray


@dataclass(frozen=True)
class UnitEvidence:
    """One entry for each (fold, unit of its family), sorted by fold, then unit: what is known without that fold.

    fold (n,) int64, unit (n,) int64; q (n,): the false discovery rate at which the unit is accepted; score (n,)
    U = T - E T and variance (n,) V of it, so that U / V is the one-step log odds ratio.
    between (n_folds,): variance of the log odds between units; within (n_folds,): between the groups of a unit.
    """

    fold: np.ndarray
    unit: np.ndarray
    q: np.ndarray
    score: np.ndarray
    variance: np.ndarray
    between: np.ndarray
    within: np.ndarray

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return len(self.between)

    @property
    def log_odds(self) -> np.ndarray:
        """Return the log odds ratios (n,) shrunken to 0: U / V * between / (between + 1 / V)."""
        between = self.between[self.fold]
        return between * self.score / (1 + between * self.variance)


def fold_of(prompt: np.ndarray, folds: int = FOLDS) -> np.ndarray:
    """Return the fold of each prompt: prompt numbers are hashes, so their remainders are even."""
    return prompt % folds


def cross_fitted(
    presences: Presences, given_length: bool = True, folds: int = FOLDS, min_groups: int = MIN_GROUPS
) -> UnitEvidence:
    """Test, for each fold, the units on the mixed groups of all other folds.

    All groups of a prompt are in one fold. The family of a fold are the units that vary in at least min_groups mixed
    groups outside of it; q is Benjamini and Hochberg's over the family, on the p of `pooled_tests`, whose law of the
    labels is given length or free.
    between: `between_units` of the family. within = max(0, sum (Q - (k - 1)) / sum (V - sum V_g^2 / V)) over it,
    Q = sum (U_g - U V_g / V)^2 / V_g over the k groups of a unit in which V_g > 0: DerSimonian and Laird (1986) with
    one variance for all units.
    Degenerate: a fold without a family has no entry and both variances 0.
    """
    cells = cells_of(presences.unit, presences.rollout, presences.right, presences.strata)
    fold = fold_of(presences.prompt, folds)
    parts, variances = [], np.zeros((2, folds))
    for f in range(folds):
        units, chosen, kept = _family(cells, fold != f, min_groups)
        if not len(units):
            continue
        tests = _tests(presences, chosen, kept, len(units), given_length)
        parts.append((np.full(len(units), f), units, benjamini_hochberg(tests.p), tests.score, tests.variance))
        variances[:, f] = between_units(tests.score, tests.variance), _within(tests)
    nothing = (*[np.zeros(0, np.int64)] * 2, *[np.zeros(0)] * 3)
    columns = zip(nothing, *parts, strict=True)
    return UnitEvidence(*map(np.concatenate, columns), *variances)


def _family(cells: Cells, kept: np.ndarray, min_groups: int) -> tuple[np.ndarray, Cells, np.ndarray]:
    """Return the units of the family, their cells in kept groups (units and groups numbered anew), and kept."""
    inside = kept[cells.group]
    units, number, n_groups = np.unique(cells.unit[inside], return_inverse=True, return_counts=True)
    large = n_groups >= min_groups
    at = np.flatnonzero(inside)[large[number]]
    taken = np.zeros(len(cells.unit), bool)
    taken[at] = True
    new_group = np.cumsum(kept) - 1
    new_unit = np.cumsum(large) - 1
    chosen = Cells(
        new_unit[number[large[number]]], new_group[cells.group[at]], cells.size[at], cells.right[at],
        cells.place[np.repeat(taken, cells.size)],
    )  # fmt: skip
    return units[large], chosen, kept


def _tests(presences: Presences, cells: Cells, kept: np.ndarray, n_units: int, given_length: bool) -> PooledTests:
    strata = Strata(presences.strata.sizes[kept], presences.strata.n_right[kept])
    if not given_length:
        return pooled_tests(cells, exchangeable(strata), strata, n_units)
    rows = np.repeat(kept, presences.strata.sizes)
    basis = length_basis(presences.length[rows], presences.truncated[rows], strata)
    return pooled_tests(cells, fit_length(presences.right[rows], basis, strata), strata, n_units)


def between_units(score: np.ndarray, variance: np.ndarray) -> float:
    """Return the variance of the log odds ratios of units, from U and V of each (n_units,), 0 without any.

    max(0, (sum U^2 / V - m) / sum V) over the m units with V > 0: the moment estimate under a normal law of mean 0.
    """
    known = variance > 0
    excess = (score[known] ** 2 / variance[known]).sum() - np.count_nonzero(known)
    return max(0.0, float(excess / variance[known].sum())) if known.any() else 0.0


def _within(tests: PooledTests) -> float:
    known = tests.cell_variance > 0
    n_units, unit = len(tests.count), tests.cells.unit[known]
    u, v = tests.cell_score[known], tests.cell_variance[known]

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(unit, values, n_units)

    total_v = np.maximum(total(v), 1e-300)
    q = total((u - (total(u) / total_v)[unit] * v) ** 2 / v)
    freedom = np.maximum(np.bincount(unit, minlength=n_units) - 1, 0)
    weight = (total(v) - total(v**2) / total_v).sum()
    return max(0.0, float((q - freedom).sum() / weight)) if weight > 0 else 0.0
