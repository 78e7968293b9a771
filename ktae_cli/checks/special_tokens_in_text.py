"""KT313: special tokens left in the text of a response."""

import numpy as np
import pyarrow.compute as pc

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule

_AT_THE_END = (
    r"(<\|im_end\|>|<\|endoftext\|>|<\|end_of_text\|>|<\|eot_id\|>|<\|end\|>|</s>|<eos>|<end_of_turn>|<pad>|\[PAD\]"
    r"|<\|return\|>|<｜end▁of▁sentence｜>)\s*$"
)


@rule(id="KT313", needs=("response",), severity="note", sees="rows")
def special_tokens_in_text(input: Input, *, share: float = 0.0) -> Watch:
    """Responses end in the text of a special token, as `<|im_end|>`, more than `share` of all (default: any).

    A format check that expects the text to end in its answer fails, and padding text slows graders down; `ktae verify`
    cuts it for grading and keeps it in the file. Graders of your own should cut it too.
    """
    marks = Marks()
    while rows := (yield):
        texts = rows.text("response")
        bad = np.asarray(pc.match_substring_regex(texts, _AT_THE_END).fill_null(False))
        marks.add(rows, bad, lambda row, texts=texts: repr(texts[row].as_py()[-24:]), np.asarray(texts.is_valid()))
    yield from marks.findings("responses end in the text of a special token", "cut it before grading", share)
