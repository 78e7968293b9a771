"""Recorder for TRL: the rollouts of each generation as canonical Parquet."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ktae_cli.errors import InputError, PrerequisiteError
from ktae_cli.integrations._recording import file_of, finish_reason, next_part, spare_training, write_rollouts

_NEEDED = ("_generate_and_score_completions", "_calculate_rewards")
TOKEN_COLUMNS = {
    "sampling_per_token_logps": "rollout_log_probs",
    "old_per_token_logps": "old_log_probs",
    "ref_per_token_logps": "ref_log_probs",
}
_GROUND_TRUTHS = ("ground_truth", "solution", "gold", "answer")
_LIKE_A_VERDICT = re.compile("acc|correct", re.IGNORECASE)


def record(
    trainer_class: type,
    directory: str | os.PathLike,
    *,
    correct: str | None = None,
    ground_truth: str | None = None,
) -> type:
    """Return a subclass of a TRL trainer that writes the rollouts of every generation in training.

    trainer_class: `GRPOTrainer`, `RLOOTrainer` or a class made from one of them. correct: the reward function whose
    value above 0 means right; by default the only one whose name begins with acc or correct, and where none or several
    do the column is left out. ground_truth: a column of the dataset, by default the first of ground_truth, solution,
    gold, answer.

    Source: TRL `grpo_trainer.py`. `_calculate_rewards` gives the ids without padding and the reward of each function,
    `_generate_and_score_completions` masks and log-probs; both are called unchanged. reward is the sum weighted by
    `reward_weights` without NaN, unknown where every function gives NaN; the parts are kept in `rewards`. A group is
    `num_generations` rollouts in a row over all processes, as the trainer takes it. step is the optimizer step that the
    rollouts are first used in, counted from 1. The trainer's advantage is kept as `trainer_advantage`.
    With `mask_truncated_completions` and tools the trainer clears the tool mask of a truncated completion: its
    response_mask is false throughout.

    Raises `PrerequisiteError` for a class without these methods.
    """
    missing = [name for name in _NEEDED if not hasattr(trainer_class, name)]
    if missing:
        found = getattr(trainer_class, "__name__", str(trainer_class))
        raise PrerequisiteError(f"{found} has no method {missing[0]}; give GRPOTrainer or RLOOTrainer of TRL 1.x")

    class Recorded(trainer_class):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list, *rest, **named):
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list, *rest, **named)
            self._ktae_scored = _Scored(inputs, completions, completion_ids_list, rewards)
            return rewards

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            scored = self.__dict__.pop("_ktae_scored", None)  # holds the inputs no longer than needed
            if self.model.training:
                with spare_training(directory):
                    _write(self, scored, output, directory, correct, ground_truth)
            return output

    return named_as(trainer_class, Recorded)


def named_as(trainer_class: type, subclass: type) -> type:
    """Return a subclass under the name of its trainer: model cards and logs name the trainer."""
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(subclass, name, getattr(trainer_class, name))
    return subclass


class _Scored(NamedTuple):
    """What a process hands to the reward functions, and the rewards of all processes, (rollouts, functions)."""

    inputs: list[dict[str, Any]]
    completions: list[Any]
    ids: list[list[int]]
    rewards: Any


def _write(
    trainer: Any,
    scored: _Scored | None,
    output: dict[str, Any],
    directory: str | os.PathLike,
    correct: str | None,
    ground_truth: str | None,
) -> Path:
    if scored is None:
        raise PrerequisiteError("the trainer did not call _calculate_rewards")
    step, rank = int(trainer.state.global_step) + 1, trainer.accelerator.process_index
    part = next_part(directory, step, rank)
    keys = _keys(trainer, len(scored.ids), f"{step}.{part}", directory)
    rows = [
        {"group_id": group, "rollout_id": rollout, "step": step} | columns
        for (group, rollout), columns in zip(keys, _token_columns(scored, output), strict=True)
    ]
    for found in (
        _texts(trainer, scored, rows),
        _rewards(trainer, scored, correct),
        _ground_truths(scored, ground_truth),
        _ends(trainer, scored),
    ):
        for row, columns in zip(rows, found, strict=True):
            row |= columns
    return write_rollouts(rows, file_of(directory, step, rank, part))


def _keys(trainer: Any, n_rows: int, generation: str, directory: Any) -> list[tuple[str, str]]:
    """Return (group_id, rollout_id) of the rollouts of this process.

    Processes that share a group must agree on its name without asking each other: the name then begins with a digest of
    the directory. Where every group lies within one process it begins with random digits, so that runs never clash.
    """
    size, first = trainer.num_generations, trainer.accelerator.process_index * n_rows
    if n_rows % size:
        run = hashlib.sha256(os.path.abspath(directory).encode()).hexdigest()[:8]
    else:
        run = trainer.__dict__.setdefault("_ktae_run", os.urandom(4).hex())
    groups = [f"{run}.{generation}.{place // size}" for place in range(first, first + n_rows)]
    return [(group, f"{group}.{place % size}") for place, group in enumerate(groups, first)]


def _token_columns(scored: _Scored, output: dict) -> list[dict[str, Any]]:
    inside = _array(output["prompt_mask"]).astype(bool)
    prompts = [ids[kept] for ids, kept in zip(_array(output["prompt_ids"]), inside, strict=True)]
    columns = {new: _array(output[old]) for old, new in TOKEN_COLUMNS.items() if output.get(old) is not None}
    if output.get("tool_mask") is not None:
        columns["response_mask"] = _array(output["tool_mask"]).astype(bool)
    advantages = _array(output["advantages"])
    return [
        {"prompt_ids": prompts[i], "response_ids": ids}
        | {name: matrix[i, : len(ids)] for name, matrix in columns.items()}
        | _trainer_advantage(advantages[i], len(ids))
        for i, ids in enumerate(scored.ids)
    ]


def _trainer_advantage(advantage: np.ndarray, length: int) -> dict[str, Any]:
    if advantage.ndim == 0:
        return {"trainer_advantage": float(advantage)}
    return {"trainer_advantages": advantage[:length]}


def _texts(trainer: Any, scored: _Scored, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the texts that the trainer has; those of chat messages are decoded."""
    tokenizer = _tokenizer(trainer)
    prompts, responses = [given.get("prompt") for given in scored.inputs], scored.completions
    if not all(isinstance(text, str) for text in prompts):
        prompts = tokenizer.batch_decode([row["prompt_ids"] for row in rows], skip_special_tokens=True)
    if not all(isinstance(text, str) for text in responses):
        responses = tokenizer.batch_decode(scored.ids, skip_special_tokens=True)
    return [{"prompt": one, "response": other} for one, other in zip(prompts, responses, strict=True)]


