"""The tensors of a pickled tensordict, without tensordict: plain, consolidated, or as verl's numpy serialisation."""

import math
from io import BytesIO
from typing import Any

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import place
from ktae_cli.readers._torch import Unknown, load_torch
from ktae_cli.readers.base import Record

_DTYPES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "i1",
    "uint8": "u1", "bool": "?",
}  # fmt: skip


def tensors_of(saved: Any, record: Record) -> dict[str, np.ndarray]:
    """Return name -> array of a batch as `DataProto.__getstate__` has it; raise `InputError` for another layout.

    saved: the bytes of `torch.save(tensordict)`, or (batch size, device, {name: (dtype, shape, bytes)}).
    """
    try:
        if isinstance(saved, bytes):
            return _of_torch(load_torch(BytesIO(saved), unknown=True, name=record.file))
        _, _, columns = saved
        return {name: _array(raw, dtype, shape) for name, (dtype, shape, raw) in columns.items()}
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        raise InputError(f"{place(record)}: the tensors have a layout that is not read; use `verl.record`") from None


def _of_torch(saved: Any) -> dict[str, np.ndarray]:
    """Return the tensors of what pickle made of a tensordict: its class's state, or metadata and one flat storage."""
    if not isinstance(saved, Unknown):
        raise TypeError
    if saved.name == "_rebuild_tensordict_files_consolidated":
        metadata, storage = saved.args
        return _of_storage(metadata, np.ascontiguousarray(storage).view(np.uint8))
    state = saved.state if isinstance(saved.state, dict) else saved.args[-1]
    return {name: array for name, array in state["_tensordict"].items() if isinstance(array, np.ndarray)}


def _of_storage(metadata: dict[str, Any], storage: np.ndarray) -> dict[str, np.ndarray]:
    arrays = {}
    for name, (dtype, shape, start, stop, *_) in metadata["leaves"].items():
        arrays[name] = _array(storage[start:stop].tobytes(), dtype, shape)
    return arrays


def _array(raw: bytes, dtype: str, shape: Any) -> np.ndarray:
    """Return bytes, which padding may follow, as an array."""
    name = str(dtype).removeprefix("torch.")
    shape = tuple(int(n) for n in shape)
    if name == "bfloat16":
        halves = np.frombuffer(raw, "<u2", count=math.prod(shape)).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32).reshape(shape)
    return np.frombuffer(raw, _DTYPES[name], count=math.prod(shape)).reshape(shape)
