"""Two halves of each group's rollouts, and how the key weights that they give agree."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.stats.conditional import Strata

MAX_GROUPS = 1024
"""A split takes at most so many groups, drawn at random: their entries are held in memory."""


def split_halves(
    right: np.ndarray, strata: Strata, random: np.random.Generator, max_groups: int = MAX_GROUPS
) -> np.ndarray:
    """Return the half (n_rollouts,) int8 of each rollout, 0 or 1, -1 in groups that are not split.

    The rollouts of a group, the right ones first and each kind in random order, go to the halves by turns: the halves
    differ by one rollout at most, and so do their right and their wrong ones. right (n_rollouts,) 0 or 1. Groups with
    less than two right or two wrong rollouts are not split, nor more than max_groups.
    """
    group = strata.group
    order = np.lexsort((random.random(len(right)), -right.astype(np.int8), group))
    place = np.arange(len(right)) - np.repeat(strata.starts, strata.sizes)
    half = np.empty(len(right), np.int8)
    half[order] = (place + np.repeat(random.integers(0, 2, len(strata.sizes)), strata.sizes)) % 2
    chosen = np.flatnonzero((strata.n_right >= 2) & (strata.sizes - strata.n_right >= 2))
    if len(chosen) > max_groups:
        chosen = random.choice(chosen, max_groups, replace=False)
    return np.where(np.isin(group, chosen), half, -1).astype(np.int8)


@dataclass
class Entries:
    """What token tables say: group, token id, key weight, and rollouts that hold the token, in parts of any order."""

    parts: list[tuple[np.ndarray, ...]]

    def add(self, table: dict[str, np.ndarray]) -> None:
        """Add the rows of a token table."""
        held = table["correct_with"] + table["incorrect_with"]
        columns = (table["group"], table["token_id"], table["key_weight"], held)
        self.parts.append(
            tuple(v.astype(t) for v, t in zip(columns, (np.int32, np.int32, np.float32, np.int32), strict=True))
        )

    def columns(self) -> tuple[np.ndarray, ...]:
        """Return group, token id, key weight and rollouts (n_entries,)."""
        none = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))
        return tuple(np.concatenate(column) for column in zip(none, *self.parts, strict=True))


def paired_moments(first: Entries, second: Entries, n_groups: int) -> np.ndarray:
    """Return sums (6, n_groups) over the (group, token id) that both halves count: w, w a, w b, w a^2, w b^2, w a b.

    a, b: the key weight in the first and in the second half; w: the rollouts of both that hold the token.
    """
    (group_a, id_a, a, held_a), (group_b, id_b, b, held_b) = first.columns(), second.columns()
    key_a, key_b = (g.astype(np.int64) << 32 | i for g, i in ((group_a, id_a), (group_b, id_b)))
    _, at_a, at_b = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
    a, b, w = a[at_a].astype(np.float64), b[at_b].astype(np.float64), (held_a[at_a] + held_b[at_b]).astype(np.float64)
    rows = (w, w * a, w * b, w * a * a, w * b * b, w * a * b)
    return np.stack([np.bincount(group_a[at_a], row, n_groups) for row in rows])


def reliability(sums: np.ndarray) -> np.ndarray:
    """Return 2 r / (1 + r), r the correlation of the halves' weights, from the sums (6, …) of `paired_moments`.

    NaN where a half's weights are all the same, and at r = -1.
    Source: Spearman (1910) and Brown (1910), British Journal of Psychology 3, for a measure of twice the length.
    """
    w, a, b, aa, bb, ab = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = [np.where(w * ss - s * s > 1e-9 * w * ss, w * ss - s * s, np.nan) for s, ss in ((a, aa), (b, bb))]
        r = np.clip((w * ab - a * b) / np.sqrt(spread[0] * spread[1]), -1, 1)
        return np.where(r > -1, 2 * r / (1 + r), np.nan)
