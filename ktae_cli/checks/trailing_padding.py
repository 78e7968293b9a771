"""KT303: padding at the end of a response."""

import numpy as np

from ktae_cli.checks._rows import Input, Rows
from ktae_cli.checks.base import Finding, Marks, Watch, of, rule


@rule(id="KT303", needs=("response_ids",), severity="warning", sees="rows")
def trailing_padding(input: Input, *, run: int = 3) -> Watch:
    """Responses end in padding.

    The padding ids come from the tokenizer or --pad-id. Of other ids, one that stands `run` (default 3) times in a row
    or more at the end of at least two responses, and nowhere else in them or in later ones, is taken for padding too.
    It would get advantages and enter lengths and token counts. Cut it with the attention mask or the length that the
    trainer has. End-of-text ids are KT304's.
    """
    marks, known = Marks(), np.array(sorted(set(input.pad_ids) - set(input.eos_ids)), np.int64)
    tails = _Tails(run, {*input.eos_ids, *input.pad_ids})
    while rows := (yield):
        last, _ = rows.tail_runs
        marks.add(rows, np.isin(last, known), lambda row, last=last: f"id {last[row]}", rows.lengths > 0)
        tails.add(rows)
    yield from marks.findings("responses end in padding", "cut it: it would get advantages and be counted")
    for token_id, (count, row, elsewhere) in tails.found.items():
        if count > 1 and not elsewhere:
            what = f"responses end in a run of id {token_id}, which stands nowhere else: padding; cut it"
            yield Finding(f"{of(count, marks.of)} {what}", row, count, marks.of)


class _Tails:
    """Ids that end responses in a run: how many responses, the first of them, and how often they stand elsewhere."""

    def __init__(self, run: int, skip: set[int]):
        self.run, self.skip = run, skip
        self.found: dict[int, list[int]] = {}

    def add(self, rows: Rows) -> None:
        """Count the responses of a batch."""
        last, length = rows.tail_runs
        for row in np.flatnonzero(length >= self.run).tolist():
            if int(last[row]) not in self.skip:
                entry = self.found.setdefault(int(last[row]), [0, int(rows.numbers[row]), 0])
                entry[0] += 1
        before = np.arange(len(rows.ids)) < (rows.ends - length)[rows.row_of]
        ids, times = np.unique(rows.ids[before & np.isin(rows.ids, list(self.found))], return_counts=True)
        for token_id, count in zip(ids.tolist(), times.tolist(), strict=True):
            self.found[token_id][2] += count
