"""KT302: padding before the end of a response."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT302", needs=("response_ids", "padding"), severity="warning", sees="rows")
def padding_inside(input: Input) -> Watch:
    """Padding ids stand before other tokens of the response.

    The policy is said to have sampled them. Left padding that was not cut, or two sequences joined with their padding:
    it would get advantages and be counted as a word of the policy. Cut it, or put response_mask false there. The ids
    come from the tokenizer or --pad-id; those that also end a text are left to KT304.
    """
    marks, pads = Marks(), np.array(sorted(set(input.pad_ids) - set(input.eos_ids)), np.int64)
    while rows := (yield):
        is_pad = np.isin(rows.ids, pads)
        last_word = np.zeros(len(rows.numbers), np.int64)
        words = np.flatnonzero(~is_pad)
        np.maximum.at(last_word, rows.row_of[words], words)
        inside = is_pad & rows.mask & (np.arange(len(rows.ids)) < last_word[rows.row_of])
        marks.add(
            rows,
            rows.any_token(inside),
            lambda row, rows=rows, inside=inside: f"id {rows.ids[rows.first_token(row, inside)]}",
        )
    yield from marks.findings("responses hold padding before their end", "cut it, or put response_mask false there")
