"""Readers of evaluations, logs of columns, data sets and API responses: the project's own dumps, row by row."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import InputError, PrerequisiteError
from ktae_cli.inputs import ReadInputs, open_rollouts
from ktae_cli.readers.base import ReaderOptions, Record
from tests.readers.make_dumps_b import tensor, zipped
from tests.rollout_files import SHARED, ktae

ROOT = Path(__file__).parents[2]
DUMPS = ROOT / "sample_data" / "dumps"
SAMPLES = SHARED / "format_samples"
PRIME, BACK = "Is 91 prime?", "Spell cat backwards."
ROLLED = {"domain": "math_rule", "sampling_params": '{"temperature": 1.0}'}
OLD = {"task": "words", "generation_ms": 5.0, "scoring_ms": 1.0, "total_ms": 6.0}
ASKED = [f'{{"question":"{PRIME}","ground_truth":"no"}}', f'{{"question":"{BACK}","ground_truth":"tac"}}']
SPEC = '{"reward_spec":{"method":"rule","ground_truth":"no"}}'


def read(tmp_path, *paths, format="auto", **options):
    """Return (rows without their nulls, notices) of inputs that are read through `open_rollouts`."""
    said = []
    scratch = tmp_path / f"scratch{len(list(tmp_path.iterdir()))}"
    scratch.mkdir()
    chosen = ReadInputs(format, ReaderOptions(notice=said.append, warn=said.append, **options))
    source = open_rollouts([str(path) for path in paths], str(scratch), chosen)
    rows = [row for batch in source.batches() for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if value is not None} for row in rows], said


def write_lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


# --- what each of the project's dumps holds, as literals ------------------------------------------------------------

EXPECTED = {
    "skyrl": [
        {"prompt": PRIME, "response": "91 = 7 * 13,\u2028so no.<|end|>", "reward": 1.0, "ground_truth": "no",
         "finish_reason": "stop", "step": 40, "env_extras": SPEC, "data_source": "words"},
        {"prompt": PRIME, "response": "Yes.<|end|>", "reward": -1.0, "ground_truth": "no", "finish_reason": "stop",
         "step": 40, "env_extras": SPEC, "data_source": "words"},
        {"prompt": PRIME, "response": "Let me think", "reward": -0.25, "ground_truth": "no",
         "finish_reason": "length", "step": 40, "env_extras": SPEC, "data_source": "words",
         "token_scores": [0.0, 0.25, -0.5]},
        {"prompt": BACK, "response": "tac<|end|>", "reward": 1.0, "step": 40, "env_extras": "{}",
         "data_source": "words"},
    ],
    "skyrl_batch": [
        {"group_id": "40/0", "prompt_ids": [7, 8], "response_ids": [21, 22, 2], "response_mask": [True, False, True],
         "rollout_log_probs": [-0.5, 0.0, -0.25], "old_log_probs": [-0.5, 0.0, -0.5], "step": 40},
        {"group_id": "40/0", "prompt_ids": [7, 8], "response_ids": [23, 2], "response_mask": [True, True],
         "rollout_log_probs": [-1.0, -2.0], "old_log_probs": [-1.0, -1.0], "step": 40},
        {"group_id": "40/1", "prompt_ids": [5, 6, 9], "response_ids": [24, 25, 26], "response_mask": [True] * 3,
         "rollout_log_probs": [-0.125, -0.5, -1.0], "old_log_probs": [-0.25, -0.5, -1.0], "step": 40},
        {"group_id": "40/1", "prompt_ids": [5, 6, 9], "response_ids": [2], "response_mask": [True],
         "rollout_log_probs": [-4.0], "old_log_probs": [-3.0], "step": 40},
    ],
    "rllm": [
        {"group_id": "train_7_1/aa11/solver", "rollout_id": "train_7_1/aa11:0/solver/0", "prompt": PRIME,
         "response": "No, 7 * 13.", "reward": 1.0, "correct": True, "ground_truth": "no", "finish_reason": "stop",
         "step": 7, "task": ASKED[0], "termination_reason": "env_done", "task_hash": "aa11aa11", "epoch": 1,
         "trajectory_name": "solver"},
        {"group_id": "train_7_1/aa11/solver", "rollout_id": "train_7_1/aa11:1/solver/0",
         "prompt": f"system: Use the tool.\n\nuser: {PRIME}", "response": "factor(91)\n\ntool: 7 13\n\nNot prime.",
         "reward": 0.5, "correct": True, "ground_truth": "no", "finish_reason": "stop", "step": 7,
         "task": ASKED[0], "termination_reason": "env_done", "task_hash": "aa11aa11", "epoch": 1,
         "trajectory_name": "solver"},
        {"group_id": "train_7_1/bb22/solver", "rollout_id": "train_7_1/bb22:0/solver/0", "prompt": BACK,
         "response": "c-a-t turned", "reward": 0.0, "correct": False, "ground_truth": "tac",
         "finish_reason": "length", "step": 7, "task": ASKED[1], "termination_reason": "max_response_length_exceeded",
         "task_hash": "bb22bb22", "epoch": 1, "trajectory_name": "solver"},
        {"group_id": "train_7_1/bb22/solver", "rollout_id": "train_7_1/bb22:1/solver/0", "ground_truth": "tac",
         "finish_reason": "error", "step": 7, "task": ASKED[1], "termination_reason": "error", "task_hash": "bb22bb22",
         "epoch": 1, "trajectory_name": "solver"},
        {"group_id": "train_7_1/bb22/judge", "rollout_id": "train_7_1/bb22:1/judge/0", "prompt": "Right?",
         "response": "yes", "reward": 1.0, "ground_truth": "tac", "finish_reason": "error", "step": 7,
         "task": ASKED[1], "termination_reason": "error", "task_hash": "bb22bb22", "epoch": 1,
         "trajectory_name": "judge"},
    ],
    "roll": [
        {"group_id": group, "prompt": PRIME, "response": text, "reward": reward, "ground_truth": "no", "step": step,
         **ROLLED}
        for group, text, reward, step in (
            ("3/17", "no", 1.0, 3), ("3/17", "yes", 0.0, 3), ("3/18", "yes!", 0.0, 3), ("3/18", "No.", 1.0, 3),
            ("4/17", "no", 0.0, 4), ("4/17", "yes", 1.0, 4),
        )
    ],
    "ms_swift": [
        {"prompt": PRIME, "response": "no", "reward": 1.5, "rewards": [("MathAccuracy", 1.0), ("Format", 0.5)],
         "correct": True, "step": 10, "advantages": 0.5, "gen_id": "x1", "mean_entropy": 0.25},
        {"prompt": PRIME, "response": "factor(91)\n\ntool: 7 13\n\nno", "reward": 0.0,
         "rewards": [("MathAccuracy", 0.0), ("Format", math.nan)], "correct": False, "step": 10, "advantages": -0.5,
         "gen_id": "x2", "mean_entropy": 0.5},
        {"prompt": PRIME, "response": "yes", "rewards": [("MathAccuracy", None), ("Format", None)], "step": 20,
         "advantages": 0.0, "gen_id": "x3", "mean_entropy": 0.125},
        {"prompt": PRIME, "response": "no", "reward": 1.5, "rewards": [("MathAccuracy", 1.0), ("Format", 0.5)],
         "correct": True, "step": 20, "advantages": 0.0, "gen_id": "x4", "mean_entropy": 1.0},
    ],
    "verifiers": [
        {"group_id": "3fa9c1d2/0", "prompt": PRIME,
         "response": '{"name": "factor", "arguments": "{\\"n\\": 91}"}\n\ntool: 7 13\n\nno', "reward": 1.25,
         "rewards": [("correct_answer", 1.0), ("format", 0.25)], "correct": True, "ground_truth": "no",
         "finish_reason": "stop", "is_completed": True, "is_truncated": False,
         "stop_condition": "no_tools"},
        {"group_id": "3fa9c1d2/0", "prompt": PRIME, "response": "yes", "reward": 0.25,
         "rewards": [("correct_answer", 0.0), ("format", 0.25)], "correct": False, "ground_truth": "no",
         "finish_reason": "stop", "is_completed": True, "is_truncated": False,
         "stop_condition": "no_tools"},
        {"group_id": "3fa9c1d2/1", "prompt": BACK, "response": "ta", "reward": 0.0,
         "rewards": [("correct_answer", 0.0), ("format", 0.25)], "correct": False, "ground_truth": "tac",
         "finish_reason": "length", "is_completed": True, "is_truncated": True,
         "stop_condition": "no_tools"},
        {"group_id": "3fa9c1d2/1", "prompt": BACK, "response": "",
         "rewards": [("correct_answer", None), ("format", 0.25)], "ground_truth": "tac", "finish_reason": "error",
         "error": "TimeoutError", "is_completed": False, "is_truncated": False, "stop_condition": "no_tools"},
    ],
    "verifiers_old": [
        {"prompt": prompt, "response": text, "reward": reward, "rewards": [("exact", reward)], "ground_truth": truth,
         "id": number, **OLD}
        for prompt, text, reward, truth, number in (
            (PRIME, "no", 1.0, "no", 0), (BACK, "tca", 0.0, "tac", 0), (PRIME, "yes", 0.0, "no", 1),
            (BACK, "tac", 1.0, "tac", 1),
        )
    ],
    "openr1": [
        {"group_id": "u1", "prompt": PRIME, "ground_truth": "no", "response": "no", "correct": True,
         "finish_reason": "stop", "is_reasoning_complete": True, "correctness_count": 1},
        {"group_id": "u1", "prompt": PRIME, "ground_truth": "no", "response": "Hm", "correct": False,
         "finish_reason": "length", "is_reasoning_complete": False, "correctness_count": 1},
        {"group_id": "u2", "prompt": BACK, "ground_truth": "tac", "response": "tac", "correct": True,
         "is_reasoning_complete": True, "correctness_llama": True, "correctness_count": 1},
        {"group_id": "u2", "prompt": BACK, "ground_truth": "tac", "response": "cta", "is_reasoning_complete": True,
         "correctness_llama": False, "correctness_count": 1},
        {"group_id": "u2", "prompt": BACK, "ground_truth": "tac", "response": "tca", "correct": False,
         "is_reasoning_complete": True, "correctness_llama": False, "correctness_count": 1},
        {"group_id": "u3", "prompt": "1 + 1 =", "ground_truth": "2", "response": "2", "is_reasoning_complete": True,
         "correctness_llama": True, "correctness_count": 1},
    ],
    "wide": [
        {"prompt": prompt, "ground_truth": truth, "response": text, "correct": right, "difficulty": difficulty}
        for prompt, truth, text, right, difficulty in (
            (PRIME, "no", "no", True, 1.5), (PRIME, "no", "yes", False, 1.5), (PRIME, "no", "No.", True, 1.5),
            (BACK, "tac", "tac", True, 1.0), (BACK, "tac", "cat", False, 1.0),
        )
    ],
    "synthetic1": [
        {"rollout_id": f"{group}_{i}", "group_id": group, "source": "toy", "prompt": prompt, "ground_truth": truth,
         "response": text, "verification_info": "{}", "reward": reward}
        for i, (group, prompt, truth, text, reward) in enumerate((
            ("p1", PRIME, "no", "no", 1.0), ("p1", PRIME, "no", "yes", 0.0), ("p2", BACK, "tac", "tc", 0.4),
            ("p2", BACK, "tac", "tac", 0.9),
        ))
    ],
    "lighteval": [
        {"group_id": f"words|0_2026-02-03/{doc}", "prompt": prompt, "prompt_ids": asked, "response": text,
         "ground_truth": truth, "response_ids": ids, "task_name": "words", "metric": '{"pass@k:k=1&n=2":0.5}'}
        for doc, prompt, asked, text, truth, ids in (
            (0, PRIME, [7, 8], "no.", "no", [21, 22, 2]), (0, PRIME, [7, 8], "yes", "no", [23, 2]),
            (1, BACK, [5, 6, 9], "ta", "tac", [24]), (1, BACK, [5, 6, 9], "tac", "tac", [24, 25, 2]),
        )
    ],
    "lm_eval": [
        {"group_id": f"words_2026-02-03T00-00-00/{doc}", "prompt": prompt, "response": text, "ground_truth": truth,
         "doc": json.dumps({"q": prompt}, separators=(",", ":")), "doc_hash": "d", "filter": "strict",
         "metrics": f'{{"exact_match":{metric}}}'}
        for doc, prompt, text, truth, metric in (
            (0, PRIME, "no", "no", 1.0), (0, PRIME, "It's [not] 'prime'", "no", 1.0), (1, BACK, "tac", "tac", 0.0),
            (1, BACK, "t-a-c\n", "tac", 0.0),
        )
    ],
    "openai/responses.jsonl": [
        {"group_id": "cmpl-9", "rollout_id": "cmpl-9/0", "response": "no", "finish_reason": "stop",
         "prompt_ids": [7, 8], "response_ids": [21, 2], "rollout_log_probs": [-0.5, math.nan],
         "response_tokens": ["no", "<eos>"], "choice": 0, "model": "toy"},
        {"group_id": "cmpl-9", "rollout_id": "cmpl-9/1", "response": "ye", "finish_reason": "length",
         "prompt_ids": [7, 8], "response_ids": [23], "rollout_log_probs": [-2.0], "response_tokens": ["ye"],
         "choice": 1, "model": "toy"},
        {"group_id": "chatcmpl-8", "rollout_id": "chatcmpl-8/0", "response": "tac", "finish_reason": "stop",
         "prompt_ids": [5, 6, 9], "response_ids": [31, 2], "rollout_log_probs": [-0.25, -1.0], "choice": 0,
         "model": "toy", "reasoning_content": "turn it"},
        {"group_id": "chatcmpl-8", "rollout_id": "chatcmpl-8/1", "response": "", "finish_reason": "abort",
         "prompt_ids": [5, 6, 9], "choice": 1, "model": "toy"},
    ],
    "openai/batch": [
        {"group_id": "q-1", "rollout_id": "chatcmpl-7/0", "response": "no", "finish_reason": "stop", "choice": 0},
        {"group_id": "q-1", "rollout_id": "chatcmpl-7/1", "response": "yes", "finish_reason": "stop", "choice": 1},
    ],
    "inspect_ai/json": [
        {"group_id": "E1/prime", "rollout_id": "E1/prime/1", "prompt": PRIME,
         "response": "factor(91)\n\ntool: 7 13\n\nno", "reward": 1.0, "correct": True, "rewards": [("match", 1.0)],
         "ground_truth": "no", "finish_reason": "stop", "sample_id": "prime", "epoch": 1},
        {"group_id": "E1/prime", "rollout_id": "E1/prime/2", "prompt": PRIME, "response": "yes", "reward": 0.0,
         "correct": False, "rewards": [("match", 0.0)], "ground_truth": "no", "finish_reason": "stop",
         "sample_id": "prime", "epoch": 2},
        {"group_id": "E1/back", "rollout_id": "E1/back/1", "prompt": BACK, "response": "ta", "reward": 0.5,
         "rewards": [("match", 0.5)], "ground_truth": "tac", "finish_reason": "length", "sample_id": "back",
         "epoch": 1},
        {"group_id": "E1/back", "rollout_id": "E1/back/2", "prompt": BACK, "response": "", "reward": 0.0,
         "correct": False, "rewards": [("match", 0.0)], "ground_truth": "tac", "finish_reason": "abort",
         "sample_id": "back", "epoch": 2},
    ],
}  # fmt: skip
EXPECTED["inspect_ai/eval"] = EXPECTED["inspect_ai/json"]


@pytest.mark.parametrize("dump", EXPECTED)
def test_a_dump_is_recognised_and_read_as_the_rows_it_holds(dump, tmp_path):
    rows, said = read(tmp_path, DUMPS / dump, unsafe_pickle=True)
    assert repr(rows) == repr(EXPECTED[dump])  # as text: NaN is equal to itself
    assert said[0].startswith(f"read as {dump.partition('/')[0]}")


def test_the_dumps_are_those_that_their_script_writes(tmp_path):
    subprocess.run([sys.executable, ROOT / "tests" / "readers" / "make_dumps_b.py", tmp_path], check=True)
    made = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert len(made) == 23
    for path in made:
        committed = DUMPS / path.relative_to(tmp_path)
        if path.suffix == ".parquet":
            assert pq.read_table(path).equals(pq.read_table(committed))
        else:
            assert path.read_bytes() == committed.read_bytes(), committed


# --- the shared samples: a table of what each format carries --------------------------------------------------------

TEXT, IDS = ("response", "prompt"), ("response_ids", "prompt_ids")
CARRIES = {
    "skyrl/dumped_evals": (*TEXT, "reward", "finish_reason", "ground_truth", "whole_text"),
    "skyrl/dumped_data": ("group_id", *IDS, "response_mask", "advantages"),
    "rllm": ("group_id", *TEXT, "reward", "correct", "finish_reason", "ground_truth"),
    "roll": ("group_id", *TEXT, "reward", "ground_truth"),
    "ms_swift": (*TEXT, "reward", "correct", "advantages"),
    "verifiers/results.jsonl": ("group_id", *TEXT, "reward", "correct", "finish_reason", "ground_truth"),
    "hf_openr1_math": ("group_id", *TEXT, "correct", "ground_truth", "finish_reason"),
    "hf_synthetic1": ("group_id", *TEXT, "reward", "ground_truth"),
    "lighteval": ("group_id", *TEXT, *IDS, "ground_truth"),
    "lm_eval": ("group_id", *TEXT, "ground_truth"),
    "openai_vllm/completions_n4.jsonl": ("group_id", "response", *IDS, "finish_reason"),
    "openai_vllm/batch_output.jsonl": ("group_id", "response", "finish_reason"),
}
FIELDS = sorted({field for fields in CARRIES.values() for field in fields} - {"whole_text"})


def in_order_of_the_truth(name, rows, truth):
    """Return the rows as TRUTH.json has them: the files of rLLM have another order, and all responses differ."""
    if name != "rllm":
        return rows
    by_text = {row["response"]: row for row in rows}
    return [by_text[true["text"]] for true in truth]


def plain(sample, response):
    """Return a response without what stands between its messages."""
    return response.replace("\n\ntool: ", "").replace("\n\n", "") if sample.startswith("verifiers") else response


@pytest.fixture(scope="module")
def truth():
    if not SAMPLES.exists():
        pytest.skip("the shared samples are not here")
    return json.loads((SAMPLES / "TRUTH.json").read_text())


@pytest.fixture(scope="module")
def sample_rows(truth, tmp_path_factory):
    """Rows of each shared sample in the order of TRUTH.json."""
    folder = tmp_path_factory.mktemp("samples")
    return {
        name: in_order_of_the_truth(name, read(folder, SAMPLES / name, unsafe_pickle=True)[0], truth)
        for name in CARRIES
    }


def expected_of(sample, field, true):
    match field:
        case "response_ids":
            return true["ids"]
        case "prompt_ids":
            return true["pid"]
        case "response_mask":
            return [flag == 1 for flag in true["mask"]]
        case "advantages":
            scalar = sample == "ms_swift"
            return pytest.approx(true["adv"] if scalar else [true["adv"]] * len(true["ids"]), abs=1e-6)
        case "reward":
            return float(true["ok"])
        case "correct":
            return true["ok"] == 1
        case "finish_reason":
            return None if sample == "hf_openr1_math" and true["g"] == 0 else true["fin"]  # a null list there
        case "ground_truth":
            return true["ans"]
    raise AssertionError(field)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("sample", CARRIES)
def test_a_shared_sample_carries_what_its_truth_says(sample, field, sample_rows, truth):
    rows = sample_rows[sample]
    if field not in CARRIES[sample]:
        assert not any(field in row for row in rows)
        return
    assert len(rows) == len(truth)
    if field == "group_id":
        pairs = {(row["group_id"], true["g"]) for row, true in zip(rows, truth, strict=True)}
        assert len(pairs) == len({group for group, _ in pairs}) == 2
    elif field == "prompt":
        assert all(true["prob"] in row["prompt"] for row, true in zip(rows, truth, strict=True))
    elif field == "response":
        cut = "" if "whole_text" not in CARRIES[sample] else "<eos>"
        for row, true in zip(rows, truth, strict=True):
            assert plain(sample, row["response"]) == true["text"] + (cut if true["fin"] == "stop" else "")
    else:
        assert [row.get(field) for row in rows] == [expected_of(sample, field, true) for true in truth]


@pytest.mark.parametrize("sample", [name for name, fields in CARRIES.items() if "response" in fields])
def test_the_text_of_a_shared_sample_encodes_to_the_true_ids(sample, sample_rows, truth, tmp_path):
    tokenizer = word_level(tmp_path)
    for row, true in zip(sample_rows[sample], truth, strict=True):
        ended = true["ids"][-1] == 2 and "whole_text" not in CARRIES[sample]
        assert tokenizer.encode(plain(sample, row["response"])).ids == true["ids"][: -1 if ended else None]


def word_level(folder):
    """Return a tokenizer of whole words made from vocab.json: the longest word that fits is taken."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocab = json.loads((SAMPLES / "vocab.json").read_text())
    escaped = ["".join(f"\\{c}" if not c.isalnum() and c not in " \n" else c for c in word) for word in vocab]
    tokenizer = Tokenizer(models.WordLevel(vocab, "<pad>"))
    words = Regex("|".join(sorted(escaped, key=len, reverse=True)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


# --- what cannot be told apart, or does not fit together ------------------------------------------------------------


def test_a_pickle_is_not_read_without_unsafe_pickle(tmp_path):
    with pytest.raises(PrerequisiteError, match=r"training_input\.pkl: .*--unsafe-pickle"):
        read(tmp_path, DUMPS / "skyrl_batch")


def test_a_batch_with_rewards_left_in_takes_their_sum_and_keeps_those_of_the_tokens():
    from ktae_cli.readers.skyrl_batch import skyrl_batch

    state = {
        "batch_dict": {
            "sequences": tensor([[0, 7, 21, 2]], "int64"),
            "attention_mask": tensor([[0, 1, 1, 1]], "int64"),
            "response_mask": tensor([[0, 1, 1]], "int64"),
            "rewards": tensor([[9, 0.25, 1.0]], "float32"),
        },
        "metadata": {"uids": ["a"], "global_step": 3},
    }
    (row,) = skyrl_batch(iter([Record(state, "x.pkl", 0)]), ReaderOptions())
    assert row["prompt_ids"].tolist() == [7] and row["response_ids"].tolist() == [21, 2]
    assert (row["group_id"], row["reward"], row["step"]) == ("3/a", 1.25, 3)
    assert row["token_rewards"].tolist() == [0.25, 1.0]


def test_a_batch_whose_tensors_do_not_fit_together_is_refused():
    from ktae_cli.readers.skyrl_batch import skyrl_batch

    two, three = tensor([[1, 2]], "int64"), tensor([[1, 2, 3]], "int64")
    state = {"batch_dict": {"sequences": two, "attention_mask": two, "response_mask": three}, "metadata": {}}
    with pytest.raises(InputError, match=r"x\.pkl: tensors that do not fit together: sequences \(1, 2\)"):
        list(skyrl_batch(iter([Record(state, "x.pkl", 0)]), ReaderOptions()))


def test_columns_of_unequal_length_in_a_line_are_refused_or_dropped_with_a_count(tmp_path):
    good = {"global_step": [1], "prompt": ["q"], "responses": ["a"], "scores": [1.0]}
    path = write_lines(tmp_path / "roll.jsonl", good, good | {"scores": [1.0, 0.0]})
    with pytest.raises(InputError, match=r"roll\.jsonl, line 2: columns of unequal length \(responses 1, scores 2\)"):
        read(tmp_path, path)
    rows, said = read(tmp_path, path, on_mismatch="drop")
    assert len(rows) == 1 and "1 lines dropped, their columns of unequal length" in said


def test_lists_of_a_prompt_row_of_unequal_length_are_refused_or_dropped_with_a_count(tmp_path):
    rows = [
        {"problem": "q", "generations": ["a", "b"], "correctness_math_verify": [True, False]},
        {"problem": "r", "generations": ["a", "b"], "correctness_math_verify": [True]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r1.parquet")
    with pytest.raises(InputError, match=r"row 1: .*\(generations 2, correctness_math_verify 1\)"):
        read(tmp_path, tmp_path / "r1.parquet")
    kept, said = read(tmp_path, tmp_path / "r1.parquet", on_mismatch="drop")
    assert [row["prompt"] for row in kept] == ["q", "q"]
    assert "1 rows dropped, their lists of unequal length" in said


def test_log_probs_of_another_length_name_the_choice_and_all_lengths(tmp_path):
    choice = {
        "index": 3, "text": "a", "token_ids": [1, 2, 3, 4, 5, 2],
        "logprobs": {"tokens": ["a"] * 5, "token_logprobs": [-1.0] * 7},
    }  # fmt: skip
    path = write_lines(tmp_path / "r.jsonl", {"id": "c1", "choices": [choice, choice | {"logprobs": None}]})
    wanted = (
        r"line 1 \(c1, choice 3\): response_ids has 6, response_tokens has 5, rollout_log_probs has 7 values, "
        "expected equally many"
    )
    with pytest.raises(InputError, match=wanted):
        read(tmp_path, path)
    rows, said = read(tmp_path, path, on_mismatch="drop")
    assert [row["response_ids"] for row in rows] == [[1, 2, 3, 4, 5, 2]]
    assert "1 rows dropped, their lists of unequal length" in said


def test_a_failed_request_of_a_batch_is_counted_and_an_odd_line_is_not(tmp_path):
    _, said = read(tmp_path, DUMPS / "openai" / "batch")
    assert "1 failed requests of a batch left out" in said
    good = json.loads((DUMPS / "openai" / "batch" / "batch_output.jsonl").read_text().partition("\n")[0])
    odd = {"custom_id": "q", "response": {"status_code": 200, "body": {}}, "error": None}
    with pytest.raises(InputError, match="line 2: neither a response with choices nor an error"):
        read(tmp_path, write_lines(tmp_path / "batch.jsonl", good, odd))


def test_two_reward_functions_that_sound_like_a_verdict_need_map_correct(tmp_path):
    line = {"step": ["1"], "prompt": ["q"], "completion": ["a"], "accuracy": [0.0], "acc_strict": [1.0]}
    path = write_lines(tmp_path / "completions.jsonl", line)
    with pytest.raises(InputError, match=r"line 1: accuracy, acc_strict may all say .* --map correct=accuracy"):
        read(tmp_path, path)
    ((row,), _) = read(tmp_path, path, correct_column="acc_strict")
    assert row["correct"] is True and row["reward"] == 1.0


def test_columns_after_the_advantages_are_no_rewards(tmp_path):
    line = {
        "step": ["1"], "prompt": ["q"], "completion": ["a"], "Format": [0.5], "advantages": [0.0], "difficulty": [3.0],
    }  # fmt: skip
    ((row,), _) = read(tmp_path, write_lines(tmp_path / "completions.jsonl", line))
    assert row["reward"] == 0.5 and row["rewards"] == [("Format", 0.5)] and row["difficulty"] == 3.0
    assert "correct" not in row


def test_log_likelihood_tasks_hold_no_responses(tmp_path):
    line = {"doc_id": 0, "resps": [[["-1.5", "True"]], [["-2.5", "False"]]], "filtered_resps": [], "filter": "none"}
    with pytest.raises(InputError, match="line 1: resps holds log-likelihoods of given answers"):
        read(tmp_path, write_lines(tmp_path / "samples_x_1.jsonl", line))


def test_a_metric_is_the_reward_of_a_document_that_was_answered_once(tmp_path):
    line = {
        "doc_id": 0, "target": 4, "resps": [["4"]], "filtered_resps": ["4"], "filter": "strict",
        "metrics": ["exact_match"], "exact_match": 0.0, "arguments": {"gen_args_0": {"arg_0": "2 + 2"}},
    }  # fmt: skip
    path = write_lines(tmp_path / "samples_sum_1.jsonl", line, line | {"filter": "flexible", "exact_match": 1.0})
    ((row,), _) = read(tmp_path, path)
    assert (row["reward"], row["ground_truth"], row["filter"]) == (0.0, "4", "strict")
    ((row,), _) = read(tmp_path, path, correct_column="exact_match,flexible")
    assert (row["reward"], row["filter"]) == (1.0, "flexible")
    with pytest.raises(InputError, match="no filter 'flexibel'; found flexible, strict"):
        read(tmp_path, path, correct_column="exact_match,flexibel")


@pytest.mark.parametrize("text", ["__import__('os').system('x')", "[" * 5000, "['a', 1", "[['a'], [open('x')]]"])
def test_text_that_is_no_list_of_literals_stays_text(text):
    from ktae_cli.readers.lm_eval import literal

    assert literal(text) == text


def test_samples_of_one_document_id_in_two_tasks_are_two_groups(tmp_path):
    line = {"doc_id": 0, "resps": [["a", "b"]], "filtered_resps": ["a"], "filter": "none", "metrics": []}
    paths = [write_lines(tmp_path / f"samples_{task}_2026.jsonl", line) for task in ("add", "sub")]
    rows, _ = read(tmp_path, *paths)
    assert [row["group_id"] for row in rows] == ["add_2026/0"] * 2 + ["sub_2026/0"] * 2


def test_several_scorers_need_map_correct_and_all_are_kept(tmp_path):
    sample = {"id": 1, "epoch": 1, "input": "q", "scores": {"a": {"value": "C"}, "b": {"value": {"x": 0.25}}}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"eval": {"task": "t"}, "samples": [sample]}))
    with pytest.raises(InputError, match=r"log\.json: several scores \(a, b\.x\); name one with --map correct=a"):
        read(tmp_path, path)
    ((row,), _) = read(tmp_path, path, correct_column="b.x")
    assert row["reward"] == 0.25 and row["rewards"] == [("a", 1.0), ("b.x", 0.25)] and "correct" not in row


def test_an_archive_without_samples_or_cut_short_is_one_line(tmp_path):
    from ktae_cli.readers._zipped_documents import is_zipped_log, zipped_documents

    (tmp_path / "a.eval").write_bytes(zipped({"header.json": b"{}"}))
    with pytest.raises(InputError, match=r"a\.eval: a ZIP file without samples/\*\.json"):
        list(zipped_documents(tmp_path / "a.eval"))
    whole = (DUMPS / "inspect_ai" / "eval" / "2026-02-03_words.eval").read_bytes()
    (tmp_path / "b.eval").write_bytes(whole[:900])
    assert not is_zipped_log(tmp_path / "b.eval")
    with pytest.raises(InputError, match=r"b\.eval: the archive cannot be read"):
        list(zipped_documents(tmp_path / "b.eval"))


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "step_1": "a", "step_2": "b", "tags": ["x", "y"]},
        {"prompt": "q", "response_ids": [1], "output_1": "a", "output_2": "b"},
        {"prompt": "q", "response": "a", "samples": ["a", "b"], "scores": [1.0, 0.0]},
    ],
)
def test_tables_of_rollouts_and_of_prompts_alone_are_no_tables_of_many_responses(row, tmp_path):
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    rows, said = read(tmp_path, tmp_path / "t.parquet")
    assert rows == [row] and said == []


