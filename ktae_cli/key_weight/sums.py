"""Sums by group over tokens: the base, the shift, the squared key weight and its agreement with the verdict."""

import numpy as np

from ktae_cli.catalogue import spell_out
from ktae_cli.names import Spec
from ktae_cli.pipeline import column_plan

BASE, SHIFT, SIGNED, TOKENS, SQUARE = range(5)
"""Rows of `ShiftSums.sums`."""


class ShiftSums:
    """Sums by group over the tokens of scored rows: |base|, |shift|, key weight x verdict, tokens, key weight squared.

    base = advantages - shift, shift = shift_scale * key_weight; a verdict is +1 or -1, tokens of unknown ones add 0 to
    the third and fourth. sums: spec -> (5, n_groups).
    """

    def __init__(self, specs: list[Spec], all_specs: list[Spec], n_groups: int):
        plan = column_plan(all_specs)
        at = {owner: name for name, owner in plan.items()}
        self.columns = {s: (at[s, "advantages"], at[s, "key_weight"]) for s in specs}
        self.scale = {s: spell_out(s).get("shift_scale", 1.0) for s in specs}
        self.sums = {s: np.zeros((5, n_groups)) for s in specs}

    def add(self, group: np.ndarray, verdict: np.ndarray, lengths: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Add rows (n_rows,) with the results of their tokens, which are 0 off the mask."""
        self.add_tokens(np.repeat(group, lengths), np.repeat(verdict, lengths), found)

    def add_tokens(self, group: np.ndarray, verdict: np.ndarray, found: dict[str, np.ndarray]) -> None:
        """Add the results of tokens (n_tokens,) with their group and verdict; off the mask the verdict must be -1."""
        sign = np.array([-1.0, 1.0, 0.0])[verdict]
        for spec, sums in self.sums.items():
            advantages, weight = (found[name].astype(np.float64) for name in self.columns[spec])
            shift = self.scale[spec] * weight
            base = advantages - shift
            values = (np.abs(base), np.abs(shift), weight * sign, np.abs(sign), weight * weight)
            for row, value in zip(sums, values, strict=True):
                row += np.bincount(group, value, len(row))

    def share(self, spec: Spec, mixed: np.ndarray) -> float | None:
        """Return sum |shift| / (sum |base| + sum |shift|) over the tokens of mixed groups."""
        base, shift = self.sums[spec][[BASE, SHIFT]][:, mixed].sum(1)
        return float(shift / (base + shift)) if base + shift > 0 else None

    def agreement(self, spec: Spec, mixed: np.ndarray) -> float | None:
        """Return the mean of key weight x verdict over the tokens of mixed groups."""
        total, tokens = self.sums[spec][[SIGNED, TOKENS]][:, mixed].sum(1)
        return float(total / tokens) if tokens else None
