"""A field of the last JSON value in the response, by value."""

import json
from typing import Any

from ktae_cli.grading.answer import gold_text, spoken
from ktae_cli.grading.boxes import LAST
from ktae_cli.grading.compare import GradingOptions, Verdict

_MOST_STARTS = 500
_MISSING = object()


def json_field(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Compare a field of the last JSON object or array of the response with the gold.

    The argument is the path, names and positions joined by dots (`answer.0.name`); without one the whole value is
    compared. The gold is read as JSON where it is JSON, else it is a string. Numbers are equal by value (1 and 1.0),
    objects regardless of the order of their keys; a string never equals a number.
    """
    expected = _gold_value(gold)
    if expected is _MISSING:
        return Verdict(None, "gold_unparsed", "", "", "gold")
    shown = _text(expected)
    found = _field(_last_value(spoken(response)[-LAST:]), options.argument)
    if found is _MISSING:
        return Verdict(False, "no_answer", "", shown, "answer")
    return Verdict(_equal(found, expected), "ok", _text(found), shown, "json")


def _gold_value(gold: Any) -> Any:
    if isinstance(gold, dict | list | bool | int):
        return gold
    text = gold_text(gold).strip()
    if not text:
        return _MISSING
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _last_value(text: str) -> Any:
    """Return the last outermost object or array of a text."""
    decoder, found, place = json.JSONDecoder(), _MISSING, 0
    for _ in range(_MOST_STARTS):
        starts = [start for start in (text.find("{", place), text.find("[", place)) if start >= 0]
        if not starts:
            break
        try:
            found, place = decoder.raw_decode(text, min(starts))
        except (ValueError, RecursionError):
            place = min(starts) + 1
    return found


def _field(value: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def _equal(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is no number, 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return (numbers or type(one) is type(other)) and one == other


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:1000]
