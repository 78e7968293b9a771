"""The exact value of an expression of integers, decimals, fractions, powers and factorials, within bounds."""

import re
from fractions import Fraction
from functools import lru_cache
from math import factorial
from typing import NamedTuple

MOST_BITS = 400_000
"""Bits that a power may have."""

LARGEST_FACTORIAL = 5_000
DEEPEST = 8
LARGEST_EXPONENT = 10_000

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d*|\.\d+|\d+)(?P<repeat>\\overline\{\d+\}|\\bar\{\d+\})?(?P<exponent>[eE][-+]?\d+)?"
    r"|(?P<sign>\\frac|\\times|\\cdot|\\div|[-+*/^!(){}\[\]]))"
)


class TooComplexError(Exception):
    """The expression is beyond what is computed: the value would be too large, or the text is nested too deep."""


class _NotRationalError(Exception):
    """The text is no expression of rational numbers."""


class Number(NamedTuple):
    """A rational number and how it was written: places is the count of decimals, None where no decimal point stood."""

    value: Fraction
    places: int | None


@lru_cache(maxsize=1 << 13)
def read_number(text: str) -> Number | None:
    """Return the value of a normalised text, or None where it is no expression of rational numbers.

    Raise `TooComplexError` where a power or a factorial is beyond the bounds. `2\\frac{1}{2}` is the mixed number.
    """
    if not any(sign.isdigit() for sign in text):
        return None
    try:
        return _Parser(text).whole()
    except (_NotRationalError, ZeroDivisionError):
        return None


class _Parser:
    def __init__(self, text: str):
        self.tokens: list[tuple[str, str]] = []
        self.places: int | None = None
        place = 0
        text = text.strip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if not found:
                raise _NotRationalError
            place = found.end()
            kind = "number" if found["number"] else "sign"
            self.tokens.append((kind, found[0].strip()))
        self.next = 0
        self.depth = 0

    def whole(self) -> Number:
        value = self.sum()
        if self.next < len(self.tokens):
            raise _NotRationalError
        return Number(value, self.places)

    def peek(self) -> str:
        return self.tokens[self.next][1] if self.next < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise _NotRationalError
        self.next += 1
        return token

    def sum(self) -> Fraction:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while True:
            sign = self.peek()
            if sign in ("*", "\\times", "\\cdot"):
                self.take()
                value *= self.signed()
            elif sign in ("/", "\\div"):
                self.take()
                value /= self.signed()
            elif sign in ("(", "\\frac"):
                value *= self.power()
            else:
                return bounded(value)

    def signed(self) -> Fraction:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.take() == "-" else sign
        return sign * self.power()

    def power(self) -> Fraction:
        value = self.factorial()
        if self.peek() != "^":
            return value
        self.take()
        if self.peek() == "-":
            self.take()
            return raised(value, -self.factorial())
        return raised(value, self.factorial())

    def factorial(self) -> Fraction:
        value = self.atom()
        if self.peek() == "!":
            self.take()
            if self.peek() == "!":
                raise _NotRationalError
            value = factorial_of(value)
        return value

    def atom(self) -> Fraction:
        self.depth += 1
        if self.depth > 2 * DEEPEST:
            raise TooComplexError("nested too deep")
        try:
            token = self.take()
            if token in ("(", "{", "["):
                value = self.sum()
                self.take({"(": ")", "{": "}", "[": "]"}[token])
                return value
            if token == "\\frac":
                return self.braced() / self.braced()
            if self.tokens[self.next - 1][0] != "number":
                raise _NotRationalError
            return self.number(token)
        finally:
            self.depth -= 1

    def braced(self) -> Fraction:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value

    def number(self, token: str) -> Fraction:
        value = self.literal(token)
        if "." not in token and self.peek() == "\\frac" and token.isdigit():
            # 2\frac{1}{2} is two and a half; a product is written with a sign or with parentheses.
            place = self.next
            fraction = self.atom()
            if 0 < fraction < 1:
                return value + fraction
            self.next = place
        return value

    def literal(self, token: str) -> Fraction:
        digits, _, repeat = token.partition("\\")
        if repeat:
            return repeating(digits, re.sub(r"\D", "", repeat))
        mantissa, _, exponent = digits.lower().partition("e")
        if len(mantissa) > 4000 or len(exponent) > 5:
            raise TooComplexError("a number with too many digits")
        power = int(exponent or 0)
        if abs(power) > LARGEST_EXPONENT:
            raise TooComplexError("an exponent beyond the bound")
        if "." in mantissa or exponent:
            decimals = len(mantissa.partition(".")[2])
            self.places = max(self.places or 0, decimals - power, 0)
        return Fraction(f"0{mantissa}" if mantissa.startswith(".") else mantissa.rstrip(".")) * Fraction(10) ** power


def repeating(digits: str, repeat: str) -> Fraction:
    """Return the value of a decimal whose last digits repeat: ("0.1", "6") is 1/6."""
    decimals = len(digits.partition(".")[2])
    start = Fraction(digits.rstrip(".") or 0)
    return start + Fraction(int(repeat), (10 ** len(repeat) - 1) * 10**decimals)


def raised(base: Fraction, exponent: Fraction) -> Fraction:
    """Return base ** exponent for an integer exponent within the bounds."""
    if exponent.denominator != 1:
        raise _NotRationalError
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and abs(exponent) * bits > MOST_BITS:
        raise TooComplexError("a power beyond the bound")
    if abs(base) == 1 or base == 0:
        exponent = Fraction(int(exponent) % 2 if base else (exponent > 0) - (exponent < 0))
    return base ** int(exponent)


def factorial_of(value: Fraction) -> Fraction:
    """Return the factorial of an integer within the bounds."""
    if value.denominator != 1 or value < 0:
        raise _NotRationalError
    if value > LARGEST_FACTORIAL:
        raise TooComplexError("a factorial beyond the bound")
    return Fraction(factorial(int(value)))


def bounded(value: Fraction) -> Fraction:
    """Return the value, or raise where it has too many digits to go on with."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * MOST_BITS:
        raise TooComplexError("a value with too many digits")
    return value
