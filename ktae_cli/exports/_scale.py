"""`--normalize`: one shift and one scale for each row, from the policy tokens of its training step."""

from fractions import Fraction
from math import fsum, sqrt

import numpy as np

from ktae_cli.exports._survey import Facts

EPSILON = 1e-8


def no_scale(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (shift, scale) that change nothing."""
    return np.zeros(n_rows), np.ones(n_rows)


def row_scales(facts: Facts, rows: np.ndarray, normalize: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (shift, scale) of every row, so that a value a becomes (a - shift) * scale.

    batch: (a - m) / sqrt(v + 1e-8), m and v the mean and the unbiased variance over the policy tokens of the exported
    rows of one `step`, each token once, as verl's `masked_whiten` has them; rows without a step, or all rows of a file
    without one, are a step of their own. token: a / sqrt(v + 1e-8) with the same v: no shift, so that every token keeps
    its sign and zeros stay zeros. v is 0 for fewer than two tokens. Unscored rows take no part and stay 0.

    Sums run exactly over the rows' own sums (`math.fsum`), so that they do not depend on the order of the rows.
    """
    shift, scale = no_scale(len(facts.steps))
    rows = rows[~facts.unscored[rows]]
    by_step: dict[int | None, list[int]] = {}
    for row in rows.tolist():
        by_step.setdefault(facts.steps[row], []).append(row)
    for own in by_step.values():
        mean, variance = _moments(facts.policy_tokens[own], facts.total[own], facts.squares[own])
        shift[own] = mean if normalize == "batch" else 0.0
        scale[own] = 1.0 / sqrt(variance + EPSILON)
    return shift, scale


def _moments(n: np.ndarray, total: np.ndarray, squares: np.ndarray) -> tuple[float, float]:
    count, both = int(n.sum()), Fraction(fsum(total))
    if count < 2:
        return (float(both) if count else 0.0), 0.0
    spread = Fraction(fsum(squares)) - both**2 / count
    return float(both / count), max(float(spread / (count - 1)), 0.0)
