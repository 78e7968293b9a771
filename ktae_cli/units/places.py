"""Places of a response: which tokens count, and units told apart by where they stand."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ktae_cli.catalogue import unknown_name
from ktae_cli.errors import KtaeError, MissingColumnError
from ktae_cli.spans import (
    BLANK_AT,
    CLOSES_AT,
    LINE,
    PARAGRAPH,
    SENTENCE,
    STARTS_AT,
    STARTS_BLANK,
    STARTS_LINE,
    marks_of,
)
from ktae_cli.token_text import Decoder
from ktae_cli.units.base import Occurrences, TokenBatch, UnitReader, Vocabulary, runs_of
from ktae_cli.units.text import check_text, entries_of
from ktae_cli.units.thought import thought_lengths

MOST = 20
"""Sentences, paragraphs and turns with a higher number share the place 20+."""

PLACES = 32
"""Place codes lie below this."""

_NUMBERED = ("sentence", "paragraph", "turn", "decile")
_NAMES = ("first:N", "last:N", *_NUMBERED, "think", "answer", "part")


class Places(NamedTuple):
    """What counts, where each token stands, and how places are called."""

    keep: np.ndarray  # (n_tokens,) bool
    place: np.ndarray | None  # (n_tokens,) int64, None where the place is no part of a unit
    place_name: Callable[[int], str]


def check_within(within: str) -> tuple[str, int]:
    """Return (name, N) of a value of --within; raise `KtaeError` where it is none."""
    name, _, number = within.partition(":")
    if name in ("first", "last"):
        if not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise KtaeError(f"--within {within!r}: {name} takes a number of tokens, as in {name}:100")
        return name, int(number)
    if within not in _NAMES:
        raise unknown_name("--within", [within], _NAMES)
    return name, 0


def place_codes(batch: TokenBatch, within: str, decoder: Decoder) -> Places:
    """Return what of a batch counts, and the place of each token.

    first:N, last:N: only the first or last N counted tokens of a response. think: only those up to and including the
    first closing tag of a thought; answer: only those behind it (see thought.py; without a tag all is answer).
    sentence, paragraph, turn: a unit is told apart by the number of its own within the response, from 1, above 20
    together; decile: by the tenth of the counted tokens in which it begins, 1 to 10; part: think or answer.
    Sentences and paragraphs end as spans.py marks them, and where tokens are masked; white space behind an end belongs
    to what ends. Turns are numbered as they come among the counted tokens. Place is 0 where nothing counts.
    Raises `MissingColumnError` where text, or for `turn` turn_ids, is absent.
    """
    name, number = check_within(within)
    mask = np.ones(len(batch.token_ids), bool) if batch.mask is None else batch.mask
    if name in ("think", "answer", "part"):
        return _parts(batch, mask, name, decoder)
    rank, count = counted(batch)
    if name in ("first", "last"):
        return Places(mask & (rank < number if name == "first" else rank >= count - number), None, str)
    if name == "decile":
        return Places(mask, np.where(mask, rank * 10 // np.maximum(count, 1) + 1, 0), str)
    kept, first = runs_of(batch)
    if name == "turn":
        if batch.turn_ids is None:
            raise MissingColumnError("--within turn needs turn_ids, the turn of each token; the input has none")
        turns = batch.turn_ids[kept]
        first = row_starts(batch, kept) | (np.diff(turns, prepend=turns[:1]) != 0)
    else:
        check_text(decoder, batch, f"--within {name}")
        first = _span_starts(batch, kept, first, SENTENCE if name == "sentence" else PARAGRAPH, decoder)
    place = np.zeros(len(mask), np.int64)
    place[kept] = np.minimum(_numbers(first, row_starts(batch, kept)), MOST + 1)
    return Places(mask, place, lambda code: str(code) if code <= MOST else f"{MOST}+")


def counted(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's (number of counted tokens before it, number of counted tokens) in its response."""
    starts = batch.starts
    mask = np.ones(starts[-1], np.int64) if batch.mask is None else batch.mask.astype(np.int64)
    before = np.concatenate([[0], np.cumsum(mask)])
    first = before[starts]
    rank = before[:-1] - np.repeat(first[:-1], batch.lengths)
    return rank, np.repeat(np.diff(first), batch.lengths)


