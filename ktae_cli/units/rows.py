"""The counted text of one response after the other, and the token that carries each character."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ktae_cli.errors import MissingColumnError
from ktae_cli.token_text import Decoder, IdDecoder, StoredDecoder
from ktae_cli.units.base import TokenBatch, chunks
from ktae_cli.units.text import text_of


@dataclass(frozen=True)
class RowText:
    """One response: its text, and where its tokens begin in it; starts is None where no token's text is known."""

    text: str
    n_tokens: int
    starts: np.ndarray | None = None  # (n_entries,) int64 first byte
    position: np.ndarray | None = None  # (n_entries,) int64 place of the token in the response

    def token_of(self, character: int) -> int:
        """Return the token that carries a character, from 0; without text of tokens, in proportion to the length."""
        if self.starts is None:
            return character * self.n_tokens // max(len(self.text), 1)
        byte = character if self.text.isascii() else len(self.text[:character].encode())
        return int(self.position[np.searchsorted(self.starts, byte, "right") - 1])


def row_texts(batch: TokenBatch, decoder: Decoder, what: str) -> Iterator[RowText]:
    """Yield the text of each response's counted tokens, with a line feed between runs.

    From the decoder; where it knows no token's text, the response as the file holds it, masked tokens and all, whose
    tokens are taken to be equally long. Raises `MissingColumnError` where there is no text of either kind.
    """
    if isinstance(decoder, IdDecoder) or (isinstance(decoder, StoredDecoder) and batch.stored is None):
        if batch.texts is None:
            raise MissingColumnError(
                f"{what} needs text: give --tokenizer PATH, or a dump with response_tokens or response"
            )
        for text, n_tokens in zip(batch.texts, batch.lengths.tolist(), strict=True):
            yield RowText(text or "", n_tokens)
        return
    for _, rows in chunks(batch):
        yield from _rows(rows, decoder)


def _rows(batch: TokenBatch, decoder: Decoder) -> Iterator[RowText]:
    text = text_of(batch, decoder)
    raw = text.data.tobytes()
    row_of = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
    entry_row = np.where(text.token < 0, -1, row_of[np.maximum(text.token, 0)] if len(row_of) else -1)
    # A line feed between belongs to the row before it.
    entry_row = np.maximum.accumulate(entry_row)
    borders = np.searchsorted(entry_row, np.arange(len(batch.lengths) + 1)).tolist()
    begins, token_starts = text.starts, batch.starts.tolist()
    for row, n_tokens in enumerate(batch.lengths.tolist()):
        first, last = borders[row], borders[row + 1]
        last -= last > first and text.token[last - 1] < 0
        start, stop = int(begins[first]), int(begins[last])
        token = np.maximum.accumulate(text.token[first:last]) - token_starts[row]
        yield RowText(raw[start:stop].decode(), n_tokens, begins[first:last] - start, token)
