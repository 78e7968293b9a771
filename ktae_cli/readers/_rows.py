"""Rows as dicts -> Arrow batches: canonical columns under their declared types, others by what they hold."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers._canonical_types import CANONICAL, DTYPES
from ktae_cli.readers._free_columns import by_values
from ktae_cli.readers._plain_columns import plain_column
from ktae_cli.readers._values import as_text, conversion, shown
from ktae_cli.readers.base import is_list

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


def column_of(name: str, values: Iterable[Any], place: Place) -> pa.Array:
    """Return the values of one column: under the declared type of a canonical name, else by what they hold."""
    values = list(values)
    if name in DTYPES:
        return _canonical(name, values, place)
    found = by_values(values)
    if found is not None:
        return found
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(None if value is None else as_text(value))
        except (RecursionError, TypeError):
            raise InputError(f"{place(row)}: {name} cannot be written as JSON text; leave it out") from None
    return pa.array(texts, pa.string())


def _canonical(name: str, values: list[Any], place: Place) -> pa.Array:
    dtype = DTYPES[name]
    try:
        return plain_column(dtype, values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # slower, value by value: what is odd is mended or named
    convert, expected = conversion(name, dtype)
    converted = []
    for row, value in enumerate(values):
        try:
            converted.append(None if value is None else convert(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise InputError(f"{place(row)}: {name} is {shown(value)}, expected {expected}") from None
    return pa.array(converted, CANONICAL[name])


def canonical_batch(batch: pa.RecordBatch, place: Place) -> pa.RecordBatch:
    """Return a batch with its canonical columns under their declared types; the others stay, dictionaries decoded."""
    arrays = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        dtype = _without_dictionaries(column.type)
        plain = column if column.type.equals(dtype) else column.cast(dtype)
        arrays.append(canonical_column(name, plain, place) if name in CANONICAL else plain)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _without_dictionaries(dtype: pa.DataType) -> pa.DataType:
    """Return a type with its dictionaries decoded, those in lists and structs too: batches have each their own."""
    if pa.types.is_dictionary(dtype):
        return dtype.value_type
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        make = pa.list_ if pa.types.is_list(dtype) else pa.large_list
        return make(dtype.value_field.with_type(_without_dictionaries(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_without_dictionaries(field.type)) for field in dtype])
    return dtype


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
