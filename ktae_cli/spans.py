"""Where the decoded text of a response can be cut: marks of a token's text, one byte a token.

Ends have levels, and each level has the ends of those above it: a paragraph ends a line, a line ends a sentence, a
sentence ends a clause. A mark holds, from the lowest bit: the highest level of an end inside the text (three bits), the
level in which the text closes (two bits), how it starts (two bits), and whether it is all white space (one bit).
What a text closes in is an end if the next token agrees: the dot of 3.14 ends nothing, nor does one line break end a
paragraph.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

CLAUSE, SENTENCE, LINE, PARAGRAPH = 1, 2, 3, 4
"""Levels of an end."""

STARTS_BLANK, STARTS_LINE = 1, 2
"""How a text starts: with white space, or with nothing but white space before a line break."""

CLOSES_AT, STARTS_AT, BLANK_AT = 3, 5, 7
"""First bit of each part of a mark; the level inside is at bit 0."""

_CLOSERS = "[\"'”’»)\\]}$*_]*"
_INSIDE = (
    (PARAGRAPH, re.compile(r"\n[ \t\r]*\n")),
    (LINE, re.compile(r"\n")),
    (SENTENCE, re.compile(rf"[.!?…؟]{_CLOSERS}\s|[。｡！？।॥]")),
    (CLAUSE, re.compile(rf"[,;:،؛]{_CLOSERS}\s|[，、；：]")),
)
_CLOSES = (
    (LINE, re.compile(r"\n[ \t\r]*\Z")),
    (SENTENCE, re.compile(rf"[.!?…؟]{_CLOSERS}\Z")),
    (CLAUSE, re.compile(rf"[,;:،؛]{_CLOSERS}\Z")),
)
_STARTS = ((STARTS_LINE, re.compile(r"[ \t\r]*\n")), (STARTS_BLANK, re.compile(r"\s")))


@lru_cache(maxsize=1 << 16)
def marks_of(text: str) -> int:
    """Return the mark of one token's text, a byte.

    The dots of abbreviations and list numbers (`e.g. `, `1. `) count as ends; a character whose bytes are split over
    tokens does not.
    """
    inside = next((level for level, pattern in _INSIDE if pattern.search(text)), 0)
    closes = next((level for level, pattern in _CLOSES if pattern.search(text)), 0)
    starts = next((kind for kind, pattern in _STARTS if pattern.match(text)), 0)
    return inside | closes << CLOSES_AT | starts << STARTS_AT | text.isspace() << BLANK_AT


def marks_of_ids(ids: np.ndarray, text_of: Callable[[int], str | None]) -> np.ndarray:
    """Return the marks of each id (n_tokens,) uint8; text_of is asked once for each distinct id."""
    distinct, place = np.unique(ids, return_inverse=True)
    marks = np.array([marks_of(text_of(i) or "") for i in distinct.tolist()], np.uint8)
    return marks[place] if len(ids) else np.zeros(0, np.uint8)


def marks_of_texts(texts: Sequence[str | None]) -> np.ndarray:
    """Return the marks of each text (n_tokens,) uint8; a text that is absent has none."""
    return np.array([marks_of(text or "") for text in texts], np.uint8)
