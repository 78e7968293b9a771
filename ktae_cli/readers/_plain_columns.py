"""The usual case of a canonical column: every value of the declared kind, taken in a few steps for all of them.

Each function raises `TypeError`, `ValueError`, `OverflowError` or an Arrow exception where a value is of another kind.
"""

from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.readers._number_lists import flag_lists, number_lists

_NONE = type(None)


def plain_column(dtype: str, values: list[Any]) -> pa.Array:
    """Return values under a declared type; raise an error, of which row is not said, where one is of another kind."""
    return _OF[dtype](values)


def text_array(values: list[str | None]) -> pa.Array:
    """Return texts as an array: joined, which is twice as fast as one by one where they are long."""
    if None in values:
        _check(values, {str, _NONE})
        return pa.array(values, pa.string())
    if all(map(str.isascii, values)):  # as long in bytes as in characters
        pieces, data = values, "".join(values).encode()
    else:
        pieces = list(map(str.encode, values))
        data = b"".join(pieces)
    if len(data) >= 2**31:
        return pa.array(values, pa.string())
    offsets = np.fromiter(accumulate(map(len, pieces), initial=0), np.int32, len(values) + 1)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(data))


def _check(values: list[Any], kinds: set[type]) -> None:
    if not set(map(type, values)) <= kinds:
        raise TypeError


def _floats(values: list[Any]) -> pa.Array:
    _check(values, {float, int, _NONE})
    return pa.array(values, pa.float64())


def _bools(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.bool_())


def _ints(values: list[Any]) -> pa.Array:
    _check(values, {int, _NONE})
    return pa.array(values, pa.int64())


def _id_lists(values: list[Any]) -> pa.Array:
    found = number_lists(values, "i", np.int32)
    # Asked for int32, Arrow would cut fractions off.
    return _inferred_numbers(values).cast(pa.list_(pa.int32())) if found is None else found


def _float_lists(values: list[Any]) -> pa.Array:
    found = number_lists(values, "d", np.float32)
    return _inferred_numbers(values).cast(pa.list_(pa.float32()), safe=False) if found is None else found


def _inferred_numbers(values: list[Any]) -> pa.Array:
    inferred = _inferred_lists(values)
    kind = inferred.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise TypeError
    return inferred


def _bool_lists(values: list[Any]) -> pa.Array:
    found = flag_lists(values)
    if found is not None:
        return found
    inferred = _inferred_lists(values)
    kind = inferred.type.value_type
    if pa.types.is_integer(kind):
        flat = inferred.flatten().drop_null().to_numpy(zero_copy_only=False)
        if len(flat) and (flat.min() < 0 or flat.max() > 1):
            raise ValueError
    elif not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise TypeError
    return inferred.cast(pa.list_(pa.bool_()))


def _inferred_lists(values: list[Any]) -> pa.Array:
    _check(values, {list, np.ndarray, _NONE})
    kinds = set(map(type, chain.from_iterable(value for value in values if type(value) is list))) - {_NONE}
    if len(kinds) > 1 and not kinds.isdisjoint({bool, np.bool_}):  # Arrow takes them for numbers
        raise TypeError
    inferred = pa.array(values)
    return inferred.cast(pa.list_(pa.null())) if pa.types.is_null(inferred.type) else inferred


def _text_lists(values: list[Any]) -> pa.Array:
    _check(values, {list, _NONE})
    _check(chain.from_iterable(filter(None, values)), {str, _NONE})
    return pa.array(values, pa.list_(pa.string()))


def _maps(values: list[Any]) -> pa.Array:
    _check(values, {dict, _NONE})
    _check(chain.from_iterable(value.values() for value in values if value), {float, int, _NONE})
    return pa.array(values, pa.map_(pa.string(), pa.float64()))


_OF = {
    "string": text_array, "float64": _floats, "bool": _bools, "int64": _ints, "list<int32>": _id_lists,
    "list<float32>": _float_lists, "list<bool>": _bool_lists, "list<string>": _text_lists,
    "map<string, float64>": _maps,
}  # fmt: skip
