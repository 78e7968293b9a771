"""KT309: responses that end in a loop."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT309", needs=("response_ids",), severity="warning", sees="rows")
def repetition_loops(input: Input, *, share: float = 0.02, tokens: int = 64, period: int = 32) -> Watch:
    """Responses end in a loop, more than `share` of all (default 0.02).

    A loop: the last `tokens` (default 64) ids repeat what stands 1 to `period` (default 32) places before. Hundreds of
    copies of a few tokens enter their counts, and a cut response is graded wrong for them. Look at sampling
    (temperature, repetition) and at the length limit. Runs of padding or end-of-text ids are KT303's and KT304's.
    """
    marks = Marks()
    skip = np.array([*input.eos_ids, *input.pad_ids], np.int64)
    while rows := (yield):
        long = np.flatnonzero(rows.lengths >= tokens + period)
        tails = rows.ids[(rows.ends[long] - tokens - period)[:, None] + np.arange(tokens + period)]
        loops = np.zeros(len(long), np.int64)
        for distance in range(period, 0, -1):
            same = (tails[:, period:] == tails[:, period - distance : period - distance + tokens]).all(1)
            loops[same] = distance
        bad, length = np.zeros(len(rows.numbers), bool), np.zeros(len(rows.numbers), np.int64)
        bad[long], length[long] = (loops > 0) & ~np.isin(tails[:, -1:], skip).any(1), loops
        marks.add(rows, bad, lambda row, length=length: f"of {length[row]} token(s)", rows.lengths > 0)
    yield from marks.findings("responses end in a loop", "look at the sampling and the length limit", share)
