"""Units that are what a pattern finds in the decoded text."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import KtaeError
from ktae_cli.token_text import Decoder
from ktae_cli.units.base import Occurrences, TokenBatch, chunks, occurrences
from ktae_cli.units.text import BROKEN, Text, check_text, distinct_texts, text_of
from ktae_cli.units.vocabulary import TextVocabulary

_OPENS, _SAYS, _CLOSES = 1, 2, 3
"""Control characters put around a match; in the text itself they stand as U+001A."""


class RegexReader:
    """Read what a pattern finds in the text of each run: each distinct text found is a unit.

    Where the pattern has a group, the unit is what its first group holds. The position is the token of the first byte
    of the whole match. Matches do not overlap; those whose unit is empty are none. Syntax and meaning are RE2's
    (github.com/google/re2/wiki/Syntax), which searches in linear time whatever the pattern and the text: it has no
    look-around and no back-references, and its \\w, \\d and \\b know ASCII alone (\\pL is any letter).
    """

    def __init__(self, pattern: str, decoder: Decoder):
        check_text(decoder, None, "--unit regex")
        self.replacement = f"\x01\\0\x02\\{1 if has_group(pattern) else 0}\x03"
        self.pattern, self.decoder, self.vocabulary = pattern, decoder, TextVocabulary()

    def read(self, batch: TokenBatch) -> Occurrences:
        """Return every match."""
        check_text(self.decoder, batch, "--unit regex")
        units, tokens = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for offset, rows in chunks(batch):
            text = text_of(rows, self.decoder)
            found, index, starts = self._matches(text)
            units.append(self.vocabulary.encode(found)[index])
            tokens.append(text.token[text.entry_at(starts)] + offset)
        return occurrences(np.concatenate(units), np.concatenate(tokens), batch)

    def _matches(self, text: Text) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Return (distinct texts, which one each match holds, first byte of each match)."""
        data = np.where((text.data >= _OPENS) & (text.data <= _CLOSES), np.uint8(BROKEN), text.data)
        between = np.flatnonzero(text.token < 0)
        # Runs and the line feeds between them take turns.
        borders = np.concatenate([[0], text.starts[np.stack([between, between + 1], 1).ravel()], [len(data)]])
        runs = pa.LargeStringArray.from_buffers(len(borders) - 1, pa.py_buffer(borders), pa.py_buffer(data))
        marked = pc.replace_substring_regex(runs, pattern=self.pattern, replacement=self.replacement)
        out = np.frombuffer(marked.buffers()[2] or b"", np.uint8)[: np.frombuffer(marked.buffers()[1], np.int64)[-1]]
        opens, says, closes = (np.flatnonzero(out == sign) for sign in (_OPENS, _SAYS, _CLOSES))
        added = np.cumsum(closes - says + 2)
        starts = opens - (added - (closes - says + 2))
        real = (closes > says + 1) & ~np.isin(starts, text.starts[between])
        found, index = distinct_texts(out, says[real] + 1, closes[real])
        return found, index, starts[real]


def has_group(pattern: str) -> bool:
    """Tell whether a pattern has a group; raise `KtaeError` where it is no pattern of RE2."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        reason = re.sub(r"\s+", " ", str(error)).removeprefix("Invalid regular expression: ")
        raise KtaeError(
            f"--unit {f'regex:{pattern}'!r}: no regular expression ({reason}); the syntax is RE2's, "
            "without look-around and back-references"
        ) from None
    try:
        pc.replace_substring_regex(pa.array([""]), pattern=pattern, replacement="\\1")
    except pa.ArrowException:
        return False
    return True
