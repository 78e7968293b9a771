"""The text of counted tokens as one run of bytes, and which token carries each byte."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ktae_cli.errors import MissingColumnError
from ktae_cli.readers.base import decode_dictionary
from ktae_cli.token_text import (
    BytesDecoder,
    Decoder,
    IdDecoder,
    StoredDecoder,
    Token,
    stored_alphabet,
    token_of_bytes,
)
from ktae_cli.units.base import TokenBatch, runs_of

BROKEN = 0x1A
"""The byte that stands for each byte of no character."""


class Text(NamedTuple):
    """The tokens of a batch as UTF-8, in order, with a line feed between runs that no token carries."""

    data: np.ndarray  # (n_bytes,) uint8, valid UTF-8; a byte of no character is U+001A
    starts: np.ndarray  # (n_entries + 1,) int64 first byte of each token or line feed between
    token: np.ndarray  # (n_entries,) int64 flat index of the token, -1 for a line feed between
    whole: np.ndarray  # (n_entries,) bool, a special token or a bare id: never part of a word

    def entry_at(self, byte: np.ndarray) -> np.ndarray:
        """Return the entry that carries each byte (n,)."""
        return np.searchsorted(self.starts, byte, "right") - 1


class Entries(NamedTuple):
    """Distinct vocabulary entries of a batch and the one of each token (n_tokens,) int64."""

    tokens: list[Token]
    index: np.ndarray


def check_text(decoder: Decoder, batch: TokenBatch | None, what: str) -> None:
    """Raise `MissingColumnError` where no text of single tokens is known."""
    if isinstance(decoder, IdDecoder) or (
        isinstance(decoder, StoredDecoder) and batch is not None and batch.stored is None
    ):
        raise MissingColumnError(
            f"{what} needs the text of tokens: give --tokenizer PATH, or a dump with response_tokens"
        )


def text_of(batch: TokenBatch, decoder: Decoder) -> Text:
    """Return the text of the counted tokens of a batch."""
    tokens, index = entries_of(batch, decoder)
    kept, first = runs_of(batch)
    between = np.flatnonzero(first)[1:]
    index = np.insert(index[kept], between, len(tokens))
    token = np.insert(kept, between, -1)
    taken = pa.array([*(token.data for token in tokens), b"\n"], pa.large_binary()).take(pa.array(index))
    _, offsets, data = taken.buffers()
    starts = np.frombuffer(offsets, np.int64)[: len(index) + 1] if len(index) else np.zeros(1, np.int64)
    whole = np.array([token.kind != "text" for token in tokens] + [False])
    return Text(_whole_characters(np.frombuffer(data or b"", np.uint8)[: starts[-1]]), starts, token, whole[index])


def entries_of(batch: TokenBatch, decoder: Decoder) -> Entries:
    """Return the distinct entries of a batch, each looked up once."""
    if isinstance(decoder, StoredDecoder):
        return _stored_entries(batch.stored)
    if isinstance(decoder, BytesDecoder):
        encoded = pa.array(batch.token_ids).dictionary_encode()
        tokens = [decoder.token(token_id) for token_id in encoded.dictionary.to_pylist()]
        return _opened(Entries(tokens, np.asarray(encoded.indices).astype(np.int64)), batch, decoder)
    return _piece_entries(batch, decoder)


def _stored_entries(stored: pa.Array) -> Entries:
    encoded = decode_dictionary(stored).cast(pa.large_string()).dictionary_encode()
    texts = [text.decode("utf-8", "replace") for text in encoded.dictionary.cast(pa.large_binary()).to_pylist()]
    to_bytes = stored_alphabet(texts)
    tokens = [
        Token(text.encode(), text, "special") if looks_special(text) else token_of_bytes(to_bytes(text))
        for text in texts
    ]
    absent = Token(bytes([BROKEN]), None)
    return Entries([*tokens, absent], np.asarray(encoded.indices.fill_null(len(tokens))).astype(np.int64))


def looks_special(text: str) -> bool:
    """Tell whether a token is special by its text alone: <|im_end|>, </s>, [PAD]."""
    return any(piece.kind == "special" for piece in StoredDecoder().pieces([0], [text]))


def _opened(entries: Entries, batch: TokenBatch, decoder: BytesDecoder) -> Entries:
    """Drop the blanks that the tokenizer's own decode drops from the first token of a text."""
    if not (decoder.strip or decoder.bare_start):
        return entries
    tokens, index = entries
    first = batch.starts[:-1][batch.lengths > 0]
    opening, which = np.unique(index[first], return_inverse=True)
    index[first] = len(tokens) + which
    return Entries([*tokens, *(_bare(tokens[at], decoder) for at in opening.tolist())], index)


def _bare(token: Token, decoder: BytesDecoder) -> Token:
    if token.kind != "text":
        return token
    data = token.data.replace(b" ", b"") if decoder.bare_start else token.data
    kept = data[: decoder.strip].lstrip(b" ") + data[decoder.strip :]
    return token_of_bytes(kept)


def _piece_entries(batch: TokenBatch, decoder: Decoder) -> Entries:
    """Return entries from pieces, row by row: of tokens that share a character the first carries all of it."""
    known: dict[tuple[str, str], int] = {("", "text"): 0}
    index = np.zeros(len(batch.token_ids), np.int64)
    starts = batch.starts.tolist()
    for row in range(len(batch.lengths)):
        for piece in decoder.pieces(batch.token_ids[starts[row] : starts[row + 1]]):
            kind = piece.kind if piece.kind in ("special", "id") else "text"
            index[starts[row] + piece.start] = known.setdefault((piece.text, kind), len(known))
    return Entries([Token(text.encode(errors="replace"), text, kind) for text, kind in known], index)


def _whole_characters(data: np.ndarray) -> np.ndarray:
    """Return bytes with each one that belongs to no character replaced, the length unchanged."""
    raw = data.tobytes()
    try:
        raw.decode()
        return data
    except UnicodeDecodeError:
        fixed = raw.decode("utf-8", "surrogateescape").translate(_BROKEN_BYTES).encode()
        return np.frombuffer(fixed, np.uint8)


_BROKEN_BYTES = dict.fromkeys(range(0xDC80, 0xDD00), chr(BROKEN))


def characters(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (code points, first byte of each) of valid UTF-8."""
    if not (data >= 0x80).any():
        return data, np.arange(len(data))
    points = np.frombuffer(data.tobytes().decode().encode("utf-32-le"), "<u4")
    return points, np.flatnonzero((data & 0xC0) != 0x80)


def distinct_texts(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts of stretches of bytes and which one each is (n,); stretches do not overlap."""
    if not len(starts):
        return [], np.zeros(0, np.int64)
    offsets = np.stack([starts, stops], 1).astype(np.int64).ravel()
    # Every second value is the text between two stretches.
    both = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    ).dictionary_encode()
    used, index = np.unique(np.asarray(both.indices)[::2], return_inverse=True)
    return [text.decode("utf-8", "replace") for text in both.dictionary.take(pa.array(used)).to_pylist()], index
