"""Answers that are no mathematics: a choice letter, a word, a phrase, a time of day."""

import re

_CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*(?:[.):]\s*.*|)", re.DOTALL)
_DRESSED = re.compile(r"\(\s*[A-Za-z]\s*\)|[A-Za-z]\s*[.):]")
_PHRASE = re.compile(r"[^\W\d_][^\W\d_]+(?:[\s'’-]+[^\W\d_]+)*")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})\s*([aApP])\.?\s?[mM]\.?")


def choice_letter(text: str) -> str | None:
    """Return the letter of `C`, `(C)`, `C.`, `C: text` and `(C) text`, or None; a letter in a formula is none."""
    found = _CHOICE.fullmatch(text.strip())
    return found[1] if found and (text.strip().count("(") == text.strip().count(")") or ")" in text) else None


def same_letter(one: str, other: str) -> bool | None:
    """Compare two choice letters, or return None where the texts are not two of them.

    Case counts only between two bare letters: x and X are two quantities, (c) and C one choice.
    """
    first, second = choice_letter(one), choice_letter(other)
    if first is None or second is None:
        return None
    dressed = _DRESSED.match(one.strip()) or _DRESSED.match(other.strip())
    return first.upper() == second.upper() if dressed else first == second


def phrase(text: str) -> str | None:
    """Return a word or phrase in lower case with single blanks, or None where the text is not made of words.

    Letters keep their order: `AB` and `BA`, `on` and `no` are two words, not products.
    """
    words = text.strip(" .!?'\"")
    return " ".join(words.lower().replace("’", "'").split()) if _PHRASE.fullmatch(words) else None


def clock(text: str) -> str | None:
    """Return a time of day as 3:30pm, or None."""
    found = _CLOCK.fullmatch(text.strip())
    return f"{int(found[1])}:{found[2]}{found[3].lower()}m" if found else None
