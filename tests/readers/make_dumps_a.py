"""Write the tiny dumps of sample_data/dumps that tests/readers/test_formats_a.py reads.

`python tests/readers/make_dumps_a.py [DIRECTORY]`: the same content every time. Needs torch for slime and verl's batch.
Two prompts with three rollouts each; A2 calls a tool, B1 is cut at the length limit. Log-probs are exact as float32.
"""

import io
import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DUMPS = Path(__file__).parents[2] / "sample_data" / "dumps"
PAD = 0


class Prompt(NamedTuple):
    """A prompt, its ids and its answer."""

    uid: str
    text: str
    ids: tuple[int, ...]
    answer: str


class Rolled(NamedTuple):
    """One rollout; `texts` are its messages: the policy's own, and a tool's between them."""

    prompt: Prompt
    texts: tuple[str, ...]
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    log_probs: tuple[float, ...]
    right: bool
    finish: str
    advantage: float

    @property
    def text(self) -> str:
        """Return all that stands after the prompt."""
        return "".join(self.texts)


A = Prompt("7f3c", "How many legs have 3 cats?", (11, 12, 13, 14), "12")
B = Prompt("91ab", "What is 7 minus 9?", (15, 16), "-2")
ROLLED = (
    Rolled(A, ("3 x 4 = 12",), (21, 22, 23, 9), (1, 1, 1, 1), (-0.5, -0.25, -0.125, -1.0), True, "stop", 0.5),
    Rolled(A, ("it is 7",), (24, 25, 9), (1, 1, 1), (-1.0, -2.0, -0.5), False, "stop", -1.0),
    Rolled(
        A, ("calc(3*4)", "12", "so 12"), (26, 27, 28, 29, 30, 9), (1, 1, 0, 0, 1, 1),
        (-0.5, -0.5, 0.0, 0.0, -0.25, -0.125), True, "stop", 0.5,
    ),
    Rolled(B, ("-2",), (31, 32, 9), (1, 1, 1), (-0.5, -1.0, -0.25), True, "stop", 1.0),
    Rolled(B, ("I will count down",), (33, 34, 35), (1, 1, 1), (-2.0, -1.0, -0.5), False, "length", -0.5),
    Rolled(B, ("2",), (36, 9), (1, 1), (-0.25, -0.75), False, "stop", -0.5),
)  # fmt: skip


def write_lines(path: Path, rows: list[Any]) -> None:
    """Write JSON lines as Python's writers do: plain UTF-8, NaN as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def write_parquet(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    """Write rows as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def verl(folder: Path) -> None:
    """The v0 trainer: rows balanced over GPUs, a shaped score of -1.5 for the one that was cut."""
    rows = []
    for i in (3, 0, 4, 2, 1, 5):
        one = ROLLED[i]
        score = (1.0 if one.right else -1.0) - (0.5 if one.finish == "length" else 0.0)
        row = {"input": one.prompt.text, "output": one.text, "gts": one.prompt.answer, "score": score, "step": 4}
        rows.append(row | {"acc": one.right, "request_id": f"r{i}"})
    write_lines(folder / "rollout_data" / "4.jsonl", rows)


def verl_v1(folder: Path) -> None:
    """The v1 trainer: `uid` with session and index; the tool call is two outputs of one session."""
    rows = []
    for i, one in enumerate(ROLLED):
        outputs = [one.text] if len(one.texts) == 1 else [one.texts[0], one.texts[2]]
        for index, output in enumerate(outputs):
            uid = f"{one.prompt.uid}_{i % 3}_{index}"
            row = {"input": one.prompt.text, "output": output, "gts": one.prompt.answer, "score": float(one.right)}
            rows.append(row | {"step": 4, "uid": uid})
    write_lines(folder / "rollout_data" / "4.jsonl", rows)


def verl_validation(folder: Path) -> None:
    """Validation: `reward` and `acc` beside the score, here a reward function that returns one number."""
    rows = []
    for one in ROLLED:
        score = 1.0 if one.right else -1.0
        row = {"input": one.prompt.text, "output": one.text, "gts": [one.prompt.answer], "score": score, "step": 8}
        rows.append(row | {"reward": score, "acc": score})
    write_lines(folder / "validation_data" / "8.jsonl", rows)


