"""Tensors in one safetensors file, written chunk by chunk: `safetensors.torch.load_file` reads it.

Format (huggingface/safetensors, README): 8 bytes little-endian length of the header, the header as JSON (for each
tensor dtype, shape and data_offsets; `__metadata__` maps text to text), then the tensors, one after the other.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ktae_cli.errors import KtaeError

_NAMES = {
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float32": "F32",
    "float64": "F64",
}
_LARGEST_HEADER = 100_000_000  # readers refuse a longer one


def write_tensors(
    target: Path,
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    chunks: Iterable[Mapping[str, np.ndarray]],
    metadata: Mapping[str, Any],
) -> None:
    """Write tensors of known (dtype, shape) from chunks of their first axis.

    A chunk holds the next rows of every tensor, of the dtype and the trailing shape that `shapes` says. Metadata that
    are no text are written as JSON. Raises `KtaeError` when the header is longer than readers take.
    """
    header, at, offsets = {"__metadata__": _texts(metadata)}, 0, {}
    for name, (dtype, shape) in shapes.items():
        offsets[name] = at
        at += np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offsets[name], at]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST_HEADER:
        raise KtaeError("the ids of the rollouts exceed what a safetensors header holds; write several files: --shards")
    begin = 8 + len(text)
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(begin + at)
        for chunk in chunks:
            for name, (dtype, _) in shapes.items():
                data = np.ascontiguousarray(chunk[name], dtype)
                file.seek(begin + offsets[name])
                file.write(data.data)
                offsets[name] += data.nbytes


def _texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in metadata.items()
    }
