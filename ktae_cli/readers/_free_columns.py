"""Columns that are not canonical: their values decide the type, and the type widens from batch to batch."""

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.readers._number_lists import EXACT, number_lists
from ktae_cli.readers._plain_columns import text_array
from ktae_cli.readers._values import as_text

_TEXT = pa.string()
_NULL = pa.null()


def by_values(values: list[Any]) -> pa.Array | None:
    """Return values of one simple kind, or lists of one, under its type; None where they are mixed or nested."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return text_array(values)
    if kinds == {list} or kinds == {np.ndarray}:
        return _lists_by_values(values)
    dtype = _scalar_type(kinds, values)
    return None if dtype is None else pa.array(values, dtype)


def _lists_by_values(values: list[Any]) -> pa.Array | None:
    if any(isinstance(value, np.ndarray) for value in values):
        values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    if not any(values):
        return pa.array(values, pa.list_(_NULL))
    for code, dtype in (("q", np.int64), ("d", np.float64)):
        found = number_lists(values, code, dtype)
        if found is not None:
            return found
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
        whole = [value for value in values if type(value) is int]
        low, high = min(whole), max(whole)
        if kinds == {int}:
            return pa.int64() if low >= -(2**63) and high < 2**63 else None
        return pa.float64() if low >= -EXACT and high <= EXACT else None
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