def verl_generation(folder: Path) -> None:
    """main_generation: a row for each prompt, the responses in a list."""
    rows = [
        {
            "data_source": "pets",
            "prompt": [{"role": "user", "content": prompt.text}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": prompt.answer},
            "extra_info": {"index": i},
            "responses": [one.text for one in ROLLED if one.prompt is prompt],
        }
        for i, prompt in enumerate((A, B))
    ]
    write_parquet(folder / "generations.parquet", rows)


def _padded(rows: list[tuple[Any, ...]], width: int, left: bool = False) -> np.ndarray:
    out = np.zeros((len(rows), width), np.asarray(rows[0]).dtype)
    for line, row in zip(out, rows, strict=True):
        line[width - len(row) :] = row if left else line[width - len(row) :]
        if not left:
            line[: len(row)] = row
    return out


def verl_dataproto(folder: Path) -> None:
    """rollout-skip: a pickled DataProto around the bytes of torch.save(TensorDict)."""
    import torch

    prompts, responses = _padded([r.prompt.ids for r in ROLLED], 5, True), _padded([r.ids for r in ROLLED], 7)
    attention = np.concatenate(
        [_padded([(1,) * len(r.prompt.ids) for r in ROLLED], 5, True), _padded([(1,) * len(r.ids) for r in ROLLED], 7)],
        1,
    )
    scores = np.zeros((6, 7), np.float32)
    for i, one in enumerate(ROLLED):
        scores[i, len(one.ids) - 1] = 1.0 if one.right else 0.0
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "attention_mask": attention,
        "response_mask": _padded([r.mask for r in ROLLED], 7),
        "rollout_log_probs": _padded([r.log_probs for r in ROLLED], 7).astype(np.float32),
        "rm_scores": scores,
    }
    batch = _stand_in("tensordict._td", "TensorDict")()
    batch.__dict__["_tensordict"] = {name: torch.from_numpy(array) for name, array in tensors.items()}
    buffer = io.BytesIO()
    torch.save(batch, buffer)
    proto = _stand_in("verl.protocol", "DataProto")()
    objects = {
        "uid": np.array([r.prompt.uid for r in ROLLED], object),
        "reward_model": np.array([{"ground_truth": r.prompt.answer} for r in ROLLED], object),
        "acc": np.array([r.right for r in ROLLED], object),
    }
    proto.saved = (buffer.getvalue(), objects, {"global_steps": 6})
    path = folder / "6" / "gen_batch.dp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(proto))
    path.with_name("meta.json").write_text('{"global_steps": 6}')
    for name in ("tensordict", "tensordict._td", "verl", "verl.protocol"):
        sys.modules.pop(name, None)


def _stand_in(module: str, name: str) -> type:
    """Return a class that a pickle names as the framework's own."""

    def __getstate__(self: Any) -> Any:
        return self.__dict__.get("saved", self.__dict__)

    made = type(name, (), {"__module__": module, "__qualname__": name, "__getstate__": __getstate__})
    for part in (module.partition(".")[0], module):
        sys.modules[part] = types.ModuleType(part)
    setattr(sys.modules[module], name, made)
    return made


def trl(folder: Path) -> None:
    """Two log steps of one generation batch, and a third with the next; a function that did not apply is NaN."""
    fields = [("step", pa.int64()), ("prompt", pa.string()), ("completion", pa.string())]
    fields += [(name, pa.float64()) for name in ("accuracy_reward", "tag_reward", "advantage")]
    for step in (20, 21, 22):
        rows = []
        for one in ROLLED:
            tag = float("nan") if one.finish == "length" else 0.25
            text = one.text if step < 22 else f"{one.text}!"
            row = {"step": step, "prompt": one.prompt.text, "completion": text, "accuracy_reward": float(one.right)}
            rows.append(row | {"tag_reward": tag, "advantage": one.advantage})
        rows[4 if step == 22 else 5]["accuracy_reward"] = None if step == 22 else 0.0
        write_parquet(folder / "completions" / f"completions_{step:05d}.parquet", rows, pa.schema(fields))


