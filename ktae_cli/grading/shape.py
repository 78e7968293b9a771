"""The parts of an answer: items of a list, ends of an interval, both values of ±, the side of an assignment."""

import re
from typing import NamedTuple

_OPEN, _CLOSE = "([{", ")]}"
_WORDS_BETWEEN = re.compile(r"\s*(?:,?\s*\b(?:and|or)\b\s*|[,;])\s*")
_ASSIGNED = re.compile(
    r"(?P<name>[a-zA-Z]|\\[a-z]+)(?:_\{?\w+\}?)?(?:\([a-zA-Z](?:,\s*[a-zA-Z])*\))?\s*=(?P<value>[^=<>]+)"
)
_MEMBER = re.compile(r"\(?[a-zA-Z](?:_\{?\w+\}?)?\s*\\in(?![a-zA-Z])\s*(?P<value>.+)", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{matrix\}(?P<entries>(?:(?!\\begin|\\end).)*)\\end\{matrix\}", re.DOTALL)
_RELATION = re.compile(r"\s*(<|>|\\le(?![a-z])|\\ge(?![a-z]))\s*")
_VARIABLE = re.compile(r"[a-zA-Z](?:_\{?\w+\}?)?|\\(?:theta|alpha|lambda)")
_MIRROR = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


class Sequence(NamedTuple):
    """Items with the brackets around them; a list or a set has none and no order."""

    items: list[str]
    opening: str = ""
    closing: str = ""

    @property
    def ordered(self) -> bool:
        return bool(self.opening)


def sequence(text: str) -> Sequence | None:
    """Return the items of `1, 2`, `1 and 2`, `\\{1, 2\\}`, `(1, 2)`, `[0, 1)`, `1 \\pm 2`, or None for one value."""
    text = text.strip()
    if text.startswith("\\{") and text.endswith("\\}"):
        inside = text[2:-2].strip()
        return Sequence(_expanded(split_top(inside))) if inside else None
    entries = matrix_entries(text)
    if len(entries) > 1 and ("&" in text) != ("\\\\" in text):
        return Sequence(entries, "(", ")")
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and _holds_all(text):
        items = split_top(text[1:-1], words=False)
        return Sequence(items, text[0], text[-1]) if len(items) > 1 else None
    items = _expanded(split_top(text))
    return Sequence(items) if len(items) > 1 else None


def matrix_entries(text: str) -> list[str]:
    """Return the entries of a matrix row by row, empty where the text is none."""
    found = _MATRIX.fullmatch(text.strip())
    entries = re.split(r"&|\\\\", found["entries"]) if found else []
    return [entry.strip() for entry in entries if entry.strip()]


def split_top(text: str, words: bool = True) -> list[str]:
    """Split at commas, semicolons, "and" and "or" that stand outside all brackets."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(text):
        sign = text[place]
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if text.startswith(("\\begin", "\\end"), place):
            depth += 1 if text.startswith("\\begin", place) else -1
        between = _WORDS_BETWEEN.match(text, place) if depth == 0 else None
        if between and (words or between[0].strip() in (",", ";")):
            parts.append(text[start:place])
            start = place = between.end()
            continue
        place += 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _holds_all(text: str) -> bool:
    """Tell whether the first bracket closes at the last sign."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0:
            return place == len(text) - 1
    return False


def _expanded(items: list[str]) -> list[str]:
    """Write each item with one top-level ± as two, and hand `n=` on: in `n=2,3` all are values of n."""
    values = []
    for item in items:
        if item.count("\\pm") == 1 and "=" not in item.partition("\\pm")[2]:
            before, _, after = item.partition("\\pm")
            name, equals, before = before.rpartition("=")
            values += [f"{name}{equals}{before}{'+' if before.strip() else ''}{after}".strip()]
            values += [f"{name}{equals}{before}-{after}".strip()]
        else:
            values.append(item)
    names = {found["name"] for found in map(_ASSIGNED.fullmatch, values) if found}
    if len(values) > 1 and len(names) == 1 and _ASSIGNED.fullmatch(values[0]):
        values = [found["value"].strip() if (found := _ASSIGNED.fullmatch(value)) else value for value in values]
    return values


def assignment(text: str) -> tuple[str, str]:
    """Return the name and the value of `x = 5` and `f(x) = 5`, or "" and the text."""
    found = _ASSIGNED.fullmatch(text.strip())
    return (text.partition("=")[0].replace(" ", ""), found["value"].strip()) if found else ("", text)


def names_assigned(items: list[str]) -> list[str]:
    """Return the names of a list of assignments, empty unless all items are."""
    names = [assignment(item)[0] for item in items]
    return names if all(names) else []


def membership(text: str) -> str:
    """Return the set of `x \\in S`, or the text."""
    found = _MEMBER.fullmatch(text.strip())
    return found["value"].strip() if found else text


def union(text: str) -> list[str]:
    """Return the parts of a union."""
    return [part.strip() for part in re.split(r"\\cup(?![a-zA-Z])", text)]


def is_interval(text: str) -> bool:
    """Tell whether a text is one interval or a union of intervals."""
    found = [sequence(part) for part in union(text)]
    return all(part is not None and part.ordered and len(part.items) == 2 for part in found)


def as_intervals(text: str) -> str | None:
    """Return `x < a`, `a \\le x < b` and alternatives of these joined by "or" as a union of intervals, or None."""
    parts = [_interval(part) for part in re.split(r",?\s*\bor\b\s*|,|\\cup(?![a-zA-Z])", text)]
    return "\\cup ".join(parts) if all(parts) else None


def _interval(text: str) -> str | None:
    pieces = _RELATION.split(text.strip())
    if len(pieces) == 3:
        left, sign, right = pieces
        if _VARIABLE.fullmatch(right) and not _VARIABLE.fullmatch(left):
            left, sign, right = right, _MIRROR[sign], left
        if not _VARIABLE.fullmatch(left):
            return None
        closed = sign in ("\\le", "\\ge")
        if sign in ("<", "\\le"):
            return f"(-\\infty ,{right}{']' if closed else ')'}"
        return f"{'[' if closed else '('}{right},\\infty )"
    if len(pieces) == 5 and _VARIABLE.fullmatch(pieces[2]):
        low, first, _, second, high = pieces
        if first in (">", "\\ge") and second in (">", "\\ge"):
            low, first, second, high = high, _MIRROR[second], _MIRROR[first], low
        if first in ("<", "\\le") and second in ("<", "\\le"):
            return f"{'(' if first == '<' else '['}{low},{high}{')' if second == '<' else ']'}"
    return None
