"""Vocabularies and batches as literals: byte-level pieces, split characters and special tokens included."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, models

from ktae_cli.token_text import BytesDecoder, byte_alphabet, byte_level_bytes, load_tokenizer
from ktae_cli.units.base import Occurrences, TokenBatch, UnitReader
from tests.helpers import SHARED

_GLYPHS = {byte: glyph for glyph, byte in byte_alphabet().items()}


def decoder_of(pieces: Sequence[str | bytes], specials: Sequence[str] = ()) -> BytesDecoder:
    """Return a decoder whose id n is piece n; special tokens have the ids behind them."""
    entries = ["".join(_GLYPHS[byte] for byte in _data(piece)) for piece in pieces]
    tokenizer = Tokenizer(models.WordLevel({entry: number for number, entry in enumerate(entries)}, entries[0]))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    return BytesDecoder(tokenizer, byte_level_bytes)


@cache
def qwen() -> BytesDecoder:
    """Return the Qwen2.5 tokenizer beside the project."""
    return load_tokenizer(SHARED / "data/tokenizer/qwen2_tokenizer.json")


def _data(piece: str | bytes) -> bytes:
    return piece if isinstance(piece, bytes) else piece.encode()


def batch_of(rows: Sequence[Sequence[int]], mask: Sequence[Sequence[bool]] | None = None, **fields) -> TokenBatch:
    """Return a batch of rows of ids."""
    return TokenBatch(
        np.array([i for row in rows for i in row], np.int32),
        np.array([len(row) for row in rows], np.int64),
        None if mask is None else np.array([kept for row in mask for kept in row], bool),
        **fields,
    )


def texts_batch(rows: Sequence[Sequence[str | bytes]], **fields) -> tuple[TokenBatch, BytesDecoder]:
    """Return rows written as pieces, and the decoder of just these pieces."""
    pieces = list(dict.fromkeys(piece for row in rows for piece in row)) or ["x"]
    return batch_of([[pieces.index(piece) for piece in row] for row in rows], **fields), decoder_of(pieces)


def named(reader: UnitReader, found: Occurrences) -> list[tuple[str, int, int]]:
    """Return occurrences as (text, row, position)."""
    texts = [reader.vocabulary.text(code) for code in found.unit.tolist()]
    return list(zip(texts, found.rollout.tolist(), found.position.tolist(), strict=True))
