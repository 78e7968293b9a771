"""KT301: lists of one rollout that are not equally long."""

import numpy as np

from ktae_cli.checks._rows import Input, Rows
from ktae_cli.checks.base import Marks, Watch, rule
from ktae_cli.schema import COLUMNS

_BESIDE = tuple(column.name for column in COLUMNS if column.level == "token" and column.name != "response_ids")


@rule(id="KT301", needs=("response_ids",), severity="error", sees="rows")
def unequal_lengths(input: Input) -> Watch:
    """A per-token list is not as long as response_ids.

    Which value belongs to which token is then unknown: a stop token that one list has and the other lacks, or an offset
    of one between engine and trainer. Nothing is cut to fit. Repair what writes the lists; --on-mismatch drop leaves
    such rows out of a foreign dump.
    """
    marks = Marks()
    names = [name for name in _BESIDE if input.has(name)]
    while rows := (yield):
        lengths = {name: rows.lengths_of(name) for name in names}
        odd = {name: valid & (own != rows.lengths) for name, (own, valid) in lengths.items()}
        bad = np.any([*odd.values(), np.zeros(len(rows.numbers), bool)], axis=0)
        marks.add(rows, bad, lambda row, odd=odd, lengths=lengths, rows=rows: _shown(row, odd, lengths, rows))
    yield from marks.findings("rollouts have lists of unequal length", "repair what writes them")


def _shown(row: int, odd: dict, lengths: dict, rows: Rows) -> str:
    name = next(name for name in odd if odd[name][row])
    return f"{name} has {lengths[name][0][row]} values for {rows.lengths[row]} response_ids"
