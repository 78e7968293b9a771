"""Which prompt a row answers, whatever its step or group: a number that is the same in every file."""

import hashlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ktae_cli.groups import group_keys
from ktae_cli.mapping import Mapping
from ktae_cli.readers.base import column_at, digests

_TEXT = ("prompt_ids", "prompt")


def prompt_column(mapping: Mapping) -> str | None:
    """Return the path of the column that tells prompts apart: ids or text; None leaves the group key without its step.

    Text tells the prompts of two checkpoints to be the same, which names such as `question@step` do not.
    """
    return next((mapping.columns[name] for name in _TEXT if name in mapping.columns), None)


def prompt_paths(mapping: Mapping) -> list[str]:
    """Return the paths of the columns that `prompt_numbers` reads."""
    found = prompt_column(mapping)
    return [*([found] if found else []), *mapping.group_key]


def prompt_numbers(batch: pa.RecordBatch, mapping: Mapping, place: Callable[[int], str]) -> np.ndarray:
    """Return the prompt of each row (n_rows,) int64: 63 bits of the SHA-256 of its ids or text.

    Where a row has neither, of its group key, without the step where other columns are left.
    """
    found = prompt_column(mapping)
    if found:
        array = column_at(batch, found)
        known = _numbers(digests(array.fill_null([] if pa.types.is_nested(array.type) else ""), found, place(0)))
        if not array.null_count:
            return known
        return np.where(np.asarray(array.is_null()), _by_key(batch, mapping, place), known)
    return _by_key(batch, mapping, place)


def _by_key(batch: pa.RecordBatch, mapping: Mapping, place: Callable[[int], str]) -> np.ndarray:
    step = mapping.columns.get("step")
    rest = tuple(path for path in mapping.group_key if path != step) or mapping.group_key
    keys = group_keys(batch, Mapping(mapping.columns, rest, mapping.hashed), place).dictionary_encode()
    texts = keys.dictionary.to_pylist()
    hashed = [int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16], 16) >> 1 for text in texts]
    return np.array(hashed, np.int64)[np.asarray(keys.indices)]


def _numbers(hexes: pa.Array) -> np.ndarray:
    encoded = hexes.dictionary_encode()
    numbers = [int(text, 16) >> 1 for text in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[np.asarray(encoded.indices)]
