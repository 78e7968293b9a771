"""Two expressions compared by value, to fifty digits, at fixed points of their letters."""

from typing import Any

_DIGITS = 50
_EXACT = 1e-30
_POINTS = 12
_ENOUGH = 6


def same_at_points(answer: Any, gold: Any, tolerance: float) -> bool | None:
    """Return whether two sympy expressions have the same value, or None where points do not tell.

    Without letters: one evaluation of each side. With letters: the same value wherever both sides are real, at six or
    more of twelve points, negative ones among them, so that |x| and x differ and \\sqrt{1/n} and 1/\\sqrt{n} do not.
    Equal is |answer - gold| <= bound * |gold|, the bound being `tolerance` where a decimal is among the terms, else
    1e-30. Letters go by name. An undefined function, a relation or a set gives None.
    """
    from sympy import Expr, Float
    from sympy.core.function import AppliedUndef

    if not all(isinstance(side, Expr) and not side.has(AppliedUndef) for side in (answer, gold)):
        return None
    bound = tolerance if answer.has(Float) or gold.has(Float) else _EXACT
    names = sorted({letter.name for side in (answer, gold) for letter in side.free_symbols if hasattr(letter, "name")})
    if not names:
        return _close(_value(answer, {}), _value(gold, {}), bound)
    agreed = 0
    for point in range(_POINTS):
        values = {name: _coordinate(point, place) for place, name in enumerate(names)}
        first, second = _value(answer, values), _value(gold, values)
        if first is None or second is None or not (first.is_real and second.is_real):
            continue
        if not _close(first, second, bound):
            return False
        agreed += 1
    return True if agreed >= _ENOUGH else None


def _coordinate(point: int, place: int) -> Any:
    """Return a rational between -3 and 3, different for every point and letter."""
    from sympy import Rational

    step = (point * 37 + place * 53 + 11) % 101
    value = Rational(step * 29 + 7, 1013)
    return -value if (point + place * (point // 2)) % 3 == 2 else value


def _value(side: Any, values: dict[str, Any]) -> Any | None:
    """Return the number that an expression is at a point, or None where it has none."""
    from sympy import nan, oo, zoo

    letters = {letter: values[letter.name] for letter in side.free_symbols if getattr(letter, "name", "") in values}
    value = side.subs(letters).evalf(_DIGITS)
    return value if value.is_number and not value.has(nan, oo, -oo, zoo) else None


def _close(answer: Any | None, gold: Any | None, bound: float) -> bool | None:
    if answer is None or gold is None:
        return None
    difference, scale = abs(answer - gold).evalf(_DIGITS), abs(gold).evalf(_DIGITS)
    if not (difference.is_Number and scale.is_Number):
        return None
    return bool(difference <= bound * scale) or bool(scale < _EXACT and difference < _EXACT)
