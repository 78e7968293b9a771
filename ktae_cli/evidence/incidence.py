"""Which rollouts of the mixed groups hold which units: what every pooled test is computed from."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.evidence.labels import Labels
from ktae_cli.stats.conditional import Strata


@dataclass(frozen=True)
class Informative:
    """The rollouts of known verdict in mixed groups, group by group.

    right, outcome, truncated (n_rollouts,); prompt (n_groups,) int64, group_code (n_groups,) of the input's groups;
    of_row (n_rows,) int64: the rollout of each row of the input, -1 for rows that are left out.
    """

    strata: Strata
    right: np.ndarray
    outcome: np.ndarray
    truncated: np.ndarray
    prompt: np.ndarray
    group_code: np.ndarray
    of_row: np.ndarray
    by_outcome: bool = False
    """The outcome is a number; groups are kept in which it differs, of one verdict or of two."""

    def __len__(self) -> int:
        return len(self.right)


@dataclass(frozen=True)
class Incidence:
    """Distinct pairs (unit, rollout), sorted by unit, then rollout.

    code (n_units,) int64: what the vocabulary calls each unit; unit, rollout (n_pairs,) int32; occurrences (n_units,)
    int64 in all these rollouts; key_weight (n_units,): its mean over the occurrences; length (n_rollouts,): counted
    tokens.
    """

    rollouts: Informative
    code: np.ndarray
    unit: np.ndarray
    rollout: np.ndarray
    occurrences: np.ndarray
    key_weight: np.ndarray
    length: np.ndarray

    @property
    def n_units(self) -> int:
        """Number of distinct units."""
        return len(self.code)


def informative_rollouts(labels: Labels, keys: list[str], by_outcome: bool = False) -> Informative:
    """Keep groups that hold right and wrong rollouts, or by_outcome different outcomes, ordered by prompt and key.

    Rows of one trajectory are one rollout, with the labels of its first row that has some; unknown ones are left out.
    """
    first = _first_rows(labels, ~np.isnan(labels.outcome) if by_outcome else labels.correct >= 0)
    value = labels.outcome[first] if by_outcome else labels.correct[first]
    return _ordered(
        labels, keys, first[_differs(value, labels.group[first], len(keys))[labels.group[first]]], by_outcome
    )


def rollouts_of_prompts(labels: Labels, keys: list[str], prompts: np.ndarray) -> Informative:
    """Keep all groups of the given prompts, mixed or not, in the same order."""
    first = _first_rows(labels, labels.correct >= 0)
    return _ordered(labels, keys, first[np.isin(labels.prompt[first], prompts)], False)


def _first_rows(labels: Labels, known: np.ndarray) -> np.ndarray:
    """Return the first row of known label of each rollout."""
    rows = np.flatnonzero(known & (labels.group >= 0))
    return rows[np.unique(labels.trajectory[rows], return_index=True)[1]]


def _differs(value: np.ndarray, group: np.ndarray, n_groups: int) -> np.ndarray:
    """Tell in which groups the values (n,) are not all the same (n_groups,) bool."""
    low, high = np.full(n_groups, np.inf), np.full(n_groups, -np.inf)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    return low < high


def _ordered(labels: Labels, keys: list[str], first: np.ndarray, by_outcome: bool) -> Informative:
    group = labels.group[first]
    prompt_of = np.zeros(len(keys), np.int64)
    prompt_of[group] = labels.prompt[first]
    codes = np.unique(group)
    place = np.empty(len(keys), np.int64)
    place[sorted(codes.tolist(), key=lambda code: (prompt_of[code], keys[code]))] = np.arange(len(codes))
    order = np.lexsort((first, place[group]))
    first, group = first[order], group[order]
    shared = np.full(len(labels.group), -1)
    shared[labels.trajectory[first]] = np.arange(len(first))
    of_row = np.where(labels.group >= 0, shared[labels.trajectory], -1)
    new = np.flatnonzero(np.diff(group, prepend=-1) != 0)
    right = (labels.correct[first] == 1).astype(np.uint8)
    sizes = np.diff(np.append(new, len(group)))
    n_right = np.add.reduceat(right.astype(np.int64), new) if len(new) else np.zeros(0, np.int64)
    return Informative(
        Strata(sizes, n_right), right, labels.outcome[first], labels.truncated[first], labels.prompt[first][new],
        group[new], of_row, by_outcome,
    )  # fmt: skip


class Pairs:
    """Gathers the pairs batch by batch; holds about 24 bytes for each distinct (unit, rollout)."""

    def __init__(self, rollouts: Informative):
        self.rollouts = rollouts
        self.length = np.zeros(len(rollouts), np.int64)
        self.parts: list[tuple[np.ndarray, ...]] = []

    def add(self, unit: np.ndarray, rollout: np.ndarray, key_weight: np.ndarray) -> None:
        """Add occurrences (n,): the code of the unit, the rollout it stands in, the key weight there."""
        order = np.lexsort((rollout, unit))
        unit, rollout = unit[order], rollout[order]
        first = np.flatnonzero(np.append(True, (np.diff(unit) != 0) | (np.diff(rollout) != 0))[: len(unit)])
        count = np.diff(np.append(first, len(unit)))
        weight = np.add.reduceat(key_weight[order].astype(np.float64), first) if len(first) else key_weight
        self.parts.append((unit[first], rollout[first].astype(np.int32), count.astype(np.int32), weight))

    def add_lengths(self, rollout: np.ndarray, counted: np.ndarray) -> None:
        """Add the counted tokens of rows; those of no rollout (-1) are left out."""
        known = rollout >= 0
        np.add.at(self.length, rollout[known], counted[known])

    def incidence(self) -> Incidence:
        """Return what has been gathered."""
        unit, rollout, count, weight = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        self.parts = []
        order = np.lexsort((rollout, unit))
        unit, rollout, count, weight = unit[order], rollout[order], count[order], weight[order]
        first = np.flatnonzero(np.append(True, (np.diff(unit) != 0) | (np.diff(rollout) != 0))[: len(unit)])
        code, dense = np.unique(unit, return_inverse=True)
        occurrences = np.bincount(dense, count, len(code)).astype(np.int64)
        mean = np.bincount(dense, weight, len(code)) / np.maximum(occurrences, 1)
        return Incidence(
            self.rollouts, code, dense[first].astype(np.int32), rollout[first], occurrences, mean, self.length
        )


def only_groups(incidence: Incidence, chosen: np.ndarray) -> Incidence:
    """Return the incidence of the chosen groups (n_groups,) bool, without units that stand in none of them."""
    return only_rollouts(incidence, chosen[incidence.rollouts.strata.group])


def only_rollouts(incidence: Incidence, taken: np.ndarray) -> Incidence:
    """Return the incidence of the rollouts taken (n_rollouts,) bool, without units and groups that have none of them.

    occurrences and key_weight stay those of all rollouts.
    """
    rollouts = incidence.rollouts
    group, n_groups = rollouts.strata.group, len(rollouts.strata.sizes)
    sizes = np.bincount(group[taken], minlength=n_groups)
    n_right = np.bincount(group[taken], rollouts.right[taken], n_groups).astype(np.int64)
    kept = sizes > 0
    number = np.where(taken, np.cumsum(taken) - 1, -1)
    pairs = taken[incidence.rollout]
    units, unit = np.unique(incidence.unit[pairs], return_inverse=True)
    of_row = np.where(rollouts.of_row >= 0, number[rollouts.of_row.clip(min=0)], -1) if len(number) else rollouts.of_row
    part = Informative(
        Strata(sizes[kept], n_right[kept]), rollouts.right[taken], rollouts.outcome[taken], rollouts.truncated[taken],
        rollouts.prompt[kept], rollouts.group_code[kept], of_row, rollouts.by_outcome,
    )  # fmt: skip
    return Incidence(
        part, incidence.code[units], unit.astype(np.int32), number[incidence.rollout[pairs]].astype(np.int32),
        incidence.occurrences[units], incidence.key_weight[units], incidence.length[taken],
    )  # fmt: skip


def only_units(incidence: Incidence, kept: np.ndarray) -> Incidence:
    """Return the incidence of the units kept (n_units,) bool, in all its rollouts."""
    pairs = kept[incidence.unit]
    number = np.cumsum(kept) - 1
    return Incidence(
        incidence.rollouts, incidence.code[kept], number[incidence.unit[pairs]].astype(np.int32),
        incidence.rollout[pairs], incidence.occurrences[kept], incidence.key_weight[kept], incidence.length,
    )  # fmt: skip


def only_informative(incidence: Incidence) -> Incidence:
    """Return the incidence of the groups in which the verdict, or by_outcome the outcome, differs."""
    rollouts = incidence.rollouts
    value = rollouts.outcome if rollouts.by_outcome else rollouts.right
    kept = _differs(value, rollouts.strata.group, len(rollouts.group_code))
    return incidence if kept.all() else only_groups(incidence, kept)
