"""KT312: ids that the tokenizer does not have."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT312", needs=("response_ids", "tokenizer"), severity="error", sees="rows")
def unknown_ids(input: Input) -> Watch:
    """A response holds an id that the tokenizer does not have.

    The tokenizer is another model's, or lacks tokens that were added to the policy's: every text in the reports is in
    doubt, and end-of-text ids too. Give the policy's own with --tokenizer.
    """
    marks = Marks()
    size = max(input.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    while rows := (yield):
        odd = rows.ids > size
        marks.add(
            rows,
            rows.any_token(odd),
            lambda row, rows=rows, odd=odd: f"{rows.ids[rows.first_token(row, odd)]}, the last one is {size}",
            np.ones(len(rows.numbers), bool),
        )
    yield from marks.findings("responses hold an id that the tokenizer lacks", "give the policy's with --tokenizer")
