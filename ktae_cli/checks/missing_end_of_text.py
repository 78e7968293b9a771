"""KT305: finished responses without their end-of-text id."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT305", needs=("response_ids", "end-of-text"), severity="warning", sees="rows")
def missing_end_of_text(input: Input, *, share: float = 0.1) -> Watch:
    """Finished responses lack the end-of-text id at their end.

    Reported for more than `share` (default 0.1) of the responses that were not cut off. The decision to stop then gets
    no advantage, and a policy trained on such rows unlearns it; a mask made by looking for the id takes in the padding.
    Keep the id when writing responses, and finish_reason, so that cut ones are known. The ids come from the tokenizer
    or --eos-id; trailing padding is looked through.
    """
    marks, ends, pads = Marks(), np.array(input.eos_ids, np.int64), np.array(input.pad_ids, np.int64)
    while rows := (yield):
        last, run = rows.tail_runs
        before = np.maximum(rows.ends - run - 1, 0)
        behind = rows.ids[before] if len(rows.ids) else last
        last = np.where(np.isin(last, pads) & ~np.isin(last, ends) & (run < rows.lengths), behind, last)
        finished = (rows.lengths > 0) & ~rows.truncated
        marks.add(rows, finished & ~np.isin(last, ends), lambda row, last=last: f"the last id is {last[row]}", finished)
    yield from marks.findings(
        "finished responses lack an end-of-text id at their end",
        "the decision to stop gets no advantage; keep the id, and finish_reason for those cut off",
        share,
    )