def test_an_archive_holds_what_the_document_holds():
    from ktae_cli.readers._zipped_documents import is_zipped_log, zipped_documents
    from ktae_cli.readers.inspect_ai import inspect_ai

    path = DUMPS / "inspect_ai" / "eval" / "2026-02-03_words.eval"
    records = [Record(value, str(path), 0) for value, _ in zipped_documents(path)]
    assert is_zipped_log(path) and len(records) == 5  # the header and four samples
    groups = [row["group_id"] for row in inspect_ai(iter(records), ReaderOptions())]
    assert groups == ["E1/prime", "E1/prime", "E1/back", "E1/back"]


# --- what hurts people (reference/user-pains.md) --------------------------------------------------------------------


def test_groups_are_made_by_id_whatever_the_order_and_size():  # H2
    from ktae_cli.readers.verifiers import verifiers

    lines = (DUMPS / "verifiers" / "outputs/evals/words--toy/3fa9c1d2/results.jsonl").read_text().splitlines()
    records = [Record(json.loads(lines[i]), "run/results.jsonl", i) for i in (3, 0, 2, 1, 0)]
    rows = list(verifiers(iter(records), ReaderOptions()))
    assert [row["group_id"] for row in rows] == ["run/1", "run/0", "run/1", "run/0", "run/0"]


