"""lighteval details: `details/<model>/<date>/details_<task>_<date>.parquet`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record, is_list, reader


@reader(
    files=(".parquet",),
    shape="parquet",
    keys=("doc", "model_response", "metric"),
    supplies=("group_id", "prompt", "response", "prompt_ids", "response_ids", "ground_truth"),
)
def lighteval(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the details of lighteval: one document a row, all its samples inside.

    Source: lighteval `src/lighteval/logging/evaluation_tracker.py`, `save_details`. A group is a document of one
    details file. `metric` is one value for all samples of a document and passes through: no sample has a reward or
    a verdict of its own. Token ids are taken where the model's backend gave them.
    """
    told = False
    for record in records:
        run = Path(record.file).stem.removeprefix("details_")
        for i, rest in enumerate(record.value.to_pylist()):
            where = f"{record.file}, row {record.line + i}"
            doc, answer = rest.pop("doc") or {}, rest.pop("model_response") or {}
            texts, ids = answer.get("text") or [], answer.get("output_tokens") or []
            if ids and len(ids) != len(texts):
                raise InputError(f"{where}: {len(texts)} texts and {len(ids)} lists of output_tokens")
            prompt = answer.get("input")
            shared = {
                "group_id": f"{run}/{doc.get('id') if doc.get('id') is not None else record.line + i}",
                "prompt": text_of(doc.get("query") if prompt is None else prompt),
            }
            if answer.get("input_tokens"):
                shared["prompt_ids"] = answer["input_tokens"]
            for j, text in enumerate(texts):
                row = shared | {"response": text, "ground_truth": _ground_truth(doc), SOURCE_ROW: i}
                yield row | ({"response_ids": ids[j]} if ids else {}) | _kept(doc, rest)
        if not told:
            told = True
            options.notice(
                "lighteval keeps one metric for all samples of a document: there is no reward for each; "
                "`ktae verify` grades them against ground_truth"
            )


def _kept(doc: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    task = {"task_name": doc["task_name"]} if doc.get("task_name") is not None else {}
    return task | rest


def _ground_truth(doc: dict[str, Any]) -> str | None:
    """Return the right choice; of several right ones the first."""
    choices, gold = doc.get("choices"), doc.get("gold_index")
    gold = gold[0] if isinstance(gold, list) and gold else gold
    if not isinstance(choices, list) or not isinstance(gold, int) or not 0 <= gold < len(choices):
        return None
    return choices[gold]


def _fits(schema: pa.Schema) -> bool:
    doc, answer = schema.field("doc").type, schema.field("model_response").type
    if not (pa.types.is_struct(doc) and pa.types.is_struct(answer)):
        return False
    return answer.get_field_index("text") >= 0 and is_list(answer.field("text").type)


lighteval.fits = _fits
