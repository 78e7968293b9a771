"""What is refused before any library sees it."""

import re

from ktae_cli.grading.rational import DEEPEST, LARGEST_EXPONENT, LARGEST_FACTORIAL, TooComplexError, read_number

LONGEST = 500
"""Characters of an expression."""

_EXPONENT = re.compile(r"\^\s*(\{[^{}]*\}|\([^()]*\)|-?\d+)")
_FACTORIAL = re.compile(r"(\d+|\([^()]*\)|\{[^{}]*\})\s*!")
_TOWER = re.compile(r"\^\s*\{?\s*\(?\s*-?\d+\s*\^\s*\{?\s*\(?\s*-?\d+\s*\^")
_LARGE_CALL = re.compile(r"\\(?:binom|dbinom|tbinom)\s*\{\s*(\d+)|\\(?:Gamma|zeta)\s*\(?\s*(\d+)")


def check_size(text: str) -> None:
    """Raise `TooComplexError` where an expression is too long, nested too deep, or has too large a power or factorial.

    Bounds: `LONGEST` characters, `DEEPEST` levels of brackets, exponents of `LARGEST_EXPONENT`, factorials of
    `LARGEST_FACTORIAL`. What passes may still run for ever; the deadline of the worker is for that.
    """
    if len(text) > LONGEST:
        raise TooComplexError("too long")
    if read_number(text):
        return
    depth = 0
    for sign in text:
        depth += (sign in "({[") - (sign in ")}]")
        if depth > DEEPEST:
            raise TooComplexError("nested too deep")
    if _TOWER.search(text):
        raise TooComplexError("a tower of powers")
    for pattern, bound in ((_EXPONENT, LARGEST_EXPONENT), (_FACTORIAL, LARGEST_FACTORIAL), (_LARGE_CALL, 10_000)):
        for found in pattern.finditer(text):
            number = read_number(found[1] or found[2] or "")
            if number and abs(number.value) > bound:
                raise TooComplexError("a power or factorial beyond the bound")
