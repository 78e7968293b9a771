"""One Python value at a time -> a canonical one: what is odd is mended where its meaning is plain, else refused."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

_IDS = ("group_id", "rollout_id", "finish_reason", "reader")
_TRUE, _FALSE, _UNKNOWN = ("true", "1", "1.0"), ("false", "0", "0.0"), ("", "nan", "none", "null")


def conversion(name: str, dtype: str) -> tuple[Callable[[Any], Any], str]:
    """Return (what converts a value of a canonical column, what it expects in words).

    It raises `TypeError`, `ValueError`, `OverflowError` or `RecursionError` for a value that it refuses.
    """
    return _CONVERSIONS["id" if name in _IDS else dtype]


def shown(value: Any) -> str:
    """Return a value for a message: short, lists and objects by kind and length."""
    if isinstance(value, list | tuple | np.ndarray):
        odd = next((v for v in value if not isinstance(v, int | float | np.number)), None)
        return f"a list of {len(value)}" + ("" if odd is None else f" that holds {shown(odd)[:40]}")
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_text(value: Any) -> str:
    """Return text as it is, anything else as JSON text; NaN stays `NaN`."""
    if isinstance(value, str):
        return value
    try:
        text = orjson.dumps(value, default=_jsonable, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # whole numbers of over 64 bits, deep nesting
        text = b"null"
    if b"null" in text:  # orjson writes NaN and the infinities as null
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    return text.decode()


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)


def number(value: Any) -> float:
    """Return a number, a boolean or the text of one as float, empty text as NaN; raise `ValueError` for others."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _TRUE or text in _FALSE:
            return float(text in _TRUE)
        return math.nan if text in _UNKNOWN else float(text.replace("_", "?"))
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return float(value)
    raise TypeError


def verdict(value: Any) -> bool | None:
    """Return true, false or None for unknown: of booleans, 0, 1 and their text; raise `ValueError` for others."""
    found = number(value)
    if math.isnan(found):
        return None
    if found not in (0.0, 1.0):
        raise ValueError
    return found == 1.0


def whole(value: Any) -> int:
    """Return a whole number, also of `3.0` or `"3"`; raise `ValueError` for others."""
    if isinstance(value, bool | np.bool_):
        raise TypeError
    if isinstance(value, str):
        return _in_int64(int(value.replace("_", "?")))
    if isinstance(value, int | np.integer):
        return _in_int64(int(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return _in_int64(int(value))
    raise TypeError


def _in_int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise OverflowError
    return value


def _id(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise TypeError


def _list_of(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def converted(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple | np.ndarray):
            raise TypeError
        return [None if item is None else convert(item) for item in value]

    return converted


def _token_id(value: Any) -> int:
    if isinstance(value, str) or not -(2**31) <= whole(value) < 2**31:
        raise TypeError
    return whole(value)


def _plain_float(value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if isinstance(value, str) or value not in (0, 1):
        raise TypeError
    return bool(value)


def _text_item(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _map(value: Any) -> list[tuple[str, float | None]]:
    if not isinstance(value, dict):
        raise TypeError
    return [(str(name), None if item is None else number(item)) for name, item in value.items()]


_CONVERSIONS = {
    "id": (_id, "text or a whole number"),
    "string": (as_text, "text"),
    "float64": (number, "a number"),
    "bool": (verdict, "true, false or null"),
    "int64": (whole, "a whole number"),
    "list<int32>": (_list_of(_token_id), "a list of token ids (whole numbers of 32 bits)"),
    "list<float32>": (_list_of(_plain_float), "a list of numbers"),
    "list<bool>": (_list_of(_flag), "a list of true and false (or 1 and 0)"),
    "list<string>": (_list_of(_text_item), "a list of text"),
    "map<string, float64>": (_map, "an object of numbers"),
}
