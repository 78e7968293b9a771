"""Measures of 2x2 tables looked up instead of computed: one small table per (right, wrong) composition of a group."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ktae_cli.stats.cohens_h import half_cohens_h
from ktae_cli.stats.fisher import fisher_p_values
from ktae_cli.stats.information_gain import information_gain

Cells = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""(correct_with, incorrect_with, n_correct, n_incorrect) -> measures (n_measures, n_tables) float64."""

GRID_LIMIT = 1 << 15
"""Compositions with more cells than this are computed for the cells that occur, not for the whole grid."""


def exact_cells(correct_with: np.ndarray, incorrect_with: np.ndarray, n_correct: int, n_incorrect: int) -> np.ndarray:
    """Return rows (two-sided p, point probability, information gain in bits, half of Cohen's h) in float64."""
    two_sided, point = fisher_p_values(correct_with, incorrect_with, n_correct, n_incorrect)
    gain = information_gain(correct_with, incorrect_with, n_correct, n_incorrect)
    return np.stack([two_sided, point, gain, half_cohens_h(correct_with, incorrect_with, n_correct, n_incorrect)])


class Lookup(NamedTuple):
    """Measures of distinct tables (n_measures, n_tables) float64, and the table of each entry (n_entries,) int64."""

    measures: Tensor
    table: Tensor

    def of_entries(self, per_table: Tensor) -> Tensor:
        """Return a value per table (n_tables,) at each entry (n_entries,)."""
        return per_table.index_select(0, self.table)


def look_up(
    cells: Cells, group: Tensor, correct_with: Tensor, incorrect_with: Tensor, n_correct: Tensor, n_incorrect: Tensor
) -> Lookup:
    """Find the 2x2 table of each entry among the cached tables of its group's composition.

    group, correct_with, incorrect_with: (n_entries,) int64; n_correct, n_incorrect: (n_groups,) int64, the rollouts of
    known verdict.
    """
    compositions = list(zip(n_correct.tolist(), n_incorrect.tolist(), strict=True))
    large = [(c[0] + 1) * (c[1] + 1) > GRID_LIMIT for c in compositions]
    small = tuple(dict.fromkeys(c for c, is_large in zip(compositions, large, strict=True) if not is_large))
    grids, start = _grids(cells, small, str(group.device))
    first = torch.tensor([start.get(c, 0) for c in compositions], dtype=torch.int64, device=group.device)
    near = group.int()
    table = (n_incorrect + 1).index_select(0, near).mul_(correct_with).add_(incorrect_with)
    table = table.add_(first.index_select(0, near))
    for g in [g for g, is_large in enumerate(large) if is_large]:
        rows = torch.nonzero(group == g).flatten()
        pairs, inverse = torch.unique(
            torch.stack([correct_with[rows], incorrect_with[rows]]), dim=1, return_inverse=True
        )
        table[rows] = inverse + grids.shape[1]
        measured = torch.from_numpy(cells(*pairs.cpu().numpy(), *compositions[g])).to(group.device)
        grids = torch.cat([grids, measured], 1)
    return Lookup(grids, table)


def _grids(cells: Cells, compositions: tuple[tuple[int, int], ...], device: str) -> tuple[Tensor, dict]:
    n_cells = sum((right + 1) * (wrong + 1) for right, wrong in compositions)
    return (_small_grids if n_cells <= 1 << 14 else _join_grids)(cells, compositions, device)


def _join_grids(cells: Cells, compositions: tuple[tuple[int, int], ...], device: str) -> tuple[Tensor, dict]:
    start, at, parts = {}, 0, []
    for composition in compositions:
        start[composition] = at
        parts.append(_grid(cells, *composition))
        at += parts[-1].shape[1]
    parts = parts or [cells(np.zeros(1, np.int64), np.zeros(1, np.int64), 0, 0)]
    return torch.from_numpy(np.concatenate(parts, axis=1)).to(device), start


_small_grids = lru_cache(maxsize=128)(_join_grids)


@lru_cache(maxsize=256)
def _grid(cells: Cells, n_correct: int, n_incorrect: int) -> np.ndarray:
    correct_with, incorrect_with = np.mgrid[: n_correct + 1, : n_incorrect + 1].reshape(2, -1)
    return cells(correct_with, incorrect_with, n_correct, n_incorrect)
