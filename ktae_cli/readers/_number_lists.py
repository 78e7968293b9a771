"""Lists of Python numbers as one Arrow array, packed list by list: a fraction of what Arrow takes a number."""

from itertools import accumulate, chain, compress
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import pyarrow as pa

EXACT = 1 << 53
"""Larger whole numbers are not exact as float64."""


def number_lists(values: list[Any], code: str, dtype: type) -> pa.Array | None:
    """Return lists of numbers as a list array of `dtype`, or None where one of them holds something else.

    code: how `struct` packs a number, "i" or "q" for whole numbers, "d" for any. A list may be None. None in a list,
    booleans, text, and whole numbers that the code cannot hold exactly are something else.
    """
    found = _packed(values, code)
    if found is None:
        return None
    lists, numbers = found
    # True and False pack as 1 and 0, and whole numbers of over 53 bits as a float near them: look at those again.
    if not _kinds_at((numbers == 0) | (numbers == 1), lists) <= {int, float}:
        return None
    if code == "d" and not _kinds_at(np.abs(numbers) >= EXACT, lists) <= {float}:
        return None
    with np.errstate(over="ignore"):
        return _list_array(values, lists, numbers.astype(dtype, copy=False))


def flag_lists(values: list[Any]) -> pa.Array | None:
    """Return lists of booleans, or of 0 and 1, as a list array, or None where one of them holds something else."""
    found = _packed(values, "b")
    if found is None or not np.isin(found[1], (0, 1)).all():
        return None
    return _list_array(values, found[0], found[1].view(bool))


def _packed(values: list[Any], code: str) -> tuple[list[list[Any]], np.ndarray] | None:
    """Return (the lists, None as an empty one; their numbers end to end), or None where something cannot be packed."""
    if not set(map(type, values)) <= {list, type(None)}:
        return None
    lists = [value or [] for value in values]
    try:
        packed = b"".join([Struct(f"{len(value)}{code}").pack(*value) for value in lists])
    except (StructError, TypeError, ValueError, OverflowError):
        return None
    return lists, np.frombuffer(packed, code)


def _kinds_at(chosen: np.ndarray, lists: list[list[Any]]) -> set[type]:
    """Return the types of the chosen numbers, `chosen` (n_numbers,) bool."""
    return set(map(type, compress(chain.from_iterable(lists), chosen.tobytes()))) if chosen.any() else set()


def _list_array(values: list[Any], lists: list[list[Any]], numbers: np.ndarray) -> pa.Array:
    offsets = np.fromiter(accumulate(map(len, lists), initial=0), np.int32, len(lists) + 1)
    missing = pa.array([value is None for value in values]) if None in values else None
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers), mask=missing)
