"""Which reader finds the units that a user names."""

import re

from ktae_cli.catalogue import unknown_name
from ktae_cli.errors import KtaeError
from ktae_cli.token_text import Decoder
from ktae_cli.units.base import UnitReader
from ktae_cli.units.ngram import LONGEST, NgramReader
from ktae_cli.units.places import PlacedReader
from ktae_cli.units.regex import RegexReader
from ktae_cli.units.token import TokenReader
from ktae_cli.units.word import WordReader

KINDS = ("token", "word", "ngram:2..5", "regex:PATTERN")


def units_of(unit: str, decoder: Decoder, within: str | None = None) -> UnitReader:
    """Return the reader of a value of --unit, within a value of --within.

    token, word, ngram:N, ngram:A..B with 1 <= A <= B <= 8, regex:PATTERN. Raises `KtaeError` where the value is none of
    these or no pattern, `MissingColumnError` where the units need text and the decoder has none.
    """
    kind, _, rest = unit.partition(":")
    if kind == "ngram":
        reader: UnitReader = NgramReader(*_sizes(unit, rest), decoder)
    elif kind == "regex" and rest:
        reader = RegexReader(rest, decoder)
    elif unit in ("token", "word"):
        reader = TokenReader(decoder) if unit == "token" else WordReader(decoder)
    else:
        raise unknown_name("--unit", [unit], KINDS)
    return reader if within is None else PlacedReader(reader, within, decoder)


def _sizes(unit: str, sizes: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,3})(?:\.\.(\d{1,3}))?", sizes)
    if not found:
        raise KtaeError(f"--unit {unit!r}: expected ngram:3, or ngram:2..5 for a range of lengths")
    shortest, longest = int(found[1]), int(found[2] or found[1])
    if not 1 <= shortest <= longest <= LONGEST:
        raise KtaeError(f"--unit {unit!r}: the lengths rise and lie between 1 and {LONGEST}")
    return shortest, longest
