"""Decoding and encoding whole batches with the tokenizer of the input."""

import numpy as np

from ktae_cli.checks._rows import Rows

_PADDING = (
    "<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>", "<|PAD_TOKEN|>", "<|vision_pad|>",
    "<｜▁pad▁｜>", "<unused0>",
)  # fmt: skip
"""Names that the model families in use give to the padding token."""


def padding_ids(tokenizer) -> tuple[int, ...]:
    """Return the padding ids that a tokenizer names or is set to."""
    if tokenizer is None:
        return ()
    named = [tokenizer.token_to_id(name) for name in _PADDING]
    chosen = (tokenizer.padding or {}).get("pad_id")
    return tuple(sorted({i for i in (*named, chosen) if i is not None}))


def special_texts(tokenizer) -> tuple[str, ...]:
    """Return the texts of the tokens that a tokenizer marks as special, the longest first."""
    added = tokenizer.get_added_tokens_decoder().values()
    return tuple(sorted((token.content for token in added if token.special), key=len, reverse=True))


def without_trailing_specials(text: str, tokenizer) -> str:
    """Return a text without special tokens and blanks at its end."""
    specials = special_texts(tokenizer)
    while special := next((s for s in specials if text.endswith(s)), None):
        text = text.removesuffix(special).rstrip()
    return text


def decode_rows(rows: Rows, tokenizer) -> tuple[list[str | None], list[str | None]]:
    """Return each row's ids as text with and without special tokens; None where they are no ids, or there are none."""
    fine = (rows.lengths > 0) & ~rows.any_token((rows.ids < 0) | (rows.ids > 2**31 - 1))
    chosen = np.flatnonzero(fine).tolist()
    ids = [rows.ids[rows.ends[row] - rows.lengths[row] : rows.ends[row]].tolist() for row in chosen]
    found = []
    for skip in (False, True):
        texts: list[str | None] = [None] * len(rows.numbers)
        for row, text in zip(chosen, tokenizer.decode_batch(ids, skip_special_tokens=skip), strict=True):
            texts[row] = text
        found.append(texts)
    return found[0], found[1]
