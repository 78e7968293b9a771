"""Data sets of prompts with parallel lists of generations and verdicts, as open-r1/OpenR1-Math-220k."""

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import with_rest
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._named_verdicts import verdict_name
from ktae_cli.readers._prompt_rows import holds_rollouts, prompt_columns, take_prompt
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record, is_list, reader

_RESPONSES = ("generations", "completions", "samples", "responses", "outputs")
_PARALLEL = re.compile(r"correct|^acc|score|reward|finish|stop_reason|complete|verified", re.IGNORECASE)
_FINISH = ("finish_reasons", "finish_reason", "stop_reasons", "stop_reason")
_REWARDS = ("rewards", "reward", "scores", "score")


@reader(
    files=(".parquet",),
    shape="parquet",
    keys=(),
    supplies=("group_id", "prompt", "response", "reward", "correct", "ground_truth", "finish_reason"),
)
def openr1(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read rows of one prompt whose columns hold a list with one item for each generation.

    Lists of verdicts, scores, rewards and finish reasons are parallel to the generations: equal lengths are checked
    row by row, a null list says that they are unknown. `correct` is `correctness_math_verify`, else the only list
    that sounds like a verdict, else that of `--map correct=COLUMN`. Where there are verdicts and no rewards, the
    reward is the verdict.
    """
    for record in records:
        batch = record.value
        lists = _lists(batch.schema)
        responses = _texts(batch.schema)[0]
        parallel = [name for name in lists if name != responses and _PARALLEL.search(name)]
        verdict = _verdict(parallel, options, record)
        shared = prompt_columns(name for name in batch.schema.names if name not in lists)
        for i, rest in enumerate(batch.to_pylist()):
            texts = rest.pop(responses) or []
            columns = {name: rest.pop(name) for name in parallel}
            odd = [f"{name} {len(v)}" for name, v in columns.items() if v is not None and len(v) != len(texts)]
            if odd:
                _refuse(f"{record.file}, row {record.line + i}", f"{responses} {len(texts)}, {', '.join(odd)}", options)
                continue
            prompt = take_prompt(rest, shared)
            for j, text in enumerate(texts):
                items = {name: None if values is None else values[j] for name, values in columns.items()}
                yield with_rest(prompt | _rollout(text, items, verdict), items | rest) | {SOURCE_ROW: i}


def _rollout(text: str | None, items: dict[str, Any], verdict: str | None) -> dict[str, Any]:
    """Return the canonical columns of one generation; what they are made of is taken out of its items."""
    row = {"response": text}
    if verdict:
        row["correct"] = items.pop(verdict)
    for name in _REWARDS:
        if "reward" not in row and name in items:
            row["reward"] = items.pop(name)
    for name in _FINISH:
        if name in items:
            row["finish_reason"] = finish_reason(items.pop(name))
    return row


def _verdict(names: list[str], options: ReaderOptions, record: Record) -> str | None:
    chosen = options.take_correct(names)
    if chosen is None and "correctness_math_verify" in names:
        return "correctness_math_verify"
    return chosen or verdict_name(names, options, record.file)


def _refuse(where: str, lengths: str, options: ReaderOptions) -> None:
    if options.on_mismatch != "drop":
        raise InputError(
            f"{where}: lists of unequal length ({lengths}); correct the row, or leave such rows out with "
            "--on-mismatch drop"
        )
    options.count("rows dropped, their lists of unequal length")


def _lists(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if is_list(field.type) and not pa.types.is_struct(field.type.value_type)]


def _texts(schema: pa.Schema) -> list[str]:
    lists = _lists(schema)
    return [name for name in _RESPONSES if name in lists and _is_text(schema.field(name).type.value_type)]


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def _fits(schema: pa.Schema) -> bool:
    """Tell whether a column holds lists of texts, and another one lists of verdicts or rewards beside them."""
    lists, texts = _lists(schema), _texts(schema)
    return (
        bool(texts)
        and not holds_rollouts(schema.names)
        and any(_PARALLEL.search(name) for name in lists if name not in texts)
    )


openr1.fits = _fits
