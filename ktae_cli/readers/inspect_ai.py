"""Inspect logs: `logs/<date>_<task>_<id>.eval` or `.json`."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import as_label, as_list, as_object, place
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import ReaderOptions, Record, reader

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_VERDICTS = {"C": True, "I": False, "N": False}
_LIMITS = {"token": "length", "message": "length", "context": "length", "time": "abort", "working": "abort"}
_ATTACHMENT = "attachment://"


@reader(
    files=(".eval", ".json"),
    shape="document",
    keys=(),
    supplies=(
        "group_id", "rollout_id", "prompt", "response", "reward", "correct", "rewards", "ground_truth", "finish_reason",
    ),
)  # fmt: skip
def inspect_ai(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the samples of an Inspect log, one rollout for each sample and epoch.

    Source: inspect_ai `src/inspect_ai/log/_log.py`, `EvalSample`, and the values of its scorers: C, P, I and N are
    1, 0.5, 0 and 0. A group is a sample's `id` in one log, its epochs are the rollouts. The score is that of the only
    scorer, else of `--map correct=SCORER`; all are kept in `rewards`. C is right, I and N are wrong, P is neither;
    a score that is a number is right above `--correct-threshold`. The response is what follows the input in
    `messages`, else the output's completion; samples that ended in an error have finish_reason error.
    """
    run = ""
    for record in records:
        value = as_object(record.value, "the document", record)
        if "eval" in value:
            run = _run(value, record)
        samples = [value] if _is_sample(value) else as_list(value.get("samples"), "samples", record)
        for sample in samples:
            yield _row(as_object(sample, "a sample", record), run, record, options)


def _run(log: dict[str, Any], record: Record) -> str:
    header = as_object(log["eval"], "eval", record)
    names = [header.get(name) for name in ("eval_id", "run_id", "task_id", "task")]
    return next((f"{name}/" for name in names if isinstance(name, str) and name), "")


def _row(sample: dict[str, Any], run: str, record: Record, options: ReaderOptions) -> dict[str, Any]:
    group = f"{run}{as_label(sample.get('id'), 'the id of a sample', record)}"
    epoch = sample.get("epoch")
    asked = _resolved(sample.get("input"), sample)
    row: dict[str, Any] = {"group_id": group, "rollout_id": f"{group}/{1 if epoch is None else epoch}"}
    row |= {"prompt": text_of(asked), "response": _response(sample)}
    scores = _scores(sample, record)
    if scores:
        name = _chosen(scores, options, record)
        row["reward"] = _number(scores[name])
        if isinstance(scores[name], bool):
            row["correct"] = scores[name]
        elif isinstance(scores[name], str) and scores[name] in _LETTERS:
            row["correct"] = _VERDICTS.get(scores[name])
        row["rewards"] = {name: _number(value) for name, value in scores.items()}
    target = sample.get("target")
    row["ground_truth"] = target[0] if isinstance(target, list) and len(target) == 1 else target
    row["finish_reason"] = _finish_reason(sample)
    return row | {"sample_id": sample.get("id"), "epoch": epoch} | _kept(sample)


def _scores(sample: dict[str, Any], record: Record) -> dict[str, Any]:
    """Return the values of all scorers by name; those of a scorer with several values as `scorer.value`."""
    found = {}
    for name, score in as_object(sample.get("scores"), "scores", record).items():
        value = score.get("value") if isinstance(score, dict) else score
        if isinstance(value, dict):
            found |= {f"{name}.{part}": item for part, item in value.items()}
        elif isinstance(value, list):
            found |= {f"{name}.{i}": item for i, item in enumerate(value)}
        else:
            found[name] = value
    return found


def _chosen(scores: dict[str, Any], options: ReaderOptions, record: Record) -> str:
    chosen = options.take_correct(scores)
    if chosen is not None or len(scores) == 1:
        return next(iter(scores)) if chosen is None else chosen
    shown = ", ".join(scores)
    raise InputError(f"{place(record)}: several scores ({shown}); name one with --map correct={next(iter(scores))}")


def _number(value: Any) -> float | None:
    """Return a score as a number; a word that means none is unknown."""
    if isinstance(value, str):
        if value in _LETTERS:
            return _LETTERS[value]
        try:
            return float(value.replace("_", "?"))
        except ValueError:
            return {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}.get(value.lower())
    return float(value) if isinstance(value, bool | int | float) else None


def _response(sample: dict[str, Any]) -> str | None:
    """Return what the model and its tools wrote: the messages from the first of the assistant on."""
    messages = sample.get("messages")
    messages = messages if isinstance(messages, list) else []
    given = len(sample["input"]) if isinstance(sample.get("input"), list) else 0
    for i, message in enumerate(messages):
        if i >= given and isinstance(message, dict) and message.get("role") == "assistant":
            return text_of(_resolved(messages[i:], sample))
    output = sample.get("output")
    return output.get("completion") if isinstance(output, dict) else None


def _finish_reason(sample: dict[str, Any]) -> str | None:
    if sample.get("error"):
        return "error"
    limit = sample.get("limit")
    if isinstance(limit, dict):
        return _LIMITS.get(str(limit.get("type")), "abort")
    output = sample.get("output")
    choices = output.get("choices") if isinstance(output, dict) else None
    last = choices[0] if isinstance(choices, list) and choices else None
    return finish_reason(last.get("stop_reason")) if isinstance(last, dict) else None


def _resolved(value: Any, sample: dict[str, Any]) -> Any:
    """Return a value with the sample's attachments in place of the references to them."""
    attachments = sample.get("attachments")
    if not isinstance(attachments, dict) or not attachments:
        return value
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attachments.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_resolved(item, sample) for item in value]
    if isinstance(value, dict):
        return {name: _resolved(item, sample) for name, item in value.items()}
    return value


def _kept(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: sample[name] for name in ("metadata",) if sample.get(name)}


def _is_sample(value: dict[str, Any]) -> bool:
    return "epoch" in value and "id" in value and "input" in value


def _fits(value: Any) -> bool:
    return isinstance(value, dict) and "eval" in value and ("samples" in value or "plan" in value)


inspect_ai.fits = _fits
