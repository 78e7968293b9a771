"""KT201: rewards that do not fall into right and wrong by themselves."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, rule

_SHOWN = 6


@rule(id="KT201", needs=("reward",), severity="warning", sees="table")
def unclear_verdicts(table: Table) -> Iterator[Finding]:
    """There is no verdict column, and the rewards are not two values with the threshold between them.

    `correct` is then reward > --correct-threshold: a format bonus of 0.1 makes a wrong answer right, and with 1 and 5
    all are right. Key tokens rest on the verdict. Give the verdict with --map correct=COLUMN, or the threshold.
    """
    if table.input.has("correct"):
        return
    threshold = table.input.threshold
    known = table.take(~np.isnan(table.reward))
    values, first = np.unique(known.reward, return_index=True)
    if len(values) < 2 or (len(values) == 2 and values[0] <= threshold < values[1]):
        return
    above_threshold = int(np.searchsorted(values, threshold, "right"))
    odd = first[above_threshold if len(values) > 2 and above_threshold < len(values) else 0]
    shown = ", ".join(f"{value:g}" for value in values[:_SHOWN]) + (", …" if len(values) > _SHOWN else "")
    if len(values) > _SHOWN:
        shown = f"{values[0]:g} to {values[-1]:g}"
    above = int((known.reward > threshold).sum())
    yield Finding(
        f"no verdict column, and rewards are {shown}: {above:,} of {len(known):,} count as right, being above "
        f"{threshold:g}; give --correct-threshold, or --map correct=COLUMN",
        int(known.row[odd]),
        above,
        len(known),
    )
