"""KT304: end-of-text ids in a row at the end."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT304", needs=("response_ids", "end-of-text"), severity="warning", sees="rows")
def padded_with_end_of_text(input: Input) -> Watch:
    """Responses end in two or more end-of-text ids: the padding is the end-of-text id.

    The policy sampled the first one at most; the others are padding that would get advantages, and a mask made by
    looking for the last one is wrong. Cut after the first, or put response_mask false on the rest. The ids come from
    the tokenizer or --eos-id.
    """
    marks, ends = Marks(), np.array(input.eos_ids, np.int64)
    while rows := (yield):
        last, run = rows.tail_runs
        bad = np.isin(last, ends) & (run > 1)
        marks.add(rows, bad, lambda row, last=last, run=run: f"id {last[row]} {run[row]} times", rows.lengths > 0)
    yield from marks.findings("responses end in several end-of-text ids: padding", "cut after the first")