def row_starts(batch: TokenBatch, kept: np.ndarray) -> np.ndarray:
    """Tell which of the counted tokens (k,) is the first of its response."""
    row = np.repeat(np.arange(len(batch.lengths)), batch.lengths)[kept]
    return np.diff(row, prepend=-1) != 0


def _numbers(first: np.ndarray, row_first: np.ndarray) -> np.ndarray:
    """Return the number of the span of each counted token within its response, from 1."""
    number = np.cumsum(first)
    return number - np.maximum.accumulate(np.where(row_first, number, 0)) + 1


def _parts(batch: TokenBatch, mask: np.ndarray, name: str, decoder: Decoder) -> Places:
    position = np.arange(len(mask)) - np.repeat(batch.starts[:-1], batch.lengths)
    thinks = position < np.repeat(thought_lengths(batch, decoder), batch.lengths)
    if name == "part":
        return Places(mask, thinks.astype(np.int64), lambda code: ("answer", "think")[code])
    return Places(mask & (thinks if name == "think" else ~thinks), None, str)


def _span_starts(batch: TokenBatch, kept: np.ndarray, first: np.ndarray, level: int, decoder: Decoder) -> np.ndarray:
    """Tell which counted tokens begin a span: the first of a run, and the first but blanks after an end."""
    tokens, index = entries_of(batch, decoder)
    marks = np.array([marks_of(token.data.decode("utf-8", "replace")) for token in tokens], np.uint8)[index[kept]]
    closes = marks >> CLOSES_AT & 3
    following = np.append(marks[1:], 0) >> STARTS_AT & 3
    ends = marks & 7 >= level
    ends |= (closes >= level) & (following >= STARTS_BLANK)
    ends |= (closes == LINE) & (following == STARTS_LINE)
    word = (marks >> BLANK_AT == 0) | first
    number = np.cumsum(word)
    closed = np.zeros(len(number) + 1, bool)
    closed[number[ends]] = True
    return first | (word & closed[np.maximum(number - 1, 0)])


@dataclass(frozen=True)
class PlacedVocabulary:
    """Units at places: the code of the unit times 32 and that of the place."""

    plain: Vocabulary
    place_name: dict[int, str]
    within: str

    def text(self, code: int) -> str:
        """Return the unit without its place."""
        return self.plain.text(int(code) // PLACES)

    def name(self, code: int) -> str:
        """Return the unit and its place, as `Wait @ paragraph 3` or `Wait @ think`."""
        place = self.place_name[int(code) % PLACES]
        return (
            f"{self.plain.name(int(code) // PLACES)} @ {place if self.within == 'part' else f'{self.within} {place}'}"
        )

    def token_id(self, code: int) -> int | None:
        """Return the id of a unit that is a token."""
        return self.plain.token_id(int(code) // PLACES)

    def is_special(self, code: int) -> bool:
        """Tell whether the unit is a special token."""
        return self.plain.is_special(int(code) // PLACES)

    def prune(self, keep: np.ndarray) -> None:
        """Forget every unit that is kept at no place."""
        self.plain.prune(np.unique(keep // PLACES))


class PlacedReader:
    """Read units within a part of the responses, or told apart by their place; none crosses the border of a place."""

    def __init__(self, reader: UnitReader, within: str, decoder: Decoder):
        check_within(within)
        self.reader, self.within, self.decoder = reader, within, decoder
        self.vocabulary = reader.vocabulary
        if within in _NUMBERED or within == "part":
            self.vocabulary = PlacedVocabulary(reader.vocabulary, {}, within)

    def read(self, batch: TokenBatch) -> Occurrences:
        """Return every occurrence; its place is that of its first token."""
        keep, place, place_name = place_codes(batch, self.within, self.decoder)
        found = self.reader.read(replace(batch, mask=keep, place=place))
        if place is None:
            return found
        at = place[batch.starts[found.rollout] + found.position]
        self.vocabulary.place_name.update((code, place_name(code)) for code in np.unique(at).tolist())
        return replace(found, unit=found.unit * PLACES + at)
