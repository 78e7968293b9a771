"""Where the thought of a response ends and its answer begins."""

import numpy as np

from ktae_cli.token_text import Decoder
from ktae_cli.units.base import TokenBatch
from ktae_cli.units.rows import RowText, row_texts

CLOSING_TAGS = ("</think>", "</thinking>", "</thought>", "<|end_of_thought|>")
OPENING_TAGS = ("<think>", "<thinking>", "<thought>", "<|begin_of_thought|>")


def thought_end(text: str) -> int | None:
    """Return where the first closing tag of a thought begins and the thought with it ends, or None without one."""
    found = [at for at in map(text.find, CLOSING_TAGS) if at >= 0]
    return min(found) if found else None


def thought_lengths(batch: TokenBatch, decoder: Decoder) -> np.ndarray:
    """Return the tokens of each response's thought (n_rows,) int64.

    The thought reaches to the token of the last byte of its first closing tag. It is the whole response where a tag
    opens it and none closes it, and empty without a tag: then all is answer, also where a prompt opened a thought that
    was cut off.
    """
    lengths = np.zeros(len(batch.lengths), np.int64)
    for row, found in enumerate(row_texts(batch, decoder, "the thought of a response")):
        lengths[row] = _thought_length(found)
    return lengths


def _thought_length(found: RowText) -> int:
    end = thought_end(found.text)
    if end is not None:
        tag = next(tag for tag in CLOSING_TAGS if found.text.startswith(tag, end))
        return min(found.token_of(end + len(tag) - 1) + 1, found.n_tokens)
    return found.n_tokens if any(tag in found.text for tag in OPENING_TAGS) else 0
