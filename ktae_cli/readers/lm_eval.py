"""lm-evaluation-harness samples: `<out>/<model>/samples_<task>_<date>.jsonl`, written with `--log_samples`."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import as_label, as_list, as_object, place
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import ReaderOptions, Record, reader

_LARGEST_LITERAL = 1 << 24
_KEPT = ("doc", "doc_hash", "prompt_hash", "target_hash")


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("doc_id", "resps", "filtered_resps"),
    supplies=("group_id", "prompt", "response", "reward", "ground_truth"),
)
def lm_eval(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the logged samples of lm-eval: each line holds all repeats of one document.

    Source: lm-evaluation-harness `lm_eval/loggers/evaluation_tracker.py`, `save_results_samples`. A group is a
    document of one samples file. A document stands there once for each filter; it is taken once, under the first
    filter or that of `--map correct=METRIC,FILTER`. A metric is one value for all repeats: it is the reward where a
    document was answered once, and else passes through in `metrics`. Log-likelihood tasks have no responses.
    """
    seen: set[bytes] = set()
    passed: set[str] = set()
    wanted = (options.correct_column or "").partition(",")[2]
    for record in records:
        value, filter_name = record.value, record.value.get("filter")
        if wanted and filter_name != wanted:
            passed.add(str(filter_name))
            continue
        group = f"{Path(record.file).name.split('.jsonl')[0].removeprefix('samples_')}/{_document(record)}"
        key = hashlib.blake2b(group.encode(), digest_size=12).digest()
        if key in seen:
            options.count(f"lines of further filters left out (filter {filter_name})")
            continue
        seen.add(key)
        row = {"group_id": group, "prompt": _prompt(record), "response": None, "ground_truth": value.get("target")}
        metrics = {name: value.get(name) for name in _metric_names(record)}
        responses = _responses(record)
        name = _reward_name(metrics, filter_name, len(responses), options, record)
        if name is not None:
            row["reward"] = metrics.pop(name)
        rest = {name: value[name] for name in _KEPT if name in value} | {"filter": filter_name, "metrics": metrics}
        for response in responses:
            yield row | {"response": response} | rest
    if passed and not seen:
        raise InputError(
            f"--map correct={options.correct_column}: no filter {wanted!r}; found {', '.join(sorted(passed))}"
        )


def _document(record: Record) -> str:
    return as_label(record.value.get("doc_id"), "doc_id", record)


def _metric_names(record: Record) -> list[str]:
    return [str(name) for name in as_list(record.value.get("metrics"), "metrics", record)]


def _reward_name(
    metrics: dict[str, Any], filter_name: Any, n_responses: int, options: ReaderOptions, record: Record
) -> str | None:
    """Return the metric that is the reward, None where a document was answered several times."""
    once = n_responses == 1
    chosen = options.take_correct([f"{name},{filter_name}" for name in metrics] + [*metrics] * once)
    if not once:
        return None
    if chosen is None and len(metrics) > 1:
        raise InputError(f"{place(record)}: several metrics ({', '.join(metrics)}); name one with --map correct=METRIC")
    return next(iter(metrics), None) if chosen is None else chosen.partition(",")[0]


def _prompt(record: Record) -> str | None:
    """Return what was asked: the first argument of the first request."""
    arguments = as_object(record.value.get("arguments"), "arguments", record)
    first = arguments.get("gen_args_0")
    return text_of(first.get("arg_0")) if isinstance(first, dict) else None


def _responses(record: Record) -> list[str]:
    """Return the texts of all repeats; a list that was written as text is read as a Python literal."""
    found = record.value.get("resps")
    flat: list[str] = []
    for request in as_list(literal(found), "resps", record):
        flat += request if isinstance(request, list) else [request]
    if any(not isinstance(text, str) for text in flat):
        raise InputError(
            f"{place(record)}: resps holds log-likelihoods of given answers, not responses; "
            "only tasks that generate text (generate_until) can be read"
        )
    return flat


def literal(value: Any) -> Any:
    """Return the list that a text spells as a Python literal; anything else as it is. Nothing is executed."""
    if not isinstance(value, str) or len(value) > _LARGEST_LITERAL:
        return value
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
    return found if isinstance(found, list) else value