def test_a_mask_with_a_hole_keeps_the_tokens_after_it(tmp_path):  # H13
    rows, _ = read(tmp_path, DUMPS / "skyrl_batch", unsafe_pickle=True)
    assert rows[0]["response_ids"] == [21, 22, 2] and rows[0]["response_mask"] == [True, False, True]


def test_padding_is_cut_by_the_masks_not_by_its_id(tmp_path):  # H3: 0 pads, and no end-of-text is needed
    rows, _ = read(tmp_path, DUMPS / "skyrl_batch", unsafe_pickle=True)
    assert [len(row["response_ids"]) for row in rows] == [3, 2, 3, 1]


def test_an_unknown_reward_stays_unknown(tmp_path):  # H10, H20
    rows, _ = read(tmp_path, DUMPS / "ms_swift")
    assert [row.get("reward") for row in rows] == [1.5, 0.0, None, 1.5]
    assert [row.get("correct") for row in rows] == [True, False, None, True]
    rows, _ = read(tmp_path, DUMPS / "verifiers")
    assert "reward" not in rows[3] and "correct" not in rows[3]


def test_one_row_of_the_data_set_in_two_steps_and_two_rows_of_one_text_are_groups_apart(tmp_path):  # H16
    rows, _ = read(tmp_path, DUMPS / "roll")
    assert list(dict.fromkeys(row["group_id"] for row in rows)) == ["3/17", "3/18", "4/17"]
    assert {row["prompt"] for row in rows} == {PRIME}


