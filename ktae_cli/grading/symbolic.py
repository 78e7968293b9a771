"""What math-verify says of two expressions, and a second look at what it calls equal."""

import logging
import re
from typing import Any

from ktae_cli.grading.points import same_at_points
from ktae_cli.grading.verdict import GradingOptions

_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\\circ")
_COMMANDS = re.compile(r"\\[a-zA-Z]+")
_CONSTANT = re.compile(r"[eidE]")


class GoldUnparsedError(Exception):
    """The gold answer is nothing that math-verify reads whole."""


class UndefinedError(Exception):
    """The answer is an expression without a value, as 1/0."""


def same_expression(answer: str, gold: str, options: GradingOptions) -> tuple[bool, str]:
    """Return whether math-verify calls two normalised texts equal, and the step that decided.

    The gold goes first, by keyword: relations and intervals are compared differently the other way round. Parsed is
    LaTeX alone: the library's own fallback takes a number from within what it cannot read. A text that math-verify
    reads in part counts as unread. Its timers are off, so that no verdict depends on the load of the machine: call
    this where a deadline can kill it. Raise `GoldUnparsedError` for a gold that cannot be read.
    """
    from math_verify import verify

    _silence()
    answer, gold = _told_apart(answer, gold)
    expected = read(gold)
    if expected is None:
        raise GoldUnparsedError
    found = read(answer)
    if found is None:
        return False, "answer_unparsed"
    if _undefined(expected):
        raise GoldUnparsedError
    if _undefined(found):
        return False, "answer_undefined"
    same = same_at_points(found, expected, options.tolerance)
    if same is not None:
        return same, "points"
    same = verify(gold=expected, target=found, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True)
    return bool(same), "math_verify"


def _told_apart(answer: str, gold: str) -> tuple[str, str]:
    """Give a capital another letter where a text also has it small: the library makes all letters small."""
    bare = [_COMMANDS.sub(" ", text) for text in (answer, gold)]
    both = sorted({sign for text in bare for sign in text if sign.isupper() and sign.lower() in text})
    free = (sign for sign in "uvwzqrpklmnbc" if not any(sign in text.lower() for text in bare))
    names = dict(zip(both, free, strict=False))
    if not names:
        return answer, gold
    letter = re.compile(r"\\[a-zA-Z]+|[" + "".join(names) + "]")
    return tuple(letter.sub(lambda found: names.get(found[0], found[0]), text) for text in (answer, gold))


def read(text: str) -> Any | None:
    """Return the expression that math-verify parses from a normalised text, or None where it reads none or a part.

    Degrees in a trigonometric function become radians.
    """
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    rules = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last")
    config = LatexExtractionConfig(boxed_match_priority=0, normalization_config=rules)
    written = _DEGREES.sub(r"(\1 \\cdot \\frac{\\pi}{180})", text) if _TRIGONOMETRIC.search(text) else text
    written = written.replace("%", "\\%")
    parsed = parse(
        f"\\boxed{{{written}}}", [config], fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
    )
    if not parsed or _shrank(text, parsed[0]):
        return None
    return parsed[0]


def _shrank(text: str, parsed: Any) -> bool:
    """Tell whether a bare number came out of a text that holds letters, a comma or dots."""
    if not getattr(parsed, "is_Number", False):
        return False
    letters = re.sub(r"[eidE]", "", "".join(re.findall(r"[a-zA-Z]", _COMMANDS.sub("", text))))
    return bool(letters) or "," in text or "\\ldots" in text or "\\overline" in text


def _undefined(parsed: Any) -> bool:
    from sympy import Expr, nan, zoo

    return isinstance(parsed, Expr) and parsed.has(nan, zoo)


def _silence() -> None:
    """Keep the library from writing responses into the log."""
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
