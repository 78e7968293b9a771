"""verl: the batch that rollout-skip keeps, `gen_batch.dp`, a pickled DataProto."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import as_label, as_number, as_verdict, place, with_rest
from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers._tensordicts import tensors_of
from ktae_cli.readers._torch import Unknown
from ktae_cli.readers.base import ReaderOptions, Record, reader

_TOKEN_COLUMNS = {
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "old_log_probs",
    "ref_log_prob": "ref_log_probs",
    "entropys": "old_entropy",
    "rm_scores": "token_rewards",
    "advantages": "trainer_advantages",
}


@reader(
    files=(".dp",),
    shape="pickle",
    keys=(),
    supplies=(
        "group_id", "prompt_ids", "response_ids", "response_mask", "reward", "correct", "rollout_log_probs",
        "old_log_probs", "old_entropy", "ref_log_probs", "token_rewards", "ground_truth", "step",
    ),
    threshold=0.0,
)  # fmt: skip
def verl_dataproto(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read `DataProto.save_to_disk` files, with `--unsafe-pickle`, without verl or tensordict.

    Source: verl `protocol.py` (`DataProto.__getstate__`) and `utils/skip/rollout_skip.py`. Prompts are padded on the
    left, responses on the right; `attention_mask` says what is padding, `response_mask` which tokens the policy wrote.
    reward is the sum of `rm_scores` (else `token_level_scores`) over the response, correct is `acc` where the batch has
    it, the group is `uid`. Columns of objects pass through.
    """
    for record in records:
        saved, objects, meta = _state(record)
        tensors = tensors_of(saved, record)
        missing = [name for name in ("prompts", "responses", "attention_mask") if name not in tensors]
        if missing:
            raise InputError(f"{place(record)}: the batch has no {', '.join(missing)} (found {', '.join(tensors)})")
        _check_shapes(tensors, objects, record)
        step = meta.get("global_steps") if isinstance(meta, dict) else None
        if step is None:
            step = step_in(record.file, r"(\d{1,12})")
        for i in range(len(tensors["responses"])):
            rest = {name: values[i] for name, values in objects.items()}
            row = _tokens(tensors, i) | _names(rest, record) | {"step": step}
            yield with_rest(row, {name: _plain(value) for name, value in rest.items()})


def _fits(value: Any) -> bool:
    return isinstance(value, Unknown) and value.name == "DataProto"


verl_dataproto.fits = _fits


def _state(record: Record) -> tuple[Any, dict[str, np.ndarray], Any]:
    state = record.value.state if isinstance(record.value, Unknown) else None
    if not (isinstance(state, tuple) and len(state) == 3 and isinstance(state[1], dict)):
        raise InputError(f"{place(record)}: not a pickled DataProto of verl; another reader is named with --format")
    return state


def _check_shapes(tensors: dict[str, np.ndarray], objects: dict[str, Any], record: Record) -> None:
    rows, width = tensors["responses"].shape if tensors["responses"].ndim == 2 else (-1, -1)
    length = tensors["prompts"].shape[-1] + width
    wanted = {"prompts": (rows, length - width), "attention_mask": (rows, length)}
    wanted |= dict.fromkeys(("responses", "response_mask", "token_level_scores", *_TOKEN_COLUMNS), (rows, width))
    for name, shape in wanted.items():
        if name in tensors and tensors[name].shape != shape:
            raise InputError(f"{place(record)}: {name} has shape {tensors[name].shape}, expected {shape}")
    for name, values in objects.items():
        if not isinstance(values, np.ndarray) or len(values) != rows:
            raise InputError(f"{place(record)}: {name} does not have one value for each of {rows} rollouts")


def _tokens(tensors: dict[str, np.ndarray], i: int) -> dict[str, Any]:
    """Return the token columns of one rollout without padding."""
    width = tensors["prompts"].shape[1]
    attended = tensors["attention_mask"][i].astype(bool)
    valid = np.flatnonzero(attended[width:])
    length = int(valid[-1]) + 1 if len(valid) else 0
    row: dict[str, Any] = {
        "prompt_ids": tensors["prompts"][i][attended[:width]],
        "response_ids": tensors["responses"][i, :length],
    }
    if "response_mask" in tensors:
        row["response_mask"] = tensors["response_mask"][i, :length].astype(bool)
    scores = next((tensors[name] for name in ("rm_scores", "token_level_scores") if name in tensors), None)
    if scores is not None:
        row["reward"] = float(scores[i].astype(np.float64).sum())
    return row | {new: tensors[old][i, :length] for old, new in _TOKEN_COLUMNS.items() if old in tensors}


def _names(rest: dict[str, Any], record: Record) -> dict[str, Any]:
    """Take group, verdict and ground truth out of the columns of objects and return them."""
    row: dict[str, Any] = {}
    if rest.get("uid") is not None:
        row["group_id"] = as_label(rest.pop("uid"), "uid", record)
    if "acc" in rest:
        acc = _plain(rest.pop("acc"))
        single = isinstance(acc, float | int) and not isinstance(acc, bool)
        number = as_number(acc, "acc", record) if single else None
        row["correct"] = number > 0 if single and number == number else as_verdict(acc, "acc", record)
    model = rest.get("reward_model")
    if isinstance(model, dict):
        row["ground_truth"] = model.get("ground_truth")
    return row


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