def test_special_tokens_stay_in_the_text_byte_for_byte(tmp_path):  # H18
    rows, _ = read(tmp_path, DUMPS / "skyrl")
    assert rows[0]["response"] == "91 = 7 * 13,\u2028so no.<|end|>"


@pytest.mark.parametrize("tail", ['{"example_id": 1, "pro', '{"example_id": 1, "prompt": "caf\u00e9'[:-1] + "\udcc3"])
def test_a_torn_last_line_is_left_out_with_a_warning(tail, tmp_path):  # H19
    whole = (DUMPS / "verifiers" / "outputs/evals/words--toy/3fa9c1d2/results.jsonl").read_bytes()
    path = tmp_path / "results.jsonl"
    path.write_bytes(whole + tail.encode("utf-8", "surrogateescape"))
    rows, said = read(tmp_path, path)
    assert len(rows) == 4
    assert any("line 5: the last line is torn" in text for text in said)


def test_trajectories_of_an_episode_have_ids_and_groups_of_their_own(tmp_path):  # H34
    rows, _ = read(tmp_path, DUMPS / "rllm")
    assert len({row["rollout_id"] for row in rows}) == len(rows) == 5
    assert [row["group_id"].rpartition("/")[2] for row in rows] == ["solver"] * 4 + ["judge"]


