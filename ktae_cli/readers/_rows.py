"""Rows as dicts -> Arrow batches: canonical columns under their declared types, others by what they hold."""

import json
import math
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers.base import decode_dictionary, is_list
from ktae_cli.schema import COLUMNS

ARROW_TYPES = {
    "string": pa.string(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "list<int32>": pa.list_(pa.int32()),
    "list<float32>": pa.list_(pa.float32()),
    "list<bool>": pa.list_(pa.bool_()),
    "list<string>": pa.list_(pa.string()),
    "map<string, float64>": pa.map_(pa.string(), pa.float64()),
}
DTYPES = {column.name: column.dtype for column in COLUMNS}
CANONICAL = {name: ARROW_TYPES[dtype] for name, dtype in DTYPES.items()}

_IDS = ("group_id", "rollout_id", "finish_reason", "reader")
_TEXT = pa.string()
_NULL = pa.null()
_EXACT = 1 << 53
"""Larger whole numbers are not exact as float64."""
_TRUE, _FALSE, _UNKNOWN = ("true", "1", "1.0"), ("false", "0", "0.0"), ("", "nan", "none", "null")

Place = Callable[[int], str]


def batch_of(rows: list[dict[str, Any]], place: Place) -> pa.RecordBatch:
    """Return rows as one batch, its columns in the order in which they first appear, absent values null.

    Canonical columns have their declared types. Of another column the values decide: booleans, whole numbers, numbers,
    text, lists of one of these; whatever else, or mixed, is text, JSON where it was none. place(i) names row i.
    Raises `InputError` for a canonical value that its type cannot hold.
    """
    shapes = list(dict.fromkeys(map(tuple, rows)))
    if len(shapes) == 1:
        names = shapes[0]
        columns = zip(*map(dict.values, rows), strict=True)
    else:
        names = tuple(dict.fromkeys(chain.from_iterable(shapes)))
        columns = ([row.get(name) for row in rows] for name in names)
    arrays = [column_of(name, values, place) for name, values in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def canonical_batch(batch: pa.RecordBatch, place: Place) -> pa.RecordBatch:
    """Return a batch with its canonical columns under their declared types; the others stay as they are."""
    arrays = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        plain = decode_dictionary(column)
        arrays.append(canonical_column(name, plain, place) if name in CANONICAL else plain)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def canonical_column(name: str, array: pa.Array, place: Place) -> pa.Array:
    """Return a canonical column under its declared type; raise `InputError` for a value that it cannot hold."""
    if array.type.equals(CANONICAL[name]):
        return array
    if _casts(array.type, CANONICAL[name]):
        try:
            return array.cast(CANONICAL[name])
        except pa.ArrowException:
            pass  # value by value, to name the row
    return _canonical(name, array.to_pylist(), place)


def _casts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether Arrow's cast means the same as the conversion of each value."""
    t = pa.types
    if t.is_null(found):
        return True
    if is_list(found) and t.is_list(wanted):
        return not (t.is_list_view(found) or t.is_large_list_view(found)) and _casts(
            found.value_type, wanted.value_type
        )
    if t.is_string(wanted):
        return t.is_string(found) or t.is_large_string(found) or t.is_string_view(found)
    if t.is_floating(wanted):
        return t.is_floating(found)
    return t.is_integer(wanted) and t.is_integer(found)


def column_of(name: str, values: Iterable[Any], place: Place) -> pa.Array:
    """Return the values of one column: under the declared type of a canonical name, else by what they hold."""
    values = list(values)
    if name in DTYPES:
        return _canonical(name, values, place)
    found = _by_values(values)
    if found is not None:
        return found
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(None if value is None else as_text(value))
        except (RecursionError, TypeError):
            raise InputError(f"{place(row)}: {name} cannot be written as JSON text; leave it out") from None
    return pa.array(texts, _TEXT)


def _canonical(name: str, values: list[Any], place: Place) -> pa.Array:
    dtype = DTYPES[name]
    try:
        return _FAST[dtype](values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # slower, value by value: what is odd is mended or named
    convert, expected = _CONVERT["id" if name in _IDS else dtype], _EXPECTED["id" if name in _IDS else dtype]
    converted = []
    for row, value in enumerate(values):
        try:
            converted.append(None if value is None else convert(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise InputError(f"{place(row)}: {name} is {shown(value)}, expected {expected}") from None
    return pa.array(converted, CANONICAL[name])


def shown(value: Any) -> str:
    """Return a value for a message: short, lists and objects by kind and length."""
    if isinstance(value, list | tuple | np.ndarray):
        odd = next((v for v in value if not isinstance(v, int | float | np.number)), None)
        return f"a list of {len(value)}" + ("" if odd is None else f" that holds {shown(odd)[:40]}")
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the usual case: every value of the declared kind ---------------------------------------------------------------


def _texts(values: list[Any]) -> pa.Array:
    if not set(map(type, values)) <= {str, type(None)}:
        raise TypeError
    return text_array(values)


def text_array(values: list[str | None]) -> pa.Array:
    """Return texts as an array: joined, which is twice as fast as one by one where they are long."""
    if None in values:
        return pa.array(values, _TEXT)
    encoded = [value.encode() for value in values]
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int64, len(encoded) + 1)
    if offsets[-1] >= 2**31:
        return pa.array(values, _TEXT)
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets.astype(np.int32)), data)


def _floats(values: list[Any]) -> pa.Array:
    if not set(map(type, values)) <= {float, int, type(None)}:
        raise TypeError
    return pa.array(values, pa.float64())


def _bools(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.bool_())


def _ints(values: list[Any]) -> pa.Array:
    if not set(map(type, values)) <= {int, type(None)}:
        raise TypeError
    return pa.array(values, pa.int64())


def _flat_lists(values: list[Any], kinds: set[type], code: str, dtype: type) -> pa.Array | None:
    """Return lists of plain numbers as an array, or None where a value is of another kind: three times as fast."""
    if not set(map(type, values)) <= {list, type(None)}:
        return None
    present = [value or () for value in values]
    flat = list(chain.from_iterable(present))
    if not set(map(type, flat)) <= kinds:
        return None
    offsets = np.fromiter(accumulate(map(len, present), initial=0), np.int32, len(values) + 1)
    items = pa.array(np.frombuffer(array(code, flat), code).astype(dtype, copy=False))
    missing = pa.array([value is None for value in values]) if None in values else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=missing)


def _id_lists(values: list[Any]) -> pa.Array:
    flat = _flat_lists(values, {int}, "i", np.int32)
    if flat is not None:
        return flat
    inferred = _inferred_lists(values)  # asked for int32, Arrow would cut fractions off
    return inferred.cast(pa.list_(pa.int32()))


def _float_lists(values: list[Any]) -> pa.Array:
    with np.errstate(over="ignore"):
        flat = _flat_lists(values, {float, int}, "d", np.float32)
    if flat is not None:
        return flat
    inferred = _inferred_lists(values)
    if pa.types.is_boolean(inferred.type.value_type):
        raise TypeError
    return inferred.cast(pa.list_(pa.float32()), safe=False)


def _inferred_lists(values: list[Any]) -> pa.Array:
    if not set(map(type, values)) <= {list, np.ndarray, type(None)}:
        raise TypeError
    inferred = pa.array(values)
    if pa.types.is_null(inferred.type):
        return inferred.cast(pa.list_(pa.null()))
    return inferred


def _bool_lists(values: list[Any]) -> pa.Array:
    inferred = _inferred_lists(values)
    kind = inferred.type.value_type
    if pa.types.is_integer(kind):
        flat = inferred.flatten().drop_null().to_numpy(zero_copy_only=False)
        if len(flat) and (flat.min() < 0 or flat.max() > 1):
            raise ValueError
    elif not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise TypeError
    return inferred.cast(pa.list_(pa.bool_()))


def _text_lists(values: list[Any]) -> pa.Array:
    if not set(map(type, values)) <= {list, type(None)}:
        raise TypeError
    if not set(map(type, chain.from_iterable(filter(None, values)))) <= {str, type(None)}:
        raise TypeError
    return pa.array(values, pa.list_(pa.string()))


def _maps(values: list[Any]) -> pa.Array:
    if not set(map(type, values)) <= {dict, type(None)}:
        raise TypeError
    if not set(map(type, chain.from_iterable(v.values() for v in values if v))) <= {float, int, type(None)}:
        raise TypeError
    return pa.array(values, pa.map_(pa.string(), pa.float64()))


_FAST = {
    "string": _texts, "float64": _floats, "bool": _bools, "int64": _ints, "list<int32>": _id_lists,
    "list<float32>": _float_lists, "list<bool>": _bool_lists, "list<string>": _text_lists,
    "map<string, float64>": _maps,
}  # fmt: skip


# --- the rest: one value at a time, mended where its meaning is plain -----------------------------------------------


def _id(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise TypeError


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


_CONVERT = {
    "id": _id, "string": as_text, "float64": number, "bool": verdict, "int64": whole,
    "list<int32>": _list_of(_token_id), "list<float32>": _list_of(_plain_float), "list<bool>": _list_of(_flag),
    "list<string>": _list_of(_text_item), "map<string, float64>": _map,
}  # fmt: skip
_EXPECTED = {
    "id": "text or a whole number", "string": "text", "float64": "a number", "bool": "true, false or null",
    "int64": "a whole number", "list<int32>": "a list of token ids (whole numbers of 32 bits)",
    "list<float32>": "a list of numbers", "list<bool>": "a list of true and false (or 1 and 0)",
    "list<string>": "a list of text", "map<string, float64>": "an object of numbers",
}  # fmt: skip


# --- columns that are not canonical ---------------------------------------------------------------------------------


def _by_values(values: list[Any]) -> pa.Array | None:
    """Return values of one simple kind under its type, None where they are mixed or nested."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return text_array(values)
    if kinds == {list} or kinds == {np.ndarray}:
        return _list_by_values(values)
    dtype = _scalar_type(kinds, values)
    return None if dtype is None else pa.array(values, dtype)


def _list_by_values(values: list[Any]) -> pa.Array | None:
    if any(isinstance(value, np.ndarray) for value in values):
        values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    items = list(chain.from_iterable(filter(None, values)))
    kinds = set(map(type, items)) - {type(None)}
    dtype = _NULL if not kinds else _TEXT if kinds == {str} else _scalar_type(kinds, items)
    return None if dtype is None else pa.array(values, pa.list_(dtype))


def _scalar_type(kinds: set[type], values: list[Any]) -> pa.DataType | None:
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {float}:
        return pa.float64()
    if kinds == {int} or kinds == {int, float}:
        size = max(abs(value) for value in values if type(value) is int)
        if kinds == {int}:
            return pa.int64() if size < 2**63 else None
        return pa.float64() if size <= _EXACT else None
    return None


def wider(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type that holds a column's values of two types: whole numbers become numbers, others text."""
    if a.equals(b) or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_list(a) and pa.types.is_list(b):
        inner = wider(a.value_type, b.value_type)
        kinds = {a.value_type, b.value_type}
        return _TEXT if inner.equals(_TEXT) and kinds != {_NULL, _TEXT} else pa.list_(inner)
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return _TEXT


def widen(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return a column under a type of `wider`: anything as text as `as_text` has it."""
    if array.type.equals(dtype):
        return array
    if dtype.equals(_TEXT) and not pa.types.is_null(array.type):
        return pa.array([None if value is None else as_text(value) for value in array.to_pylist()], _TEXT)
    return array.cast(dtype)
