"""Units that are words of the decoded text."""

import unicodedata
from functools import cache

import numpy as np

from ktae_cli.token_text import Decoder
from ktae_cli.units.base import Occurrences, TokenBatch, chunks, occurrences
from ktae_cli.units.text import BROKEN, Text, characters, check_text, distinct_texts, text_of
from ktae_cli.units.vocabulary import TextVocabulary

BLANK, LETTER, MARK = 0, 1, 2

# Written without blanks between words: Hiragana, and Han with its extensions and iteration marks.
_ALONE = ((0x3005, 0x3007), (0x3041, 0x309F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFD))

# Beyond these, Unicode has no letters, digits, marks or symbols.
_ASSIGNED = ((0, 0x33480), (0xE0000, 0xE0200))


class WordReader:
    """Read the words of the text that counted tokens decode to.

    A word is a maximal run of letters, digits and marks (Unicode categories L, N and M). Every other character is a
    unit by itself: punctuation, symbols, underscores, each character of Han and Hiragana (as in Unicode's UAX 29), each
    byte of no character (shown as �). Blanks, control and format characters are no units and end words. A special token
    is one unit. Case is kept. A word may span tokens, never two runs; its position is the token of its first byte.
    """

    def __init__(self, decoder: Decoder):
        check_text(decoder, None, "--unit word")
        self.decoder, self.vocabulary = decoder, TextVocabulary()

    def read(self, batch: TokenBatch) -> Occurrences:
        """Return every word."""
        check_text(self.decoder, batch, "--unit word")
        units, tokens = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for offset, rows in chunks(batch):
            text = text_of(rows, self.decoder)
            starts, stops = word_spans(text)
            words, index = distinct_texts(text.data, starts, stops)
            units.append(self.vocabulary.encode(words)[index])
            tokens.append(text.token[text.entry_at(starts)] + offset)
        return occurrences(np.concatenate(units), np.concatenate(tokens), batch)


def word_spans(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """Return the first byte of each word and the byte behind it, (n,) int64 each."""
    points, at = characters(text.data)
    kinds = character_kinds()[points]
    begins = kinds == MARK
    letters = kinds == LETTER
    begins |= letters & ~np.concatenate([[False], letters[:-1]])
    goes_on = letters & ~begins
    if text.whole.any():
        entry = np.repeat(np.arange(len(text.whole)), np.diff(text.starts))[at]
        whole = text.whole[entry]
        opens = at == text.starts[entry]
        after = np.concatenate([[False], whole[:-1]])
        begins = np.where(whole, opens, begins | (letters & after))
        goes_on = np.where(whole, ~opens, goes_on & ~after)
    # A unit ends before the first character that does not go on with it.
    ends = ~goes_on
    first = np.flatnonzero(begins)
    following = np.append(np.flatnonzero(ends), len(at))[np.cumsum(ends)[first]]
    return at[first], np.append(at, len(text.data))[following]


@cache
def character_kinds() -> np.ndarray:
    """Return BLANK, LETTER or MARK of each code point (0x110000,) uint8."""
    kind_of = {"L": LETTER, "N": LETTER, "M": LETTER, "P": MARK, "S": MARK}
    kinds = np.full(0x110000, BLANK, np.uint8)
    for first, last in _ASSIGNED:
        kinds[first:last] = [kind_of.get(unicodedata.category(chr(point))[0], BLANK) for point in range(first, last)]
    for first, last in _ALONE:
        alone = kinds[first : last + 1]
        alone[alone == LETTER] = MARK
    kinds[BROKEN] = MARK
    return kinds
