"""Recorder for verl: the batch of a training step as canonical Parquet."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ktae_cli.integrations._recording import file_of, finish_reason, next_part, spare_training, write_rollouts
from ktae_cli.schema import COLUMNS, is_score_column

TOKEN_COLUMNS = {
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "old_log_probs",
    "ref_log_prob": "ref_log_probs",
    "entropys": "old_entropy",
    "entropy": "old_entropy",
    "sum_pi_squared": "sum_pi_squared",
    "advantages": "trainer_advantages",
}
_MASKS = ("loss_mask", "response_mask")
SCORES = ("token_level_scores", "rm_scores")
_OBJECTS = ("uid", "reward_model", "data_source", "extra_fields")
_MEANT = {name for column in COLUMNS for name in (column.name, *column.aliases)}


def record(
    batch: Any,
    directory: str | os.PathLike,
    step: int,
    tokenizer: Any = None,
    *,
    eos_ids: Sequence[int] | int | None = None,
    rank: int | None = None,
) -> Path | None:
    """Write the rollouts of a training step and return the file; None, and one warning, where that fails.

    batch: the `DataProto` of the v0 trainer once it has scores (`RayPPOTrainer._log_rollout_data`), or the
    `KVBatchMeta` of the v1 trainer (`PPOTrainer._log_rollout_data`), whose fields are fetched from its TransferQueue.
    tokenizer: also writes the text, and finish_reason by its end-of-text id. eos_ids: end-of-text ids of a model that
    has several (`generation_config.eos_token_id`). rank: number of the process, by default RANK of the
    environment or 0.

    reward is the sum of `token_level_scores` (else `rm_scores`), before any KL penalty. correct is `acc` of the reward
    function: true, false, or a number, right above 0; the column is left out where the function gives none. Numbers
    among the function's other results are kept in `rewards`, the rest under their own names. group_id is `uid`;
    rollout_id is its session in the v1 trainer (several outputs of one session are parts of one rollout), else a
    running number. The trainer's advantages are kept as `trainer_advantages`. old_log_probs that only repeat
    rollout_log_probs (bypass mode) are left out. Padding samples of the v1 trainer are dropped.
    """
    with spare_training(directory):
        rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        saved = _from_queue(batch) if hasattr(batch, "partition_id") else _from_dataproto(batch)
        rows = _rows(saved, int(step)) if saved.keys else []
        if rows:
            _add_texts(rows, tokenizer, eos_ids)
            return write_rollouts(rows, file_of(directory, step, rank, next_part(directory, step, rank)))
    return None


class _Saved(NamedTuple):
    """A batch without padding: tokens and objects by verl's names, one entry for each rollout."""

    keys: list[tuple[str | None, str]]
    """(group_id, rollout_id) of each rollout."""
    tokens: dict[str, list[np.ndarray]]
    objects: dict[str, Sequence[Any]]
    extras: list[dict[str, Any]]
    """What the reward function returned beside the score."""


def _from_dataproto(batch: Any) -> _Saved:
    tensors, objects = batch.batch, dict(batch.non_tensor_batch)
    attended = _array(tensors["attention_mask"]).astype(bool)
    width = tensors["prompts"].shape[1]
    places = np.arange(1, attended.shape[1] - width + 1)
    lengths = (attended[:, width:] * places).max(1, initial=0)  # up to the last attended token
    prompts = zip(_array(tensors["prompts"]), attended[:, :width], strict=True)
    tokens = {"prompts": [ids[inside] for ids, inside in prompts]}
    present = set(tensors.keys())
    for name in ("responses", *_MASKS, *SCORES, *TOKEN_COLUMNS):
        if name in present and tensors[name].shape == tensors["responses"].shape:
            matrix = _array(tensors[name])
            tokens[name] = [row[:length] for row, length in zip(matrix, lengths, strict=True)]
    names = [name for name in batch.meta_info.get("reward_extra_keys", []) if name in objects]
    names += ["acc"] if "acc" in objects and "acc" not in names else []
    extras = [{name: objects[name][i] for name in names} for i in range(len(lengths))]
    return _Saved(_numbered(objects.get("uid"), len(lengths)), tokens, objects, extras)


def _numbered(uids: Sequence[Any] | None, n_rows: int) -> list[tuple[str | None, str]]:
    """Return each uid with a running number; without uids, which are random, a random name."""
    if uids is None:
        run = os.urandom(6).hex()
        return [(None, f"{run}_{i}") for i in range(n_rows)]
    seen: dict[str, int] = {}
    keys = []
    for uid in map(str, uids):
        keys.append((uid, f"{uid}_{seen.setdefault(uid, 0)}"))
        seen[uid] += 1
    return keys


