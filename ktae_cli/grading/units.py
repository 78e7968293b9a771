"""The number in front of a unit, and whether two units are the same."""

import re

_UNIT = re.compile(
    r"(?P<rest>.*?[\d}).])(?P<blank>\s*)(?P<unit>\^\\circ\s*[CFK]?|[^\W\d_]+(?:[\s.-]+[^\W\d_]+)*)\.?"
    r"(?:\s*/\s*(?P<per>[a-zA-Z]+))?(?P<power>\s*\^\s*\{?\s*-?\d\s*\}?)?\s*",
    re.DOTALL,
)
_NOT_UNITS = re.compile(r"\b(?:and|or|mod|if|for|where|PM|AM|pm|am|p\.m|a\.m)\b")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_CURRENCY = re.compile(r"^(-?)\s*(?:\\?[$€£¥]|USD|Rs\.?)\s*")
_SPELLINGS = {
    "cm": "centimeter centimeters centimetre centimetres", "m": "meter meters metre metres",
    "mm": "millimeter millimeters", "km": "kilometer kilometers kilometre kilometres", "ft": "foot feet",
    "in": "inch inches", "yd": "yard yards", "mi": "mile miles", "g": "gram grams", "kg": "kilogram kilograms",
    "lb": "pound pounds lbs", "oz": "ounce ounces", "L": "l liter liters litre litres", "mph": "",
    "ml": "mL milliliter milliliters", "s": "sec second seconds", "min": "minute minutes", "h": "hr hrs hour hours",
    "day": "days", "week": "weeks", "year": "years yr", "deg": "degree degrees ^\\circ", "dollar": "dollars USD",
    "cent": "cents", "sq": "square", "cubic": "", "unit": "units", "N": "", "men": "", "km/h": "kmh kph",
}  # fmt: skip
_SAME = {word: unit for unit, words in _SPELLINGS.items() for word in (unit, *words.split())}
_ATTACHED = {"cm", "mm", "km", "kg", "ml", "mL", "ft", "lb", "min", "sec", "deg", "mph", "kmh", "kph", "hrs"}
_EMPTY = {"unit", "sq unit", "cubic unit", "unit squared"}
_SHORTEST_WORD = 4


def split_unit(text: str) -> tuple[str, str]:
    """Return a normalised text without currency sign and unit, and the unit, "" where it names none.

    A unit stands behind a number: a degree sign, a known unit, or any word of four letters and more, with an optional
    power or "per" part: `35 cm^2`, `90^\\circ`, `73 apples`. Letters that touch the number are a unit only where they
    can be no product (`35cm`; `2m`, `2h` and `3R^2` are formulas). "unit" and "square units" say nothing.
    """
    text = _CURRENCY.sub(r"\1", text)
    found = _UNIT.fullmatch(text)
    if (
        not found
        or _ANGLE.search(found["rest"])
        or _NOT_UNITS.search(found["unit"])
        or not any(sign.isdigit() for sign in found["rest"])
    ):
        return text, ""
    words = found["unit"].split()
    if not _is_unit(words[0], bool(found["blank"])):
        return text, ""
    unit = " ".join(_SAME.get(word, _SAME.get(word.lower(), word.lower())) for word in words)
    power = re.sub(r"\D", "", found["power"] or "")
    per = _SAME.get(found["per"], found["per"]) if found["per"] else ""
    if unit in _EMPTY:
        return found["rest"].strip(), ""
    return found["rest"].strip(), unit + (f"/{per}" if per else "") + (f"^{power}" if power else "")


def _is_unit(word: str, apart: bool) -> bool:
    if word.startswith("^") or word in _ATTACHED:
        return True
    return len(word) >= _SHORTEST_WORD or (apart and (word in _SAME or word.lower() in _SAME))


def units_conflict(one: str, other: str) -> bool:
    """Tell whether two units are both named and differ: neither is the other with more words."""
    words, others = set(one.split()), set(other.split())
    return bool(one and other) and not (words <= others or others <= words)