def nemo_rl(folder: Path) -> None:
    """Training lines: every value in a list of one, everything padded to the longest sequence."""
    rows = []
    for i, one in enumerate(ROLLED):
        n = len(one.prompt.ids)
        full = (*one.prompt.ids, *one.ids)
        pad = 10 - len(full)
        log_probs = [0.0] * n + list(one.log_probs) + [0.0] * pad
        reward = 1.0 if one.right else 0.0
        row = {
            "content": [[one.prompt.text, *one.texts]],
            "rewards": [reward - 0.5],
            "filtered_rewards": [reward],
            "input_lengths": [len(full)],
            "token_ids": [[*full, *[PAD] * pad]],
            "token_loss_mask": [[0] * n + list(one.mask) + [0] * pad],
            "sample_loss_mask": [1.0],
            "advantages": [[one.advantage] * 10],
            "generation_logprobs": [log_probs],
            "prev_logprobs": [[value * 2 for value in log_probs]],
        }
        rows.append(row | {"idx": i})
    write_lines(folder / "train_data_step12.jsonl", rows)


def nemo_rl_validation(folder: Path) -> None:
    """Validation lines: chat messages and a reward."""
    rows = []
    for i, one in enumerate(ROLLED):
        roles = ["assistant", "tool", "assistant"]
        chat = [{"role": role, "content": text} for role, text in zip(roles, one.texts, strict=False)]
        user = {"role": "user", "content": one.prompt.text}
        rows.append({"content": [[user, *chat]], "rewards": [1.0 if one.right else 0.0], "idx": i})
    write_lines(folder / "val_data_step30.jsonl", rows)


def _nodes(one: Rolled, advantages: bool) -> list[dict[str, Any]]:
    """Return the message graph of a rollout: stretches of the mask are its messages."""
    nodes = [{"message": {"role": "user", "content": one.prompt.text}, "sampled": False}]
    nodes[0] |= {"token_ids": list(one.prompt.ids), "mask": [False] * len(one.prompt.ids), "logprobs": []}
    cuts = [0, *[i for i in range(1, len(one.mask)) if one.mask[i] != one.mask[i - 1]], len(one.mask)]
    for k, text in enumerate(one.texts):
        part = slice(cuts[k], cuts[k + 1])
        sampled = bool(one.mask[cuts[k]])
        ids = list(one.ids[part])
        node = {"message": {"role": "assistant" if sampled else "tool", "content": text}, "sampled": sampled}
        node |= {"token_ids": ids, "mask": [sampled] * len(ids), "logprobs": list(one.log_probs[part]) * sampled}
        node |= {"parent": k} | ({"advantages": [one.advantage] * len(ids)} if sampled and advantages else {})
        nodes.append(node)
    return nodes


