"""Data sets of prompts with the responses in numbered columns, as r1_solution_1 to r1_solution_3 of DeepMath-103K."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ktae_cli.readers._fields import with_rest
from ktae_cli.readers._named_verdicts import verdict_name
from ktae_cli.readers._prompt_rows import holds_rollouts, prompt_columns, take_prompt
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record, reader

_NUMBERED = re.compile(r"(.+)_([1-9]\d*)")
_RESPONSES = re.compile(r"solution|response|completion|generation|output", re.IGNORECASE)


@reader(files=(".parquet",), shape="parquet", keys=(), supplies=("group_id", "prompt", "response", "ground_truth"))
def wide(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read rows of one prompt with its responses in columns NAME_1 to NAME_k; a null response is none.

    Other columns numbered in the same way belong to the response of their number and lose it: `correct_1` to
    `correct_3` become `correct`.
    """
    for record in records:
        batch = record.value
        numbered = _numbered(batch.schema)
        responses = _responses(batch.schema)
        count = numbered[responses]
        beside = [stem for stem, n in numbered.items() if n == count and stem != responses]
        verdict = verdict_name(beside, options, record.file)
        taken = [f"{stem}_{k}" for stem in (responses, *beside) for k in range(1, count + 1)]
        shared = prompt_columns(name for name in batch.schema.names if name not in taken)
        for i, rest in enumerate(batch.to_pylist()):
            cells = {name: rest.pop(name) for name in taken}
            prompt = take_prompt(rest, shared)
            for k in range(1, count + 1):
                items = {stem: cells[f"{stem}_{k}"] for stem in beside}
                row = prompt | {"response": cells[f"{responses}_{k}"]}
                if verdict:
                    row["correct"] = items.pop(verdict)
                if row["response"] is not None:
                    yield with_rest(row, items | rest) | {SOURCE_ROW: i}


def _numbered(schema: pa.Schema) -> dict[str, int]:
    """Return the stems of columns numbered from 1 on without a gap, with how many there are of each."""
    numbers: dict[str, set[int]] = {}
    for name in schema.names:
        if found := _NUMBERED.fullmatch(name):
            numbers.setdefault(found[1], set()).add(int(found[2]))
    return {stem: len(n) for stem, n in numbers.items() if len(n) > 1 and max(n) == len(n)}


def _responses(schema: pa.Schema) -> str | None:
    """Return the only stem of numbered texts that sounds like responses."""
    texts = [stem for stem in _numbered(schema) if _is_text(schema.field(f"{stem}_1").type)]
    found = [stem for stem in texts if _RESPONSES.search(stem)]
    return found[0] if len(found) == 1 else None


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def _fits(schema: pa.Schema) -> bool:
    if holds_rollouts(schema.names) or "prompt" not in prompt_columns(schema.names):
        return False
    return _responses(schema) is not None


wide.fits = _fits
