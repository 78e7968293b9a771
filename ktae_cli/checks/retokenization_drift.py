"""KT308: ids that the tokenizer would not choose."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks._tokenizer import decode_rows
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT308", needs=("response_ids", "tokenizer"), severity="note", sees="rows")
def retokenization_drift(input: Input, *, rollouts: int = 1000, share: float = 0.01) -> Watch:
    """Responses become other ids when their text is encoded again, more than `share` of all (default 0.01).

    Looked at: the first `rollouts` (default 1000), special tokens aside. The policy may sample any split of a text, so
    this is no fault; it says what a dump of text alone would lose: in these rows advantages would land on other tokens.
    Keep the ids, and pass them on as they are.
    """
    marks = Marks()
    while rows := (yield):
        if marks.of >= rollouts:
            continue
        _, plain = decode_rows(rows, input.tokenizer)
        specials = np.array([i for i, t in input.tokenizer.get_added_tokens_decoder().items() if t.special], np.int64)
        here = np.array([text is not None and "\ufffd" not in text for text in plain], bool)
        chosen = np.flatnonzero(here).tolist()
        encoded = input.tokenizer.encode_batch([plain[row] for row in chosen], add_special_tokens=False)
        bad = np.zeros(len(rows.numbers), bool)
        for row, again in zip(chosen, encoded, strict=True):
            own = rows.ids[rows.ends[row] - rows.lengths[row] : rows.ends[row]]
            bad[row] = own[~np.isin(own, specials)].tolist() != again.ids
        marks.add(rows, bad, None, here)
    yield from marks.findings(
        "responses become other ids when their text is encoded again", "pass ids on, not text", share
    )