def test_messages_and_nested_answers_become_text(tmp_path):  # H39
    rows, _ = read(tmp_path, DUMPS / "verifiers")
    assert rows[2]["response"] == "ta"  # a list of parts
    rows, _ = read(tmp_path, DUMPS / "skyrl")
    assert rows[0]["ground_truth"] == "no"  # env_extras.reward_spec.ground_truth
    line = {"global_step": [1], "prompt": ["q"], "responses": ["a"], "scores": [1], "ground_truth": [[1, 2]]}
    ((row,), _) = read(tmp_path, write_lines(tmp_path / "roll.jsonl", line))
    assert row["ground_truth"] == "[1,2]"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_files_with_other_columns_are_read_together_in_any_order(order, tmp_path):  # H35
    with_ids = {"id": "a", "choices": [{"index": 0, "text": "x", "token_ids": [5]}, {"index": 1, "text": ""}]}
    text_only = {"id": "b", "choices": [{"index": 0, "text": "y", "token_ids": []}, {"index": 1, "text": "z"}]}
    paths = [write_lines(tmp_path / f"{i}.jsonl", line) for i, line in enumerate((with_ids, text_only))]
    rows, _ = read(tmp_path, *[paths[i] for i in order])
    found = {row["rollout_id"]: row.get("response_ids") for row in rows}
    assert found == {"a/0": [5], "a/1": None, "b/0": [], "b/1": None}