def prime_rl(folder: Path) -> None:
    """Episodes with a weighted format reward; the last has a judge that is not trained, the fourth branches."""
    rows = []
    for i, one in enumerate(ROLLED):
        nodes = _nodes(one, advantages=True)
        if i == 3:  # the prompt answered a second time in the same trace
            other = {"message": {"role": "assistant", "content": "minus two"}, "sampled": True, "token_ids": [37, 9]}
            nodes.append(
                other | {"mask": [True, True], "logprobs": [-1.0, -0.5], "parent": 0, "advantages": [1.0, 1.0]}
            )
        trace = {
            "version": 1,
            "id": f"t{i}",
            "agent": {"name": "solver", "trainable": True},
            "nodes": nodes,
            "calls": [{"node": len(one.texts), "finish_reason": one.finish}],
            "rewards": {"correct": {"score": float(one.right), "weight": 1.0}, "tags": {"score": 1.0, "weight": 0.25}},
            "metrics": {"turns": len(one.texts)},
            "is_completed": True,
            "ok": True,
            "stop_condition": "max_output_tokens" if one.finish == "length" else "agent_completed",
        }
        judge = {"id": "j", "agent": {"name": "judge", "trainable": False}, "nodes": [], "rewards": {}}
        data = {"idx": i // 3, "prompt": one.prompt.text, "answer": one.prompt.answer}
        row = {"id": f"e{i}", "env": {"name": "pets"}, "task": {"data": data, "key": f"pets-{i // 3}", "hash": "h"}}
        row |= {"group": {"id": one.prompt.uid}, "run": {"work": {"type": "train", "step": 40}}, "ok": True}
        rows.append(row | {"traces": [trace, judge] if i == 5 else [trace]})
    write_lines(folder / "rollouts" / "step_40" / "train" / "effective" / "traces.jsonl", rows)


def verifiers_v1(folder: Path) -> None:
    """An evaluation: no group, no step, and a relay client that knows no token ids."""
    rows = []
    for i, one in enumerate(ROLLED[:4]):
        nodes = [
            {k: v for k, v in node.items() if k in ("message", "sampled", "parent")} for node in _nodes(one, False)
        ]
        trace = {"id": f"t{i}", "nodes": nodes, "rewards": {"solved": {"score": float(one.right), "weight": 1.0}}}
        trace |= {"calls": [], "is_completed": True, "stop_condition": "agent_completed", "errors": []}
        task = {"data": {"prompt": one.prompt.text, "answer": one.prompt.answer}, "hash": f"h{i // 3}"}
        rows.append({"id": f"e{i}", "task": task, "ok": i != 1, "traces": [trace]})
    write_lines(folder / "outputs" / "run" / "traces.jsonl", rows)


def prime_rl_tokens(folder: Path) -> None:
    """Two packs of three sequences each, the second with four tokens of padding."""
    rows = []
    for pack in range(2):
        row: dict[str, Any] = {"schema_version": 1, "step": 40, "rank": 0, "micro_step": pack}
        names = ("token_ids", "position_ids", "loss_mask", "advantages", "inference_logprobs", "trainer_logprobs")
        lists: dict[str, list[Any]] = {name: [] for name in names}
        for one in ROLLED[3 * pack : 3 * pack + 3]:
            n = len(one.prompt.ids)
            lists["token_ids"] += [*one.prompt.ids, *one.ids]
            lists["position_ids"] += range(n + len(one.ids))
            lists["loss_mask"] += [False] * n + [bool(m) for m in one.mask]
            lists["advantages"] += [0.0] * n + [one.advantage * m for m in one.mask]
            lists["inference_logprobs"] += [0.0] * n + list(one.log_probs)
            lists["trainer_logprobs"] += [0.0] * n + [value * 2 for value in one.log_probs]
        if pack:
            for name, value in zip(names, (PAD, 0, False, 0.0, 0.0, 0.0), strict=True):
                lists[name] += [0, 1, 2, 3] if name == "position_ids" else [value] * 4
        empty = [None] * len(lists["token_ids"])
        rows.append(row | lists | {"entropy": [0.5] * len(empty), "mismatch_kl": empty})
    write_lines(folder / "token_exports" / "step_40" / "rank_0.jsonl", rows)
    (folder / "token_exports" / "step_40" / "STABLE").write_text("")


def prime_rl_parquet(folder: Path) -> None:
    """The older files: a penalty for length makes the reward of a right answer 0."""
    ints, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    fields = [("input_tokens", ints), ("output_tokens", ints), ("output_logprobs", floats), ("prompt", pa.string())]
    fields += [("completion", pa.string()), ("problem_id", pa.string()), ("step", pa.int32())]
    fields += [(name, pa.float32()) for name in ("advantages", "rewards", "task_rewards", "length_penalties")]
    rows = []
    for i, one in enumerate(ROLLED):
        penalty = 1.0 if i == 2 else 0.0
        task = float(one.right)
        row = {"input_tokens": one.prompt.ids, "output_tokens": one.ids, "prompt": one.prompt.text, "step": 5}
        row |= {
            "output_logprobs": None if i == 1 else one.log_probs,
            "completion": one.text,
            "advantages": one.advantage,
        }
        row |= {"rewards": task - penalty, "task_rewards": task, "length_penalties": penalty}
        rows.append(row | {"problem_id": f"p{i // 3}"})
    write_parquet(folder / "step_5" / "rollouts.parquet", rows, pa.schema(fields))


def slime(folder: Path) -> None:
    """Rollouts with a dict of rewards, in which `acc` is the verdict and the score is shaped."""
    samples = []
    for i, one in enumerate(ROLLED):
        samples.append(
            {
                "group_index": 30 + i // 3,
                "index": 90 + i,
                "prompt": one.prompt.text,
                "tokens": [*one.prompt.ids, *one.ids],
                "response": one.text,
                "response_length": len(one.ids),
                "label": one.prompt.answer,
                "reward": {"score": (1.0 if one.right else -1.0) - 0.25, "acc": one.right, "pred": one.texts[-1]},
                "loss_mask": None if all(one.mask) else list(one.mask),
                "weight_versions": ["3"],
                "rollout_log_probs": list(one.log_probs),
                "remove_sample": False,
                "status": "truncated" if one.finish == "length" else "completed",
                "metadata": {},
            }
        )
    _save({"rollout_id": 2, "samples": samples}, folder / "rollout_data" / "2.pt")


def slime_train(folder: Path) -> None:
    """Training data: tensors, normalised rewards, and the raw ones beside the samples in another order."""
    import torch

    samples = []
    for position, i in enumerate((5, 4, 3, 2, 1, 0)):
        one = ROLLED[i]
        log_probs = torch.tensor(one.log_probs)
        samples.append(
            {
                "sample_index": 90 + i,
                "rollout_position": i,
                "tokens": torch.tensor([*one.prompt.ids, *one.ids]),
                "response_lengths": len(one.ids),
                "rewards": one.advantage,
                "truncated": int(one.finish == "length"),
                "rollout_ids": 90 + i,
                "loss_masks": torch.tensor(one.mask, dtype=torch.int32),
                "rollout_log_probs": log_probs,
                "log_probs": log_probs * 2,
                "advantages": torch.full((len(one.ids),), one.advantage),
                "data_parallel_rank": position % 2,
            }
        )
    raw = [1.0 if one.right else 0.0 for one in ROLLED]
    _save({"format_version": 2, "rollout_id": 2, "samples": samples, "raw_reward": raw}, folder / "train_data" / "2.pt")


def _save(value: Any, path: Path) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def open_instruct(folder: Path) -> None:
    """Shards of two steps with the same prompts; the trainer dropped a row, so that prompt_idx is off."""
    rows = []
    for step in (1, 2):
        for i, one in enumerate(ROLLED):
            row = {"step": step, "sample_idx": i, "prompt_idx": i // 2, "prompt_tokens": list(one.prompt.ids)}
            row |= {"response_tokens": list(one.ids), "reward": 10.0 if one.right else 0.0, "advantage": one.advantage}
            row |= {"finish_reason": one.finish, "dataset": "pets", "ground_truth": one.prompt.answer}
            row |= {"request_info": {"tool_calleds": not all(one.mask)}, "logprobs": list(one.log_probs)}
            rows.append(row)
    write_lines(folder / "run_rollouts_000000.jsonl", rows[:6])
    write_lines(folder / "run_rollouts_000001.jsonl", rows[6:])
    write_lines(folder / "run_metadata.jsonl", [{"run_name": "run", "model_name": "toy"}])


def areal(folder: Path) -> None:
    """A task whose samples ended under two versions of the policy; the text shows end-of-text."""
    for i, one in enumerate(ROLLED):
        version = 4 if i == 2 else 3
        row = {"task_id": i // 3, "sample_idx": i % 3, "seqlen": len(one.prompt.ids) + len(one.ids)}
        row |= {"prompt_len": len(one.prompt.ids) + one.mask.count(0), "head_version": 3, "tail_version": version}
        row |= {"reward": 1.0 if one.right else 0.0, "prompt": one.prompt.text}
        end = "" if one.finish == "length" else "<|end|>"
        path = folder / "rollout" / str(version) / f"{i // 3}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab" if path.exists() and i % 3 and i != 2 else "wb") as file:
            file.write((json.dumps(row | {"completion": f"{one.text}{end}"}) + "\n").encode())


FORMATS = (
    verl, verl_v1, verl_validation, verl_generation, verl_dataproto, trl, nemo_rl, nemo_rl_validation, prime_rl,
    verifiers_v1, prime_rl_tokens, prime_rl_parquet, slime, slime_train, open_instruct, areal,
)  # fmt: skip


def main(folder: Path) -> None:
    """Write every dump under its own folder."""
    for format in FORMATS:
        format(folder / format.__name__)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DUMPS)
