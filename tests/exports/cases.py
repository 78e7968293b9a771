"""Scored files for the exports, their rollouts in plain Python, and readers of formats that share no code with ours."""

import json
import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.test_scored import FLOATS, INTS, write_scored

NAN = float("nan")

# BOS 1, EOS 2, padding 0: 0 and 2 are tokens like any other here.
ROWS = [
    # two right and two wrong siblings; a hole in the mask; the first token of the response is masked
    {"group_id": "g", "rollout_id": "hole", "prompt": "a?", "prompt_ids": [1, 90, 91], "response_ids": [5, 6, 7, 8, 2],
     "response_mask": [True, False, False, True, True], "reward": 1.0, "correct": True, "finish_reason": "stop",
     "advantages": [0.5, 9.0, 9.0, -0.25, 1.5], "key_weight": [0.25, 0.0, 0.0, -0.5, 0.75]},
    {"group_id": "g", "rollout_id": "tool first", "prompt": "a?", "prompt_ids": [1, 90, 91], "response_ids": [7, 7, 5],
     "response_mask": [False, True, True], "reward": 1.0, "correct": True, "finish_reason": "stop",
     "advantages": [3.0, 0.125, 0.25], "key_weight": [0.0, -0.5, 0.25]},
    {"group_id": "g", "rollout_id": "truncated", "prompt": "a?", "prompt_ids": [1, 90, 91],
     "response_ids": [6, 0, 0, 9], "response_mask": None, "reward": 0.0, "correct": False, "finish_reason": "length",
     "advantages": [-1.0, -1.25, -1.5, -2.0], "key_weight": [0.0, -0.25, -0.5, -1.0]},
    {"group_id": "g", "rollout_id": "wrong", "prompt": "a?", "prompt_ids": [1, 90, 91], "response_ids": [6, 2],
     "response_mask": [True, True], "reward": 0.0, "correct": False, "finish_reason": "stop",
     "advantages": [-0.75, -0.5], "key_weight": [0.25, 0.5]},
    # an unknown reward; an unknown verdict; an empty response; everything masked
    {"group_id": "h", "rollout_id": "unscored", "prompt": "b?", "prompt_ids": [1, 92], "response_ids": [5],
     "response_mask": None, "reward": None, "correct": None, "finish_reason": "stop", "advantages": None,
     "key_weight": None},
    {"group_id": "h", "rollout_id": "no verdict", "prompt": "b?", "prompt_ids": [1, 92], "response_ids": [5, 2],
     "response_mask": None, "reward": 0.5, "correct": None, "finish_reason": None, "advantages": [0.75, 2.0],
     "key_weight": [0.0, 0.0]},
    {"group_id": "h", "rollout_id": "empty", "prompt": "b?", "prompt_ids": [1, 92], "response_ids": [],
     "response_mask": [], "reward": 1.0, "correct": True, "finish_reason": "abort", "advantages": [], "key_weight": []},
    {"group_id": "h", "rollout_id": "masked", "prompt": "b?", "prompt_ids": [1, 92], "response_ids": [4, 4],
     "response_mask": [False, False], "reward": 0.0, "correct": False, "finish_reason": "stop",
     "advantages": [7.0, 7.0], "key_weight": [7.0, 7.0]},
    # a dead group: no contrast
    {"group_id": "dead", "rollout_id": "one token", "prompt": "c?", "prompt_ids": [1], "response_ids": [2],
     "response_mask": [True], "reward": 1.0, "correct": True, "finish_reason": "stop", "advantages": [0.0],
     "key_weight": [0.0]},
    {"group_id": "dead", "rollout_id": "zeros", "prompt": "c?", "prompt_ids": [1], "response_ids": [8, 9, 8],
     "response_mask": [True, False, True], "reward": 1.0, "correct": True, "finish_reason": "stop",
     "advantages": [0.0, 5.0, 0.0], "key_weight": [0.0, 0.0, 0.0]},
]  # fmt: skip
for number, row in enumerate(ROWS):
    drawn = np.random.default_rng(number).uniform(-3, 0, len(row["response_ids"])).astype(np.float32)
    row |= {"step": 7, "old_log_probs": drawn.tolist(), "rollout_log_probs": (drawn - 0.5).tolist()}
    row["response"] = " ".join(map(str, row["response_ids"]))

TYPES = {
    "group_id": pa.string(), "rollout_id": pa.string(), "prompt": pa.string(), "response": pa.string(),
    "prompt_ids": INTS, "response_ids": INTS, "response_mask": pa.list_(pa.bool_()), "reward": pa.float64(),
    "correct": pa.bool_(), "finish_reason": pa.string(), "step": pa.int64(), "advantages": FLOATS, "key_weight": FLOATS,
    "old_log_probs": FLOATS, "rollout_log_probs": FLOATS,
}  # fmt: skip


def write_case(path: Path, rows: list[dict] = ROWS, without: tuple[str, ...] = (), **metadata) -> Path:
    """Write rows as a scored file, without some columns."""
    return write_scored(path, rows, {n: t for n, t in TYPES.items() if n not in without}, **metadata)


@dataclass(frozen=True)
class Rollout:
    """One exported rollout as plain lists: ids of the sequence, and mask and values that are 0 on the prompt."""

    ids: list[int]
    mask: list[bool]
    values: list[float]
    row: dict = field(repr=False)


@cache
def rollouts_of(path: Path, column: str = "advantages", bos: int | None = None) -> dict[str, Rollout]:
    """Read the scored rollouts of a file the slow way; `bos` stands for an absent prompt."""
    columns = json.loads(pq.read_metadata(path).metadata[b"ktae"]).get("columns") or {}
    found = {}
    for row in pq.read_table(path).to_pylist():
        row |= {name: row[own] for name, own in columns.items() if isinstance(own, str) and own in row}
        if row[column] is None:
            continue
        prompt = row.get("prompt_ids") or ([] if bos is None else [bos])
        mask = [bool(on) for on in row.get("response_mask") or [True] * len(row["response_ids"])]
        values = [value if on else 0.0 for value, on in zip(row[column], mask, strict=True)]
        before = len(prompt)
        found[row["rollout_id"]] = Rollout(
            [*prompt, *row["response_ids"]], [False] * before + mask, [0.0] * before + values, row
        )
    return found


def read_lines(path: Path) -> list[dict]:
    """Read JSON lines; NaN and infinities are no JSON."""

    def refuse(name):
        raise AssertionError(f"{name} in {path}")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file by its specification: (tensors, metadata)."""
    names = {"I64": "<i8", "F32": "<f4", "BOOL": "?", "F64": "<f8"}
    data = np.memmap(path, np.uint8, "r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    metadata = header.pop("__metadata__")
    body, tensors, end = data[8 + length :], {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        assert start == end, "the tensors leave no gap"
        end = stop
        tensors[name] = np.asarray(body[start:stop]).view(names[entry["dtype"]]).reshape(entry["shape"])
    assert end == len(body)
    return tensors, metadata
