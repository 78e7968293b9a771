"""Write the tiny dumps of sample_data/dumps that tests/readers/test_formats_b.py reads.

`python tests/readers/make_dumps_b.py [DIRECTORY]`: the same bytes every time.
"""

import io
import json
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DUMPS = Path(__file__).parents[2] / "sample_data" / "dumps"
PRIME, BACK = "Is 91 prime?", "Spell cat backwards."


def chat(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    """Return chat messages of (role, content) pairs."""
    return [{"role": role, "content": content} for role, content in pairs]


def write_lines(path: Path, rows: list[Any]) -> None:
    """Write JSON lines as Python's writers do: plain UTF-8, NaN as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def write_document(path: Path, value: Any) -> None:
    """Write one indented JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(value, indent=2).encode())


def write_parquet(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
    """Write rows as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def skyrl(folder: Path) -> None:
    """An evaluation with a score for each token and a line separator inside a text."""
    spec = {"reward_spec": {"method": "rule", "ground_truth": "no"}}
    rows = [
        ("91 = 7 * 13,\u2028so no.<|end|>", 1.0, "stop", spec),
        ("Yes.<|end|>", -1.0, "stop", spec),
        ("Let me think", [0.0, 0.25, -0.5], "length", spec),
        ("tac<|end|>", 1.0, None, {}),
    ]
    names = ("output_response", "score", "stop_reason", "env_extras")
    out = folder / "dumped_evals" / "global_step_40_evals"
    write_lines(
        out / "words.jsonl",
        [
            {"input_prompt": BACK if i == 3 else PRIME, **dict(zip(names, row, strict=True)), "data_source": "words"}
            for i, row in enumerate(rows)
        ],
    )
    write_lines(out / "aggregated_results.jsonl", [{"eval/all/avg_score": 0.1875}])


def skyrl_batch(folder: Path) -> None:
    """Two groups of two and a row that fills the batch up; prompts padded on the left, responses on the right."""
    state = {
        "batch_dict": {
            "sequences": tensor([[0, 7, 8, 21, 22, 2], [0, 7, 8, 23, 2, 0], [5, 6, 9, 24, 25, 26], [5, 6, 9, 2, 0, 0],
                                 [5, 6, 9, 2, 0, 0]], "int64"),
            "attention_mask": tensor([[0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0], [1] * 6, [1, 1, 1, 1, 0, 0],
                                      [1, 1, 1, 1, 0, 0]], "int64"),
            "response_mask": tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]], "int64"),
            "loss_mask": tensor([[1, 0, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]], "float32"),
            "rollout_logprobs": tensor([[-0.5, 0, -0.25], [-1, -2, 0], [-0.125, -0.5, -1], [-4, 0, 0], [0, 0, 0]],
                                       "float32"),
            "action_log_probs": tensor([[-0.5, 0, -0.5], [-1, -1, 0], [-0.25, -0.5, -1], [-3, 0, 0], [0, 0, 0]],
                                       "float32"),
            "base_action_log_probs": None,
            "pixel_values": {"format": "tensor_list", "items": []},
        },
        "batch_size": 5,
        "device": None,
        "metadata": {"policy_prompt_boundaries": [(0, 2), (2, 4)], "response_length": 3},
    }  # fmt: skip
    out = folder / "dumped_data" / "global_step_40_training_input.pkl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(pickled_as("skyrl.backends.skyrl_train.training_batch", state))


def tensor(values: list[list[float]], dtype: str) -> dict[str, Any]:
    """Return a tensor in the form that SkyRL serialises."""
    array = np.array(values, dtype)
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": dtype}


def pickled_as(module_name: str, state: dict[str, Any]) -> bytes:
    """Pickle a batch that names classes of a package which is not installed."""
    module = types.ModuleType(module_name)

    def _rebuild_tensor_batch(cls: type, state: dict[str, Any]) -> None:
        raise NotImplementedError

    class TrainingInputBatch:
        def __reduce__(self):
            return _rebuild_tensor_batch, (TrainingInputBatch, state)

    for part in (_rebuild_tensor_batch, TrainingInputBatch):
        part.__module__, part.__qualname__ = module_name, part.__name__
        setattr(module, part.__name__, part)
    parents = {module_name.rsplit(".", n)[0]: types.ModuleType("parent") for n in range(1, module_name.count(".") + 1)}
    added = parents | {module_name: module}
    sys.modules.update(added)
    try:
        return pickle.dumps(TrainingInputBatch(), 4)
    finally:
        for name in added:
            del sys.modules[name]


def rllm(folder: Path) -> None:
    """Two tasks with two episodes; one of two turns, one cut, one with a second trajectory by another agent."""
    out = folder / "episodes" / "train_step_7_epoch_1"
    one_turn = [step(chat(("user", PRIME), ("assistant", "No, 7 * 13.")), "No, 7 * 13.")]
    asked = chat(("system", "Use the tool."), ("user", PRIME), ("assistant", "factor(91)"))
    two_turns = [
        step(asked, "factor(91)"),
        step([*asked, *chat(("tool", "7 13"), ("assistant", "Not prime."))], "Not prime."),
    ]
    cut = [step(chat(("user", BACK), ("assistant", "c-a-t turned")), "c-a-t turned")]
    judged = [step(chat(("user", "Right?"), ("assistant", "yes")), "yes")]
    episodes = [
        ("aa11:0", "no", True, "env_done", [("solver", 1.0, one_turn)]),
        ("aa11:1", "no", True, "env_done", [("solver", 0.5, two_turns)]),
        ("bb22:0", "tac", False, "max_response_length_exceeded", [("solver", 0.0, cut)]),
        ("bb22:1", "tac", None, "error", [("solver", None, []), ("judge", 1.0, judged)]),
    ]
    for episode_id, truth, right, reason, trajectories in episodes:
        task, _, number = episode_id.partition(":")
        asked = {"question": PRIME if task == "aa11" else BACK, "ground_truth": truth}
        value = {
            "training_step": 7, "epoch": 1, "episode_id": episode_id, "session_id": None, "task": asked,
            "task_hash": f"{task}{task}", "is_correct": right, "termination_reason": reason, "metrics": {},
            "metadata": {}, "timing": {},
            "trajectories": [
                {"name": name, "uid": "", "reward": reward, "num_steps": len(steps), "timing": {}, "steps": steps}
                for name, reward, steps in trajectories
            ],
        }  # fmt: skip
        write_document(out / f"episode_hash{task}{task}_id{task}_{number}.json", value)
    write_document(out / "batch_summary.json", {"num_episodes": 4})


def step(messages: list[dict[str, Any]], answer: str) -> dict[str, Any]:
    """Return one step of a trajectory."""
    return {
        "observation": "", "thought": "", "action": answer, "reward": 0.0, "done": True, "model_response": answer,
        "chat_completions": messages, "timing": {},
    }  # fmt: skip


def roll(folder: Path) -> None:
    """Two steps: the same row of the dataset is a group in each, and two rows with one text are two groups."""
    for number, scores in ((3, [1.0, 0.0, 0.0, 1.0]), (4, [0.0, 1.0])):
        n = len(scores)
        line = {
            "global_step": [number] * n, "id": ["17", "17", "18", "18"][:n], "prompt": [PRIME] * n,
            "ground_truth": ["no"] * n, "domain": ["math_rule"] * n, "responses": ["no", "yes", "yes!", "No."][:n],
            "scores": scores, "sampling_params": ['{"temperature": 1.0}'] * n,
        }  # fmt: skip
        write_lines(folder / f"rollout_dump_data.step_{number}.jsonl", [line])


def ms_swift(folder: Path) -> None:
    """Two events of logging; completions as messages, two reward functions, one of which did not apply once."""
    tool = [{"role": "assistant", "content": "factor(91)"}, *chat(("tool", "7 13"), ("assistant", "no"))]
    lines = [
        {
            "step": ["10", "10"], "prompt": [PRIME, PRIME], "completion": ["no", tool],
            "MathAccuracy": [1.0, 0.0], "Format": [0.5, float("nan")], "advantages": [0.5, -0.5],
            "gen_id": ["x1", "x2"], "entropy": [0.25, 0.5],
        },
        {
            "step": ["20", "20"], "prompt": [PRIME, PRIME], "completion": ["yes", "no"],
            "MathAccuracy": [None, 1.0], "Format": [None, 0.5], "advantages": [0.0, 0.0],
            "gen_id": ["x3", "x4"], "entropy": [0.125, 1.0],
        },
    ]  # fmt: skip
    write_lines(folder / "completions.jsonl", lines)


def verifiers(folder: Path) -> None:
    """Two examples: a tool call, a cut response, an error; a shaped reward beside the metric that gives the verdict."""
    call = {"id": "c1", "type": "function", "function": {"name": "factor", "arguments": '{"n": 91}'}}
    tool = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7 13", "tool_call_id": "c1"},
        {"role": "assistant", "content": "no"},
    ]
    rows = [
        (0, PRIME, tool, 1.25, None, False, 1.0, "no"),
        (0, PRIME, chat(("assistant", "yes")), 0.25, None, False, 0.0, "no"),
        (1, BACK, chat(("assistant", [{"type": "text", "text": "ta"}])), 0.0, None, True, 0.0, "tac"),
        (1, BACK, [], None, "TimeoutError", False, None, "tac"),
    ]
    write_lines(
        folder / "outputs" / "evals" / "words--toy" / "3fa9c1d2" / "results.jsonl",
        [
            {
                "example_id": example, "prompt": chat(("user", prompt)), "completion": completion, "reward": reward,
                "error": error, "is_completed": error is None, "is_truncated": cut, "stop_condition": "no_tools",
                "metrics": {"correct_answer": right, "format": 0.25}, "answer": answer, "correct_answer": right,
                "format": 0.25,
            }
            for example, prompt, completion, reward, error, cut, right, answer in rows
        ],
    )  # fmt: skip
    write_document(folder / "outputs" / "evals" / "words--toy" / "3fa9c1d2" / "metadata.json", {"env_id": "words"})


def verifiers_old(folder: Path) -> None:
    """Rows in the order of the rollouts, not of the examples: `id` is of no use."""
    rows = [(0, PRIME, "no", 1.0), (0, BACK, "tca", 0.0), (1, PRIME, "yes", 0.0), (1, BACK, "tac", 1.0)]
    write_lines(
        folder / "results.jsonl",
        [
            {
                "id": i, "prompt": chat(("user", prompt)), "completion": chat(("assistant", text)), "task": "words",
                "generation_ms": 5.0, "scoring_ms": 1.0, "total_ms": 6.0,
                "answer": "no" if prompt == PRIME else "tac", "reward": reward, "exact": reward,
            }
            for i, prompt, text, reward in rows
        ],
    )  # fmt: skip


def openr1(folder: Path) -> None:
    """Prompts with two and three generations; a list of verdicts that is null, a verdict that is."""
    texts, flags = pa.list_(pa.string()), pa.list_(pa.bool_())
    schema = pa.schema(
        [("problem", pa.string()), ("answer", pa.string()), ("uuid", pa.string()), ("is_reasoning_complete", flags),
         ("generations", texts), ("correctness_math_verify", flags), ("correctness_llama", flags),
         ("finish_reasons", texts), ("correctness_count", pa.int64())]
    )  # fmt: skip
    rows = [
        (PRIME, "no", "u1", [True, False], ["no", "Hm"], [True, False], None, ["stop", "length"], 1),
        (BACK, "tac", "u2", [True] * 3, ["tac", "cta", "tca"], [True, None, False], [True, False, False], None, 1),
        ("1 + 1 =", "2", "u3", [True], ["2"], None, [True], None, 1),
    ]
    write_parquet(folder / "train-00000.parquet", [dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def wide(folder: Path) -> None:
    """Three numbered columns, one of them null once, with verdicts numbered alike."""
    rows = [
        {"question": PRIME, "final_answer": "no", "difficulty": 1.5, "r1_solution_1": "no", "r1_solution_2": "yes",
         "r1_solution_3": "No.", "correct_1": True, "correct_2": False, "correct_3": True},
        {"question": BACK, "final_answer": "tac", "difficulty": 1.0, "r1_solution_1": "tac", "r1_solution_2": None,
         "r1_solution_3": "cat", "correct_1": True, "correct_2": None, "correct_3": False},
    ]  # fmt: skip
    write_parquet(folder / "train.parquet", rows)


def synthetic1(folder: Path) -> None:
    """Scores between 0 and 1."""
    rows = [("p1", PRIME, "no", "no", 1.0), ("p1", PRIME, "no", "yes", 0.0), ("p2", BACK, "tac", "tc", 0.4),
            ("p2", BACK, "tac", "tac", 0.9)]  # fmt: skip
    write_parquet(
        folder / "part.parquet",
        [
            {"response_id": f"{problem}_{i}", "problem_id": problem, "source": "toy", "prompt": prompt,
             "gold_standard_solution": gold, "llm_response": text, "verification_info": "{}", "score": score}
            for i, (problem, prompt, gold, text, score) in enumerate(rows)
        ],
    )  # fmt: skip


def lighteval(folder: Path) -> None:
    """Two documents with two samples; token ids, and one metric for a document."""
    rows = [
        (PRIME, ["no", "yes"], 0, "0", [7, 8], ["no.", "yes"], [[21, 22, 2], [23, 2]], 0.5),
        (BACK, ["tac"], 0, "1", [5, 6, 9], ["ta", "tac"], [[24], [24, 25, 2]], 0.5),
    ]
    write_parquet(
        folder / "details" / "toy" / "2026-02-03" / "details_words|0_2026-02-03.parquet",
        [
            {
                "doc": {"query": query, "choices": choices, "gold_index": gold, "id": key, "task_name": "words"},
                "metric": {"pass@k:k=1&n=2": metric},
                "model_response": {"input": query, "input_tokens": asked, "text": text, "output_tokens": tokens},
            }
            for query, choices, gold, key, asked, text, tokens, metric in rows
        ],
    )


def lm_eval(folder: Path) -> None:
    """Two documents under two filters, two repeats; a list of responses that was written as text."""
    lines = []
    for filter_name, verdicts in (("strict", (1.0, 0.0)), ("flexible", (1.0, 1.0))):
        for doc, (prompt, target, texts) in enumerate(
            ((PRIME, "no", ["no", "It's [not] 'prime'"]), (BACK, "tac", ["tac", "t-a-c\n"]))
        ):
            lines.append(
                {
                    "doc_id": doc, "doc": {"q": prompt}, "target": target,
                    "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n\n"]}}},
                    "resps": [texts] if doc == 0 else repr([texts]), "filtered_resps": [texts[0]],
                    "filter": filter_name, "metrics": ["exact_match"], "doc_hash": "d", "exact_match": verdicts[doc],
                }
            )  # fmt: skip
    write_lines(folder / "toy__model" / "samples_words_2026-02-03T00-00-00.jsonl", lines)


def openai(folder: Path) -> None:
    """Completions with ids and log-probs, chat with tokens named by id; a batch with a failed request."""
    completion = {
        "id": "cmpl-9", "object": "text_completion", "model": "toy",
        "choices": [
            {"index": 0, "text": "no", "finish_reason": "stop", "token_ids": [21, 2], "prompt_token_ids": [7, 8],
             "logprobs": {"tokens": ["no", "<eos>"], "token_logprobs": [-0.5, None]}},
            {"index": 1, "text": "ye", "finish_reason": "length", "token_ids": [23], "prompt_token_ids": [7, 8],
             "logprobs": {"tokens": ["ye"], "token_logprobs": [-2.0]}},
        ],
    }  # fmt: skip
    named = [{"token": "token_id:31", "logprob": -0.25}, {"token": "token_id:2", "logprob": -1.0}]
    reply = {
        "id": "chatcmpl-8", "object": "chat.completion", "model": "toy", "prompt_token_ids": [5, 6, 9],
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "tac", "reasoning_content": "turn it"},
             "finish_reason": "stop", "logprobs": {"content": named}},
            {"index": 1, "message": {"role": "assistant", "content": None}, "finish_reason": "content_filter",
             "logprobs": None},
        ],
    }  # fmt: skip
    write_lines(folder / "responses.jsonl", [completion, reply])
    plain = {"id": "chatcmpl-7", "choices": [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(("no", "yes"))
    ]}  # fmt: skip
    failed = {"status_code": 400, "request_id": "r2", "body": {"error": {"message": "too long"}}}
    write_lines(
        folder / "batch" / "batch_output.jsonl",
        [
            {"id": "b1", "custom_id": "q-1", "response": {"status_code": 200, "body": plain}, "error": None},
            {"id": "b2", "custom_id": "q-2", "response": failed, "error": None},
        ],
    )


def inspect_ai(folder: Path) -> None:
    """Two samples in two epochs, with letters for scores; the same log as JSON and as an archive."""
    tool = [{"role": "assistant", "content": "factor(91)"}, *chat(("tool", "attachment://f00d"), ("assistant", "no"))]
    samples = [
        sample("prime", 1, [*chat(("user", PRIME)), *tool], "C", "no", {"f00d": "7 13"}),
        sample("prime", 2, chat(("user", PRIME), ("assistant", "yes")), "I", "no", {}),
        sample("back", 1, chat(("user", BACK), ("assistant", "ta")), "P", "tac", {}, stop="max_tokens"),
        sample("back", 2, chat(("user", BACK)), "N", "tac", {}, limit={"type": "time", "limit": 9}),
    ]
    header = {"version": 2, "status": "success", "eval": {"run_id": "R", "eval_id": "E1", "task": "words"}, "plan": {}}
    write_document(folder / "json" / "2026-02-03_words.json", header | {"samples": samples})
    out = folder / "eval" / "2026-02-03_words.eval"
    out.parent.mkdir(parents=True, exist_ok=True)
    members = {"_journal/start.json": header, "header.json": header}
    members |= {f"samples/{s['id']}_epoch_{s['epoch']}.json": s for s in samples}
    out.write_bytes(zipped({name: json.dumps(value).encode() for name, value in members.items()}))


def sample(
    key: str, epoch: int, messages: list[Any], score: str, target: str, attachments: dict[str, str],
    stop: str = "stop", limit: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Return one sample of an Inspect log."""
    text = messages[-1]["content"] if len(messages) > 1 else ""
    return {
        "id": key, "epoch": epoch, "input": messages[0]["content"], "target": target, "messages": messages,
        "output": {"model": "toy", "choices": [{"message": messages[-1], "stop_reason": stop}], "completion": text},
        "scores": {"match": {"value": score, "answer": text}}, "metadata": {}, "attachments": attachments,
        "limit": limit,
    }  # fmt: skip


def zipped(members: dict[str, bytes]) -> bytes:
    """Return a ZIP archive with no time in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


MAKERS = (
    skyrl, skyrl_batch, rllm, roll, ms_swift, verifiers, verifiers_old, openr1, wide, synthetic1, lighteval, lm_eval,
    openai, inspect_ai,
)  # fmt: skip


def make(directory: Path = DUMPS) -> None:
    """Write every dump into a folder of its reader's name."""
    for maker in MAKERS:
        maker(directory / maker.__name__)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else DUMPS)
