"""What is known of the rollouts before a token is read: verdicts, outcome, groups, prompts, trajectories."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError, MissingColumnError
from ktae_cli.plan import Plan
from ktae_cli.prompts import prompt_numbers, prompt_paths
from ktae_cli.readers.base import column_at, root_of
from ktae_cli.rollouts import RowErrors, reward_and_verdict, reward_parts, was_truncated
from ktae_cli.trajectories import first_rows


@dataclass(frozen=True)
class Labels:
    """The rows of the input (n_rows,): group (-1 left out), verdict (1, 0, -1 unknown), outcome (NaN unknown), prompt.

    trajectory: the first row of each row's rollout, whose labels count. truncated: cut at the length limit.
    """

    group: np.ndarray
    correct: np.ndarray
    outcome: np.ndarray
    truncated: np.ndarray
    prompt: np.ndarray
    trajectory: np.ndarray


def read_labels(plan: Plan, outcome: str = "correct") -> Labels:
    """Read the labels of all rows, no token: one pass over a few narrow columns.

    outcome: "correct", "reward", or the name of a part of the reward.
    """
    columns = plan.mapping.columns
    wanted = ["reward", "correct", "finish_reason", "rollout_id"]
    if outcome not in ("correct", "reward"):
        if "rewards" not in columns:
            raise MissingColumnError(
                f"--outcome {outcome}: the input has no named rewards; name them with --map rewards=COLUMN"
            )
        wanted.append("rewards")
    paths = {name: columns[name] for name in wanted if name in columns}
    roots = {root_of(plan.source.schema, path) for path in (*paths.values(), *prompt_paths(plan.mapping))}
    parts, ids, row = [], [], 0
    for batch in plan.source.batches([name for name in plan.source.schema.names if name in roots]):
        part, names = _labels(batch, paths, plan, outcome, row)
        parts.append(part)
        ids.append(names)
        row += len(batch)
    correct, value, truncated, prompt = (np.concatenate(column) for column in zip(*parts, strict=True))
    group = plan.index.codes
    trajectory = np.arange(len(group)) if not paths.get("rollout_id") else first_rows(group, pa.chunked_array(ids))
    return Labels(group, correct, value, truncated, prompt, trajectory)


def _labels(batch: pa.RecordBatch, paths: dict[str, str], plan: Plan, outcome: str, row: int) -> tuple:
    def place(i: int) -> str:
        return plan.source.place(row + i)

    found = {name: column_at(batch, path) for name, path in paths.items()}
    errors = RowErrors(len(batch), place, plan.read.on_error)
    reward, correct = reward_and_verdict(found, plan.read, errors)
    truncated = was_truncated(found.get("finish_reason"), len(batch))
    if plan.read.truncated == "zero":
        reward, correct = np.where(truncated, 0.0, reward), np.where(truncated, 0, correct).astype(np.int8)
    if outcome == "correct":
        value = np.where(correct >= 0, correct, np.nan)
    elif outcome == "reward":
        value = reward
    else:
        named = reward_parts(found["rewards"])
        if outcome not in named and row == 0:
            raise InputError(
                f"--outcome {outcome}: {place(0)} has no reward of that name (found {', '.join(named) or 'none'})"
            )
        value = named.get(outcome, np.full(len(batch), np.nan))
        if plan.read.truncated == "zero":
            value = np.where(truncated, 0.0, value)
    known = ~np.isnan(reward) & ~errors.bad
    ids = found["rollout_id"].cast(pa.string()) if "rollout_id" in found else pa.nulls(len(batch), pa.string())
    prompt = prompt_numbers(batch, plan.mapping, place)
    return (np.where(known, correct, -1).astype(np.int8), np.where(known, value, np.nan), truncated, prompt), ids