def test_a_path_that_needs_no_pandas_reads_lists_of_texts_in_batches(tmp_path):  # H23
    rows = [{"problem": f"q{i}", "generations": [f"{i}a", f"{i}b"], "correct": [True, False]} for i in range(5000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "many.parquet")
    found, _ = read(tmp_path, tmp_path / "many.parquet")
    assert len(found) == 10_000
    assert found[9999] == {"prompt": "q4999", "response": "4999b", "correct": False}


# --- scoring what lacks something -----------------------------------------------------------------------------------


def refused(capsys, *arguments):
    """Run `ktae score`, which has to exit 2, and return its last line."""
    assert ktae("score", *arguments) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("dump", "name", "verdicts"),
    [
        ("ms_swift", "Format", [True, None, None, True]),
        ("openr1", "correctness_llama", [None] * 2 + [True, False, False, True]),
    ],
)
def test_map_correct_names_what_the_reader_finds_on_the_command_line(dump, name, verdicts, tmp_path):
    out = tmp_path / "x.parquet"
    assert ktae("convert", DUMPS / dump, "--map", f"correct={name}", "-o", out) == 0
    assert pq.read_table(out)["correct"].to_pylist() == verdicts


@pytest.mark.parametrize("dump", ["openai/responses.jsonl", "openai/batch", "lighteval", "lm_eval"])
def test_scoring_a_dump_without_rewards_names_what_is_missing(dump, tmp_path, capsys):
    out = tmp_path / "x.parquet"
    line = refused(capsys, DUMPS / dump, "-o", out, "--tokenizer", ROOT / "sample_data" / "tokenizer.json")
    assert "reward" in line and "--map reward=COLUMN" in line and not out.exists()


@pytest.mark.parametrize("dump", ["skyrl", "roll", "ms_swift", "rllm", "verifiers", "openr1", "wide", "synthetic1"])
def test_scoring_text_alone_names_the_tokenizer(dump, tmp_path, capsys):
    assert "--tokenizer PATH" in refused(capsys, DUMPS / dump, "-o", tmp_path / "x.parquet")


@pytest.mark.parametrize("dump", ["skyrl", "roll", "ms_swift", "openr1", "wide", "synthetic1"])
def test_scoring_text_with_a_tokenizer_writes_every_row(dump, tmp_path):
    out = tmp_path / "x.parquet"
    assert ktae("score", DUMPS / dump, "-o", out, "--tokenizer", ROOT / "sample_data" / "tokenizer.json") == 0
    assert pq.read_table(out).num_rows == len(EXPECTED[dump])
