"""SkyRL training batches: `dumped_data/global_step_<N>_training_input.pkl`."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import as_object
from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers._torch import Unknown, load_torch
from ktae_cli.readers.base import ReaderOptions, Record, reader

_LOG_PROBS = {
    "rollout_logprobs": "rollout_log_probs",
    "action_log_probs": "old_log_probs",
    "base_action_log_probs": "ref_log_probs",
}
_KEPT = ("advantages", "returns", "values", "kl")
_FILE = r"global_step_(\d{1,12})_training_input\.pkl"


@reader(
    files=(".pkl",),
    shape="pickle",
    keys=(),
    supplies=(
        "group_id", "prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "old_log_probs",
        "ref_log_probs", "step",
    ),
)  # fmt: skip
def skyrl_batch(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the training batches that SkyRL pickles with `trainer.dump_data_batch`, one rollout a row.

    Source: SkyRL `skyrl/train/trainer.py`, `dump_data`, and `training_batch.py`, `TensorBatch.__getstate__`. The
    response is where `response_mask` is set, the prompt what `attention_mask` shows before it, whichever side the
    padding is on. `loss_mask` is the mask of the policy's tokens. The trainer takes uids and rewards out before it
    writes: a group is a pair of `policy_prompt_boundaries`, and there is no reward. Rows after the last boundary fill
    the batch up and are left out; without boundaries a group is made of the prompt's ids. Where `rewards` (batch,
    tokens) are left in, their sum is the reward.
    """
    for record in records:
        state = _state(record.value)
        if state is None:
            raise InputError(f"{record.file}: not a training batch of SkyRL")
        metadata = as_object(state.get("metadata"), "metadata", record)
        tensors = {
            name: tensor
            for name, saved in as_object(state.get("batch_dict"), "batch_dict", record).items()
            if (tensor := _tensor(saved, name, record)) is not None
        }
        sequences, attention, present = _layout(tensors, record)
        step = metadata.get("global_step")
        step = step_in(record.file, _FILE) if step is None else step
        groups = _groups(metadata, len(sequences), step, record)
        for i in range(len(sequences)):
            if groups is not None and groups[i] is None:
                options.count("rows that fill a batch up left out")
                continue
            row = {} if groups is None else {"group_id": groups[i]}
            yield row | _rollout(i, sequences, attention, present, tensors) | ({} if step is None else {"step": step})


def _state(value: Any) -> dict[str, Any] | None:
    """Return the pickled state of a TensorBatch: the second argument of `_rebuild_tensor_batch`."""
    if isinstance(value, Unknown) and value.name == "_rebuild_tensor_batch" and len(value.args) == 2:
        value = value.args[1]
    elif isinstance(value, Unknown):
        value = value.state
    return value if isinstance(value, dict) and isinstance(value.get("batch_dict"), dict) else None


def _tensor(saved: Any, name: str, record: Record) -> np.ndarray | None:
    """Return a tensor from its serialised form; None for those of other kinds (lists of images)."""
    if not isinstance(saved, dict) or saved.get("format") == "tensor_list":
        return None
    data = saved.get("data")
    try:
        if saved.get("format") == "torch":
            found = load_torch(io.BytesIO(data), name=f"{record.file}: {name}")
        else:
            found = np.frombuffer(data, np.dtype(saved["dtype"])).reshape(saved["shape"])
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{record.file}: tensor {name} cannot be read ({error})") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        raise InputError(f"{record.file}: {name} is no tensor of numbers")
    return found


def _layout(tensors: dict[str, np.ndarray], record: Record) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (sequences, attention, where the response stands), each (n_rollouts, n_positions)."""
    missing = [name for name in ("sequences", "attention_mask", "response_mask") if name not in tensors]
    if missing:
        raise InputError(f"{record.file}: the batch has no {', '.join(missing)}; found {', '.join(tensors)}")
    sequences, attention, mask = (tensors[name] for name in ("sequences", "attention_mask", "response_mask"))
    shapes = (sequences.ndim, attention.shape, len(mask), mask.ndim)
    if shapes != (2, sequences.shape, len(sequences), 2) or mask.shape[1] > sequences.shape[1]:
        shown = ", ".join(f"{name} {tensors[name].shape}" for name in ("sequences", "attention_mask", "response_mask"))
        raise InputError(f"{record.file}: tensors that do not fit together: {shown}")
    for name in ("loss_mask", "rewards", *_LOG_PROBS, *_KEPT):
        if name in tensors and tensors[name].shape != mask.shape:
            raise InputError(f"{record.file}: {name} is {tensors[name].shape}, response_mask {mask.shape}")
    present = np.zeros(sequences.shape, bool)
    present[:, sequences.shape[1] - mask.shape[1] :] = mask != 0
    return sequences, attention != 0, present


def _rollout(
    i: int, sequences: np.ndarray, attention: np.ndarray, present: np.ndarray, tensors: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return one row; values of the response are cut to the positions where it stands."""
    places = np.flatnonzero(present[i])
    start = places[0] if len(places) else sequences.shape[1]
    shown = tensors["response_mask"][i] != 0
    prompt = sequences[i, :start][attention[i, :start]]
    row: dict[str, Any] = {"prompt_ids": prompt, "response_ids": sequences[i, places]}
    if "loss_mask" in tensors:
        row["response_mask"] = tensors["loss_mask"][i][shown] != 0
    for name, canonical in _LOG_PROBS.items():
        if name in tensors:
            row[canonical] = tensors[name][i][shown]
    if "rewards" in tensors:
        row["token_rewards"] = tensors["rewards"][i][shown]
        row["reward"] = float(row["token_rewards"].sum(dtype=np.float64))
    return row | {name: tensors[name][i][shown] for name in _KEPT if name in tensors}


def _groups(metadata: dict[str, Any], n_rows: int, step: Any, record: Record) -> list[str | None] | None:
    """Return the group of each row, None for rows that fill the batch up; None without uids and boundaries."""
    prefix = "" if step is None else f"{step}/"
    uids = metadata.get("uids")
    if isinstance(uids, list) and len(uids) <= n_rows:
        return [f"{prefix}{uid}" for uid in uids] + [None] * (n_rows - len(uids))
    boundaries = metadata.get("policy_prompt_boundaries")
    if not isinstance(boundaries, list) or not boundaries:
        return None
    groups: list[str | None] = [None] * n_rows
    for number, pair in enumerate(boundaries):
        ends = tuple(pair) if isinstance(pair, list | tuple) else ()
        if len(ends) != 2 or not all(isinstance(end, int) for end in ends) or not 0 <= ends[0] <= ends[1] <= n_rows:
            raise InputError(f"{record.file}: policy_prompt_boundaries holds {pair!r}, the batch has {n_rows} rows")
        groups[ends[0] : ends[1]] = [f"{prefix}{number}"] * (ends[1] - ends[0])
    return groups


def _fits(value: Any) -> bool:
    return _state(value) is not None


skyrl_batch.fits = _fits