def _from_queue(batch: Any) -> _Saved:
    import transfer_queue

    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    if not keys:
        return _Saved([], {}, {}, [])
    names = ["prompts", "responses", *_MASKS, *SCORES, *TOKEN_COLUMNS, *_OBJECTS]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=names)
    present = set(data.keys())
    found = [name for name in names if name in present]
    tokens = {name: [_array(row) for row in data[name].unbind()] for name in found if name not in _OBJECTS}
    objects = {name: data.get(name).tolist() for name in found if name in _OBJECTS}
    fields = objects.pop("extra_fields", [{}] * len(keys))
    extras = [(one or {}).get("reward_extra_info") or {} for one in fields]
    return _Saved([session_of(key) for key in keys], tokens, objects, extras)


def session_of(key: str) -> tuple[str, str]:
    """Return uid and session of a key `{uid}_{session}_{index}`, as verl's `agent_loop_tq.py` makes it."""
    uid, session, _ = key.rsplit("_", 2)
    return uid, f"{uid}_{session}"


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _rows(saved: _Saved, step: int) -> list[dict[str, Any]]:
    tokens = dict(saved.tokens)
    engine, trainer = tokens.get("rollout_log_probs"), tokens.get("old_log_probs")
    if engine and trainer and all(map(np.array_equal, engine, trainer)):
        del tokens["old_log_probs"]
    mask = next((tokens[name] for name in _MASKS if name in tokens), None)
    scores = next((tokens[name] for name in SCORES if name in tokens), None)
    stepwise = scores is not None and any(np.count_nonzero(row) > 1 for row in scores)
    judged = any("acc" in extra for extra in saved.extras)
    rows = []
    for i, (group, rollout) in enumerate(saved.keys):
        row: dict[str, Any] = {} if group is None else {"group_id": group}
        row |= {"rollout_id": rollout, "prompt_ids": tokens["prompts"][i], "response_ids": tokens["responses"][i]}
        if mask is not None:
            row["response_mask"] = mask[i].astype(bool)
        if scores is not None:
            row["reward"] = float(scores[i].astype(np.float64).sum())
        if judged:
            row["correct"] = verdict_of(saved.extras[i].get("acc"))
        row |= {new: tokens[old][i] for old, new in TOKEN_COLUMNS.items() if old in tokens}
        if stepwise:
            row["token_rewards"] = scores[i]
        row |= {"step": step} | _facts(saved.objects, i) | _parts(saved.extras[i])
        rows.append(row)
    return rows


def _facts(objects: dict[str, Sequence[Any]], i: int) -> dict[str, Any]:
    facts = {}
    if "reward_model" in objects:
        model = objects["reward_model"][i]
        facts["ground_truth"] = _plain(model.get("ground_truth")) if isinstance(model, dict) else None
    if "data_source" in objects:
        facts["data_source"] = _plain(objects["data_source"][i])
    return facts


def _parts(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers among a reward function's results as `rewards`, the rest under names of their own."""
    plain = {name: _plain(value) for name, value in extra.items()}
    numbers = {name: float(value) for name, value in plain.items() if isinstance(value, int | float)}
    others = {name: value for name, value in plain.items() if not isinstance(value, int | float | None)}
    taken = {name for name in others if name in _MEANT or is_score_column(name)}
    named = {f"verl_{name}" if name in taken else name: value for name, value in others.items()}
    return ({"rewards": numbers} if numbers else {}) | named


def verdict_of(value: Any) -> bool | None:
    """Return whether an `acc` says right: true, or a number above 0; None where it says nothing."""
    value = _plain(value)
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    return value > 0


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _add_texts(rows: list[dict[str, Any]], tokenizer: Any, eos_ids: Sequence[int] | int | None) -> None:
    if tokenizer is not None:
        for text, ids in (("prompt", "prompt_ids"), ("response", "response_ids")):
            texts = tokenizer.batch_decode([row[ids] for row in rows], skip_special_tokens=True)
            for row, value in zip(rows, texts, strict=True):
                row[text] = value
    if eos_ids is None:
        eos_ids = getattr(tokenizer, "eos_token_id", None)
    end_ids = {eos_ids} if isinstance(eos_ids, int) else set(eos_ids or ())
    for row in rows if end_ids else ():
        row["finish_reason"] = finish_reason(row["response_ids"], end_ids)
