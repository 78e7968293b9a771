"""Export to prime-rl: one episode a line, the advantages in the nodes of its trace."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ktae_cli.exports._lines import write_lines
from ktae_cli.exports.base import Batch, ExportRows, export, split
from ktae_cli.readers.scored import texts_of


@export(
    suffix=".jsonl",
    alignment="token_ids of the nodes end to end; logprobs and advantages have one value for each true place of mask",
    sidecar=True,
    stdout=True,
    reads=("rollout_log_probs", "old_log_probs", "prompt", "response", "ground_truth"),
)
def prime_rl(rows: ExportRows, target: Path | BinaryIO) -> int:
    """One episode for each rollout in the form of prime-rl's traces.jsonl, advantages filled into the nodes.

    The trace is a chain: a node for the prompt, one for each stretch of the response that the policy sampled
    (`sampled`, mask true) and one for each that it did not. logprobs and advantages of a node are compact, one value
    for each true place of its mask. The id of the trace is the rollout_id, group.id the group_id. Texts of the whole
    prompt and response stand in the messages where the file has them and the response is one node.
    Source: prime-rl `src/prime_rl/orchestrator/trajectories.py` (`trace_to_samples`), verifiers `v1/episode.py`
    (`Episode.to_record`).
    """
    return write_lines(_episodes(rows), target)


def _episodes(rows: ExportRows) -> Iterator[dict[str, Any]]:
    column = rows.log_probs({"logprobs": ("rollout_log_probs", "old_log_probs")}).get("logprobs")
    for batch in rows:
        texts = {name: texts_of(array) for name, array in batch.columns.items()}
        rewards = [None] * len(batch) if batch.rewards is None else batch.rewards.to_pylist()
        steps = [None] * len(batch) if batch.steps is None else batch.steps.to_pylist()
        for at, nodes in enumerate(_chains(batch, column)):
            rollout, group = batch.rollout_ids[at], batch.group_ids[at]
            _add_texts(nodes, {name: values[at] for name, values in texts.items()})
            data = {"prompt": texts["prompt"][at]} if "prompt" in texts else {}
            data |= {"answer": texts["ground_truth"][at]} if "ground_truth" in texts else {}
            reward = {} if rewards[at] is None else {"reward": {"score": rewards[at], "weight": 1.0}}
            trace = {"version": 1, "id": rollout, "nodes": nodes, "rewards": reward, "is_completed": True, "ok": True}
            trace["agent"] = {"name": "agent", "trainable": True}
            trace["stop_condition"] = "max_output_tokens" if rows.facts.truncated[batch.numbers[at]] else "completed"
            yield {
                "id": rollout,
                "rollout_id": rollout,
                "task": {"type": "Task", "data": data},
                "group": {"id": group},
                "run": {"type": "train", "work": {"type": "train", "step": steps[at]}},
                "ok": True,
                "errors": [],
                "traces": [trace],
            }


def _chains(batch: Batch, column: str | None) -> Iterator[list[dict[str, Any]]]:
    """Yield the nodes of each rollout: the prompt, then stretches of one mask value."""
    parts = [split(flat, batch.response) for flat in (batch.response_ids, batch.mask, batch.values)]
    log_probs = split(batch.log_probs[column][0], batch.response) if column else [None] * len(batch)
    for prompt, ids, mask, values, own in zip(split(batch.prompt_ids, batch.prompt), *parts, log_probs, strict=True):
        nodes = [_node("user", prompt, np.zeros(len(prompt), bool), {})] if len(prompt) else []
        cuts = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)] if len(ids) else [0]
        for start, stop in pairwise(cuts):
            compact = {"advantages": values[start:stop]} if mask[start] else {}
            compact |= {"logprobs": own[start:stop]} if mask[start] and own is not None else {}
            nodes.append(_node("assistant" if mask[start] else "tool", ids[start:stop], mask[start:stop], compact))
        for at, node in enumerate(nodes[1:]):
            node["parent"] = at
        yield nodes


def _node(role: str, ids: np.ndarray, mask: np.ndarray, compact: dict[str, np.ndarray]) -> dict[str, Any]:
    sampled = role == "assistant"
    node = {"message": {"role": role, "content": ""}, "sampled": sampled, "token_ids": ids, "mask": mask.tolist()}
    return node | {"logprobs": []} | compact


def _add_texts(nodes: list[dict[str, Any]], texts: dict[str, str | None]) -> None:
    """Put the texts that there are into the messages."""
    response = [node for node in nodes if node["message"]["role"] != "user"]
    if nodes and nodes[0]["message"]["role"] == "user":
        nodes[0]["message"]["content"] = texts.get("prompt") or ""
    if len(response) == 1:
        response[0]["message"]["content"] = texts.get("response") or ""
