"""slime: the debug dumps of rollouts and of training data, `.pt` files with a list of samples each."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._equal_lengths import unequal
from ktae_cli.readers._fields import as_label, as_list, as_object, place, with_rest
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._messages import text_of
from ktae_cli.readers._reward_dicts import judge
from ktae_cli.readers._rows import shown
from ktae_cli.readers.base import ReaderOptions, Record, reader

_TOKEN_COLUMNS = {
    "rollout_log_probs": "rollout_log_probs",
    "log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_probs",
    "advantages": "trainer_advantages",
    "returns": "trainer_returns",
    "teacher_log_probs": "teacher_log_probs",
}
_LEFT_OUT = (
    "multimodal_inputs", "multimodal_train_inputs", "rollout_routed_experts", "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
)  # fmt: skip


@reader(
    files=(".pt",),
    shape="torch",
    keys=("samples", "rollout_id"),
    supplies=(
        "group_id", "rollout_id", "prompt", "response", "prompt_ids", "response_ids", "response_mask", "reward",
        "correct", "rollout_log_probs", "old_log_probs", "ref_log_probs", "rewards", "ground_truth", "finish_reason",
        "step",
    ),
    threshold=0.0,
)  # fmt: skip
def slime(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the files of `--save-debug-rollout-data` and `--dump-details`, without torch and without running them.

    Source: slime `rollout_data_utils.py` (`save_debug_rollout_data`) and `train_data_utils.py`
    (`_build_dump_payload`). step is the file's `rollout_id`; the group is `group_index` in its step, the rollout
    `rollout_id`, else `index`. A `loss_mask` of None is all true.

    A reward is a number or a dict. The numbers of a dict are kept in `rewards`, all of its values as columns
    `reward.<name>`. reward is the one called score, else reward, else the only number: `--reward-key` of the run is
    not in the file, `--map reward=reward.<name>` names it. correct is the only one whose name says so
    (acc, accuracy, correct), right above 0; samples of the same file without it are right where the reward is above 0.

    Training data hold rewards that are normalised within groups: they pass through as `normalised_reward`, and reward
    is `raw_reward` at `rollout_position`. They hold no group key: rows of one prompt (its ids) in one step are a
    group. `log_probs` of the trainer become `old_log_probs`, its advantages `trainer_advantages`.
    """
    said: set[str] = set()
    for record in records:
        payload = as_object(record.value, "the file", record)
        samples = as_list(payload.get("samples"), "samples", record)
        samples = [as_object(sample, f"sample {i}", record) for i, sample in enumerate(samples)]
        step = payload.get("rollout_id")
        trained = any("response_lengths" in sample for sample in samples)
        rewards = _raw_rewards(payload, samples, record) if trained else [sample.get("reward") for sample in samples]
        judged = judge(rewards, record, options, said)
        for sample, verdict in zip(samples, judged, strict=True):
            tokens = _tokens(sample, record, options)
            if tokens is None:
                continue
            row = _names(sample, step, trained, record) | tokens | verdict["row"] | {"step": step}
            yield with_rest(row, verdict["rest"] | _rest(sample))


def _fits(value: dict[str, Any]) -> bool:
    return isinstance(value["samples"], list) and all(isinstance(sample, dict) for sample in value["samples"])


slime.fits = _fits


def _raw_rewards(payload: dict[str, Any], samples: list[dict], record: Record) -> list[Any]:
    """Return the reward of each sample before the trainer normalised it, None where the file does not say."""
    raw = payload.get("raw_reward")
    raw = raw.tolist() if isinstance(raw, np.ndarray) else as_list(raw, "raw_reward", record)
    at = [sample.get("rollout_position") for sample in samples]
    return [raw[i] if type(i) is int and 0 <= i < len(raw) else None for i in at]


def _tokens(sample: dict[str, Any], record: Record, options: ReaderOptions) -> dict[str, Any] | None:
    """Return ids, mask and token columns of a sample, or None for one that is dropped."""
    ids = _listed(sample, "tokens", record)
    length = sample.get("response_length", sample.get("response_lengths"))
    if type(length) is not int or ids is None or not 0 <= length <= len(ids):
        held = "no tokens" if ids is None else f"{len(ids)} tokens"
        raise InputError(f"{_place(sample, record)}: response_length is {shown(length)}, the sample has {held}")
    mask = _listed(sample, "loss_mask" if "loss_mask" in sample else "loss_masks", record)
    columns = {name: _listed(sample, name, record) for name in _TOKEN_COLUMNS}
    lists = {"response_length": range(length), "loss_mask": mask, **columns}
    if unequal(lists, record, options, _place(sample, record).partition(", ")[2]):
        return None
    row = {"prompt_ids": ids[: len(ids) - length], "response_ids": ids[len(ids) - length :], "response_mask": mask}
    return row | {_TOKEN_COLUMNS[name]: values for name, values in columns.items() if values is not None}


def _listed(sample: dict[str, Any], name: str, record: Record) -> Any:
    value = sample.get(name)
    if value is None or isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return value
    raise InputError(f"{_place(sample, record)}: {name} is {shown(value)}, expected a list of one value a token")


def _place(sample: dict[str, Any], record: Record) -> str:
    return f"{place(record)}, sample {sample.get('index', sample.get('sample_index'))}"


def _names(sample: dict[str, Any], step: Any, trained: bool, record: Record) -> dict[str, Any]:
    """Return group, rollout, texts, ground truth and end of a sample."""
    before = f"eval/{step}" if PurePath(record.file).name.startswith("eval_") else f"{step}"
    row: dict[str, Any] = {}
    if sample.get("group_index") is not None:
        row["group_id"] = f"{before}/{as_label(sample['group_index'], 'group_index', record)}"
    own = next((sample[n] for n in ("rollout_id", "rollout_ids", "index") if sample.get(n) is not None), None)
    if own is not None:
        row["rollout_id"] = f"{before}/{as_label(own, 'index', record)}"
    if trained:
        cut = sample.get("truncated")
        return row | {"finish_reason": None if cut is None else "length" if cut else "stop"}
    status = "stop" if sample.get("status") == "completed" else finish_reason(sample.get("status"))
    row |= {"prompt": text_of(sample.get("prompt")), "response": sample.get("response")}
    return row | {"ground_truth": sample.get("label"), "finish_reason": status}


def _rest(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what passes through: all that is not taken, not empty and no tensor of a model's input."""
    taken = {
        "tokens", "response_length", "response_lengths", "loss_mask", "loss_masks", "reward", "rewards", "group_index",
        "rollout_id", "rollout_ids", "prompt", "response", "label", "status", "truncated", *_TOKEN_COLUMNS, *_LEFT_OUT,
    }  # fmt: skip
    rest = {str(name): value for name, value in sample.items() if value is not None and not _is_empty(value)}
    rest = {name: value for name, value in rest.items() if name not in taken}
    return rest | ({"normalised_reward": sample["rewards"]} if "rewards" in sample else {})


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | list) and not value
