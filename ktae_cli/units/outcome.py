"""Where a response settles its outcome: what is written behind that is a symptom, not a cause."""

import re

import numpy as np

from ktae_cli.errors import KtaeError
from ktae_cli.grading.answer import final_answer
from ktae_cli.token_text import Decoder
from ktae_cli.units.base import TokenBatch
from ktae_cli.units.places import counted
from ktae_cli.units.rows import row_texts
from ktae_cli.units.thought import thought_end

_DECLARES = re.compile(
    r"\\(?:boxed|fbox)\b|####|<answer>|答案|"
    r"^[ \t>*#]*(?:A|Ans)[*_ ]*[:：]|"
    r"\b(?:final[ \t]+)?answers?\b[^\n.,=:：]{0,60}?(?:\b(?:is|are|be)\b|[=:：]|(?=\n))",
    re.IGNORECASE | re.MULTILINE,
)
"""What says that an answer follows: a box, ####, an answer tag, "A:", "Answer:", "the answer … is", a heading."""

_MARKUP = re.compile(r"(?:[\s*_#:：$>]|\\[\[(]){0,40}")
_OPENED = re.compile(r"(?:\\\[|\$\$|\\begin\{[a-z]{1,12}\*?\})\s*\Z")
_SENTENCE_END = re.compile(r"[.!?…؟][\"'”’»)\]}$*_]*\s+|[。！？]")
_STATEMENT_END = re.compile(r"\n|[.!?…؟]\s|[。！？]")
_GIVES = re.compile(r"(?:[=≈]|\b(?:is|are|be|equals))[ \t$*\\(\[{]*\Z")
_STATEMENT = 200
"""Characters behind a marker, beyond the length of the answer, in which it is looked for."""
_LAST_CHARACTERS = 2000
_MOST_PLACES = 200
"""Places of an answer's text that are looked at: that of `1` stands everywhere."""


def check_before(before: str) -> None:
    """Raise `KtaeError` where a value of --before is none."""
    if before != "outcome" and not re.fullmatch("[1-9]", before):
        raise KtaeError(f"--before {before!r}: expected outcome, or a number of deciles from 1 to 9")


def before_positions(batch: TokenBatch, before: str, decoder: Decoder) -> np.ndarray:
    """Return how many tokens of each response stand before (n_rows,) int64; those from there on are not counted.

    outcome: `settled_positions`. D from 1 to 9: the first D tenths of the counted tokens, rounded up.
    """
    check_before(before)
    if before == "outcome":
        return settled_positions(batch, decoder)
    rank, count = counted(batch)
    stands = rank * 10 < count * int(before)
    if batch.mask is not None:
        stands &= batch.mask
    position = np.arange(len(rank)) - np.repeat(batch.starts[:-1], batch.lengths)
    lengths = np.zeros(len(batch.lengths), np.int64)
    np.maximum.at(lengths, np.repeat(np.arange(len(lengths)), batch.lengths)[stands], position[stands] + 1)
    return lengths


def settled_positions(batch: TokenBatch, decoder: Decoder) -> np.ndarray:
    """Return how many tokens of each response are written before it settles its outcome (n_rows,) int64.

    The place is that of `settled_at` in the text of the counted tokens; a response that settles nothing counts whole.
    The text is the decoder's; where it knows no token's text, the file's response, whose tokens are then taken to be
    equally long. Raises `MissingColumnError` where there is no text of either kind.
    """
    positions = batch.lengths.astype(np.int64)
    for row, found in enumerate(row_texts(batch, decoder, "before=outcome")):
        at = settled_at(found.text) if found.text else None
        if at is not None:
            positions[row] = found.token_of(at)
    return positions


def settled_at(text: str) -> int | None:
    """Return the character from which a response only repeats its outcome, or None where it settles none.

    That is the start of the sentence or line that first declares its final answer, which is the grader's
    (`grading.answer.final_answer`):
    - the first box, ####, answer tag, "A:", "Answer:", "the answer is" or heading "Final Answer" whose statement (what
      follows to the end of the sentence or line) holds the answer's text as a whole word, or the first closing tag of a
      thought, whichever stands first;
    - without either, the first place where the answer stands as a whole word behind =, ≈, "is", "are", "be" or
      "equals";
    - without one, the sentence of the last 2,000 characters that last holds it as a whole word.
    The text is compared as it is written: a declaration of 0.5 does not declare 1/2. The last line of a response with a
    fenced block of code is no answer.
    """
    end = thought_end(text)
    answer = final_answer(text)
    if not answer or not answer.text or (answer.where == "last_line" and "```" in text):
        return end
    declared = _declared(text, answer.text, len(text) if end is None else end)
    if declared is not None:
        return declared
    return _said(text, answer.text) if end is None else end


def _declared(text: str, answer: str, stop: int) -> int | None:
    """Return where the first marker before `stop` that declares an answer begins its sentence."""
    for marker in _DECLARES.finditer(text, 0, stop):
        start = _MARKUP.match(text, marker.end()).end()
        end = min(start + len(answer) + _STATEMENT, len(text))
        over = _STATEMENT_END.search(text, start + 1, end)
        if _word_at(text, answer, start, over.start() if over else end) >= 0:
            return _sentence_start(text, marker.start())
    return None


def _said(text: str, answer: str) -> int | None:
    """Return where the sentence begins that first gives an answer without a marker."""
    at = _word_at(text, answer, 0, len(text))
    for _ in range(_MOST_PLACES):
        if at < 0:
            break
        if _GIVES.search(text[max(at - 24, 0) : at]):
            return _sentence_start(text, at)
        at = _word_at(text, answer, at + 1, len(text))
    last = text.rfind(answer, max(len(text) - _LAST_CHARACTERS, 0))
    return _sentence_start(text, last) if last >= 0 and _is_word(text, last, last + len(answer)) else None


def _word_at(text: str, word: str, start: int, stop: int) -> int:
    """Return the first place of a whole word between start and stop, or -1."""
    at = text.find(word, start, stop)
    while at >= 0 and not _is_word(text, at, at + len(word)):
        at = text.find(word, at + 1, stop)
    return at


def _is_word(text: str, start: int, stop: int) -> bool:
    """Tell whether no letter, digit, sign or decimal part of a longer word stands around a stretch."""
    before, after = text[max(start - 2, 0) : start], text[stop : stop + 2]
    if _joins(text[start]) and before and (_joins(before[-1]) or before[-1] in "-−\\"):
        return False
    if text[start].isdigit() and len(before) == 2 and before[0].isdigit() and before[1] in ".,":
        return False
    if _joins(text[stop - 1]) and after and _joins(after[0]):
        return False
    return not (text[stop - 1].isdigit() and len(after) == 2 and after[0] in ".,/" and after[1].isdigit())


def _joins(character: str) -> bool:
    """Tell whether a character makes one word with its neighbours: a letter or digit, but not of Han or kana."""
    return character.isalnum() and character < "\u2e80"


def _sentence_start(text: str, at: int) -> int:
    """Return where the sentence or line that holds a character begins, white space left to what stands before.

    The opening of a displayed formula belongs to the line behind it.
    """
    start = text.rfind("\n", 0, at) + 1
    for end in _SENTENCE_END.finditer(text, start, at):
        start = end.end()
    while start < at and text[start] in " \t\r":
        start += 1
    opened = _OPENED.search(text, max(start - 40, 0), start)
    return opened.start() if opened else start
