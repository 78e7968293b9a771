"""KT307: ids that do not decode to the text beside them."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks._tokenizer import decode_rows, without_trailing_specials
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT307", needs=("response_ids", "response", "tokenizer"), severity="warning", sees="rows")
def text_drift(input: Input, *, rollouts: int = 2000) -> Watch:
    """The ids of a response do not decode to its text: another tokenizer, an edited text, or a row mixed up.

    Looked at: the first `rollouts` (default 2000). Special tokens may be in the text or left out, and blanks at its
    ends are not compared. The verdict belongs to the text, the advantages to the ids; when they part, tokens of another
    text get the credit. Give the tokenizer that the policy used, or write both from the same ids.
    """
    marks = Marks()
    while rows := (yield):
        if marks.of >= rollouts:
            continue
        texts = rows.texts("response")
        shown, plain = decode_rows(rows, input.tokenizer)
        here = np.array([text is not None and s is not None for text, s in zip(texts, shown, strict=True)], bool)
        bad = here.copy()
        for row in np.flatnonzero(here).tolist():
            text = texts[row].strip()
            cut = without_trailing_specials(text, input.tokenizer)
            bad[row] = text not in (shown[row].strip(), plain[row].strip()) and cut not in (
                without_trailing_specials(shown[row].strip(), input.tokenizer),
                plain[row].strip(),
            )
        marks.add(rows, bad, lambda row, t=texts, s=shown: _first_difference(t[row], s[row]), here)
    yield from marks.findings("responses are not what their ids decode to", "is it the policy's tokenizer?")


def _first_difference(text: str, decoded: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, decoded, strict=False)) if a != b), min(len(text), len(decoded)))
    return f"from character {at} on {text[at : at + 12]!r} for {decoded[at : at + 12]!r}"