def _rewards(trainer: Any, scored: _Scored, correct: str | None) -> list[dict[str, Any]]:
    names = trainer.reward_func_names
    verdict = verdict_name(names, correct)
    first = trainer.accelerator.process_index * len(scored.ids)
    values = _array(scored.rewards)[first : first + len(scored.ids)].astype(np.float64)
    weighted = values * _array(trainer.reward_weights).astype(np.float64)
    found = []
    for row, terms in zip(values, weighted, strict=True):
        parts = {name: None if np.isnan(value) else float(value) for name, value in zip(names, row, strict=True)}
        columns = {"reward": None if np.isnan(row).all() else float(np.nansum(terms)), "rewards": parts}
        if verdict is not None:
            value = parts[verdict]
            columns["correct"] = None if value is None else value > 0
        found.append(columns)
    return found


def verdict_name(names: list[str], correct: str | None) -> str | None:
    """Return the reward function that tells right from wrong: the one asked for, else the only one so named."""
    if correct is not None and correct not in names:
        raise InputError(f"no reward function {correct!r}; there are {', '.join(names)}")
    found = [correct] if correct else [name for name in names if _LIKE_A_VERDICT.match(name)]
    return found[0] if len(found) == 1 else None


def _ground_truths(scored: _Scored, name: str | None) -> list[dict[str, Any]]:
    present = scored.inputs[0]
    if name is not None and name not in present:
        raise InputError(f"no column {name!r} in the dataset; there are {', '.join(present)}")
    name = name or next((known for known in _GROUND_TRUTHS if known in present), None)
    return [{"ground_truth": given.get(name)} if name else {} for given in scored.inputs]


def _ends(trainer: Any, scored: _Scored) -> list[dict[str, Any]]:
    """Return finish_reason by the trainer's own test: the last id is an end-of-text or padding id."""
    tokenizer = _tokenizer(trainer)
    end_ids = {*getattr(trainer, "eos_token_ids", [tokenizer.eos_token_id]), tokenizer.pad_token_id}
    return [{"finish_reason": finish_reason(ids, end_ids)} for ids in scored.ids]


def _tokenizer(trainer: Any) -> Any:
    return getattr(trainer, "_tokenizer", None) or trainer.processing_class


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
