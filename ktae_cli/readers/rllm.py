"""rLLM episodes: `episodes/<mode>_step_<s>_epoch_<e>/episode_hash<h>_id<id>.json`, one file an episode."""

import re
from collections.abc import Iterator
from typing import Any

from ktae_cli.readers._fields import as_label, as_list, as_object, with_rest
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import ReaderOptions, Record, reader

_MODE = re.compile(r"([A-Za-z]+)_step_\d+_epoch_\d+")
_KEPT = ("task", "termination_reason", "task_hash", "epoch", "session_id", "metrics", "metadata")
_TOKEN_LISTS = {"prompt_ids": "prompt_ids", "response_ids": "response_ids", "logprobs": "rollout_log_probs"}


@reader(
    files=(".json",),
    shape="document",
    keys=("episode_id", "task", "trajectories"),
    supplies=(
        "group_id", "rollout_id", "prompt", "response", "reward", "correct", "ground_truth", "finish_reason", "step",
    ),
)  # fmt: skip
def rllm(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the episodes that rLLM's EpisodeLogger writes, one rollout for each trajectory.

    Source: rLLM `rllm/utils/episode_logger.py`, `EpisodeLogger.log_episode`. A group is a task (the episode's id
    before `:`, or `task_hash` where it has none) in one step and mode, and the trajectory's name: trajectories of
    several agents are not compared with each other. The reward is the trajectory's, the verdict `is_correct` is
    the episode's. The logger writes no token ids; where a single step has them nevertheless they are taken.
    """
    for record in records:
        episode = as_object(record.value, "the document", record)
        trajectories = as_list(episode.get("trajectories"), "trajectories", record)
        shared = {name: episode[name] for name in _KEPT if episode.get(name) not in (None, {})}
        names_seen: dict[str, int] = {}
        for trajectory in trajectories:
            trajectory = as_object(trajectory, "a trajectory", record)
            name = str(trajectory.get("name") or "trajectory")
            index = names_seen[name] = names_seen.get(name, -1) + 1
            row = _identity(episode, record, name, index) | _texts(trajectory, record)
            row["reward"], row["correct"] = trajectory.get("reward"), episode.get("is_correct")
            row["ground_truth"] = _ground_truth(episode.get("task"))
            row["finish_reason"] = finish_reason(episode.get("termination_reason"))
            row["step"] = episode.get("training_step")
            yield with_rest(row, shared | {"trajectory_name": name})


def _identity(episode: dict[str, Any], record: Record, name: str, index: int) -> dict[str, str]:
    episode_id = as_label(episode.get("episode_id"), "episode_id", record)
    task = episode_id.partition(":")[0]
    if ":" not in episode_id and episode.get("task_hash") is not None:
        task = as_label(episode["task_hash"], "task_hash", record)
    mode = _MODE.findall(record.file)
    snapshot = f"{mode[-1] if mode else 'step'}_{episode.get('training_step')}_{episode.get('epoch')}"
    return {"group_id": f"{snapshot}/{task}/{name}", "rollout_id": f"{snapshot}/{episode_id}/{name}/{index}"}


def _texts(trajectory: dict[str, Any], record: Record) -> dict[str, Any]:
    """Return prompt and response: of one step its own, of several the conversation before and after the first turn."""
    steps = [as_object(step, "a step", record) for step in as_list(trajectory.get("steps"), "steps", record)]
    if not steps:
        return {"prompt": None, "response": None}
    first, last = (as_list(step.get("chat_completions"), "chat_completions", record) for step in (steps[0], steps[-1]))
    asked = next((i for i, m in enumerate(first) if isinstance(m, dict) and m.get("role") == "assistant"), len(first))
    prompt = text_of(first[:asked]) if asked else text_of(steps[0].get("observation"))
    if len(steps) == 1:
        response = steps[0].get("model_response")
        ids = {name: steps[0][key] for key, name in _TOKEN_LISTS.items() if isinstance(steps[0].get(key), list)}
        return {"prompt": prompt, "response": text_of(first[asked:] if response is None else response)} | ids
    if asked and last[:asked] == first[:asked]:
        return {"prompt": prompt, "response": text_of(last[asked:])}
    return {"prompt": prompt, "response": "\n\n".join(text_of(step.get("model_response")) or "" for step in steps)}


def _ground_truth(task: Any) -> Any:
    if not isinstance(task, dict):
        return None
    return next((task[name] for name in ("ground_truth", "answer", "gold") if task.get(name) is not None), None)
