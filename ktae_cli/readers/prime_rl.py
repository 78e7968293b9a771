"""prime-rl and verifiers v1: `traces.jsonl`, one JSON line for each episode."""

from collections.abc import Iterator
from math import isnan
from typing import Any

from ktae_cli.readers._fields import as_label, as_list, as_number, as_object, with_rest
from ktae_cli.readers._file_steps import step_in
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._messages import text_of
from ktae_cli.readers._named_verdicts import above_zero, verdict_name
from ktae_cli.readers._traces import nodes_of, paths_of, sequence_of
from ktae_cli.readers.base import ReaderOptions, Record, reader

_CUT_SHORT = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length")


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("traces", "task"),
    supplies=(
        "group_id", "rollout_id", "prompt", "response", "prompt_ids", "response_ids", "response_mask", "reward",
        "correct", "rollout_log_probs", "ref_log_probs", "rewards", "turn_ids", "ground_truth", "finish_reason", "step",
    ),
    threshold=0.0,
)  # fmt: skip
def prime_rl(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the episodes that prime-rl and `verifiers` v1 write, one rollout for each path of a trace's message graph.

    Source: prime-rl `monitors/file.py` (`FileMonitor.log_episodes`) and verifiers `v1/episode.py`
    (`Episode.to_record`); a training sequence is the token ids along one path from root to leaf, as the trainer makes
    them. Paths of one trace are parts of one rollout, `rollout_id` is the trace's id. Traces of agents that are not
    trained are left out and counted. The group is `group.id`, in evaluations without it the task's hash in its step.

    reward is the sum of score times weight over the trace's rewards, unknown where none has a score; the scores are
    kept in `rewards`. correct is the score of the one reward whose name says so (accuracy, correct), right above 0;
    where no name of the whole input does, the total reward decides. A trace that failed has finish_reason error. The
    trainer's own advantages, where the file has them, become `trainer_advantages`, 0.0 at tokens that were not sampled.
    """
    judged = {True: 0, False: 0}
    for record in records:
        episode = record.value
        shared = _shared(episode, record)
        for trace in as_list(episode.get("traces"), "traces", record):
            trace = as_object(trace, "a trace", record)
            agent = as_object(trace.get("agent"), "agent", record)
            if agent.get("trainable") is False:
                options.count("traces left out, their agent is not trained")
                continue
            nodes = nodes_of(trace, record, options)
            if nodes is None:
                continue
            own = _own(trace, agent, record, options)
            judged["correct" in own["row"]] += 1
            for path in paths_of(nodes):
                row = sequence_of([nodes[i] for i in path], record)
                reason = _finish_reason(trace, episode, set(path))
                row["prompt"] = row["prompt"] or shared["task_prompt"]
                row |= {**shared["row"], **own["row"], "finish_reason": reason}
                rest = own["rest"] | shared["rest"]
                yield with_rest(row, {name: value for name, value in rest.items() if value is not None})
    if judged[True] and judged[False]:
        options.count("traces without a reward that says right or wrong, their verdict unknown", judged[False])


def _fits(value: dict[str, Any]) -> bool:
    return isinstance(value["traces"], list) and isinstance(value["task"], dict)


prime_rl.fits = _fits


def _shared(episode: dict[str, Any], record: Record) -> dict[str, Any]:
    """Return what all rollouts of an episode have in common."""
    task = as_object(episode.get("task"), "task", record)
    data = task.get("data") if isinstance(task.get("data"), dict) else {}
    work = as_object(as_object(episode.get("run"), "run", record).get("work"), "run.work", record)
    step = work.get("step")
    if step is None:
        step = step_in(record.file, r"step_(\d{1,12})")
    group = as_object(episode.get("group"), "group", record).get("id")
    if group is not None:
        group = as_label(group, "group.id", record)
    elif (key := task.get("hash") or task.get("key")) is not None:
        group = f"{'' if step is None else f'{step}/'}{as_label(key, 'task.hash', record)}"
    row = {"ground_truth": data.get("answer"), "step": step} | ({} if group is None else {"group_id": group})
    env = as_object(episode.get("env"), "env", record)
    rest = {"env_name": env.get("name"), "task_key": task.get("key"), "episode_id": episode.get("id")}
    return {"row": row, "rest": rest, "task_prompt": text_of(data.get("prompt"))}


def _own(trace: dict[str, Any], agent: dict[str, Any], record: Record, options: ReaderOptions) -> dict[str, Any]:
    """Return what all paths of a trace have in common: its id, rewards and verdict."""
    scores, total = {}, None
    for name, reward in as_object(trace.get("rewards"), "rewards", record).items():
        reward = reward if isinstance(reward, dict) else {"score": reward}
        scores[name] = score = as_number(reward.get("score"), f"the score of reward {name}", record)
        weight = as_number(reward.get("weight", 1.0), f"the weight of reward {name}", record)
        if score is not None and not isnan(score) and weight is not None:
            total = (total or 0.0) + score * weight
    row = {"reward": total, "rewards": scores}
    if trace.get("id") is not None:
        row["rollout_id"] = as_label(trace["id"], "id of a trace", record)
    verdict = verdict_name(scores, options, record.file)
    if verdict:
        row["correct"] = above_zero(scores[verdict])
    rest = {"agent": agent.get("name"), "stop_condition": trace.get("stop_condition"), "metrics": trace.get("metrics")}
    if options.correct_column in scores:
        rest[options.correct_column] = scores[options.correct_column]
    return {"row": row, "rest": rest | {"info": trace.get("info") or None}}


def _finish_reason(trace: dict[str, Any], episode: dict[str, Any], path: set[int]) -> str | None:
    """Return how a path ended: its last call's reason where it says more than the trace's stop condition."""
    if trace.get("ok") is False or trace.get("errors") or episode.get("ok") is False:
        return "error"
    if trace.get("stop_condition") in _CUT_SHORT:
        return "length"
    calls = trace.get("calls") if isinstance(trace.get("calls"), list) else []
    own = [call for call in calls if isinstance(call, dict) and type(call.get("node")) is int and call["node"] in path]
    reason = finish_reason(own[-1].get("finish_reason")) if own else None
    return reason or ("stop" if trace.get("is_completed") else None)
