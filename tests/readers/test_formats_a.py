"""verl, TRL, NeMo-RL, prime-rl, slime, open-instruct and AReaL: what each dump carries, and what it lacks."""

import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ktae_cli.errors import InputError, KtaeError
from ktae_cli.inputs import ReadInputs, open_rollouts
from ktae_cli.readers.base import ReaderOptions
from tests.helpers import ROOT, SHARED
from tests.readers import make_dumps_a
from tests.rollout_files import ktae

DUMPS = ROOT / "sample_data" / "dumps"
SAMPLES = SHARED / "format_samples"
EMPTY = object()

# --- the project's own dumps ----------------------------------------------------------------------------------------

A, B = "How many legs have 3 cats?", "What is 7 minus 9?"
A_IDS, B_IDS = [11, 12, 13, 14], [15, 16]
PROMPT_IDS = [A_IDS, A_IDS, A_IDS, B_IDS, B_IDS, B_IDS]
IDS = [[21, 22, 23, 9], [24, 25, 9], [26, 27, 28, 29, 30, 9], [31, 32, 9], [33, 34, 35], [36, 9]]
TOOL = [True, True, False, False, True, True]
MASKS = [[True] * 4, [True] * 3, TOOL, [True] * 3, [True] * 3, [True] * 2]
LOG_PROBS = [
    [-0.5, -0.25, -0.125, -1.0], [-1.0, -2.0, -0.5], [-0.5, -0.5, 0.0, 0.0, -0.25, -0.125],
    [-0.5, -1.0, -0.25], [-2.0, -1.0, -0.5], [-0.25, -0.75],
]  # fmt: skip
DOUBLED = [
    [-1.0, -0.5, -0.25, -2.0], [-2.0, -4.0, -1.0], [-1.0, -1.0, 0.0, 0.0, -0.5, -0.25],
    [-1.0, -2.0, -0.5], [-4.0, -2.0, -1.0], [-0.5, -1.5],
]  # fmt: skip
ADVANTAGES = [[0.5] * 4, [-1.0] * 3, [0.5] * 6, [1.0] * 3, [-0.5] * 3, [-0.5] * 2]
ADVANTAGES_OF_POLICY = [*ADVANTAGES[:2], [0.5, 0.5, 0.0, 0.0, 0.5, 0.5], *ADVANTAGES[3:]]
TEXTS = ["3 x 4 = 12", "it is 7", "calc(3*4)12so 12", "-2", "I will count down", "2"]
RIGHT = [True, False, True, True, False, False]
FINISH = ["stop", "stop", "stop", "stop", "length", "stop"]


def backwards(values: list[Any]) -> list[Any]:
    return values[::-1]


EXPECTED: dict[str, dict[str, Any]] = {
    "verl": {
        "prompt": [B, A, B, A, A, B],
        "response": ["-2", "3 x 4 = 12", "I will count down", "calc(3*4)12so 12", "it is 7", "2"],
        "reward": [1.0, 1.0, -1.5, 1.0, -1.0, -1.0],
        "correct": [True, True, False, True, False, False],
        "ground_truth": ["-2", "12", "-2", "12", "12", "-2"],
        "step": [4] * 6,
        "request_id": ["r3", "r0", "r4", "r2", "r1", "r5"],
        "group_id": EMPTY, "rollout_id": EMPTY, "acc": EMPTY, "response_ids": EMPTY,
    },
    "verl_v1": {
        "group_id": ["7f3c"] * 4 + ["91ab"] * 3,
        "rollout_id": ["7f3c_0", "7f3c_1", "7f3c_2", "7f3c_2", "91ab_0", "91ab_1", "91ab_2"],
        "response": ["3 x 4 = 12", "it is 7", "calc(3*4)", "so 12", "-2", "I will count down", "2"],
        "reward": [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0],
        "uid": ["7f3c_0_0", "7f3c_1_0", "7f3c_2_0", "7f3c_2_1", "91ab_0_0", "91ab_1_0", "91ab_2_0"],
        "correct": EMPTY,
    },
    "verl_validation": {
        "response": TEXTS,
        "reward": [1.0, -1.0, 1.0, 1.0, -1.0, -1.0],
        "correct": RIGHT,
        "acc": [1.0, -1.0, 1.0, 1.0, -1.0, -1.0],
        "ground_truth": ['["12"]'] * 3 + ['["-2"]'] * 3,
        "step": [8] * 6,
        "input_reward": EMPTY,
    },
    "verl_generation": {
        "group_id": ["generations.parquet:0"] * 3 + ["generations.parquet:1"] * 3,
        "prompt": [A] * 3 + [B] * 3,
        "response": TEXTS,
        "ground_truth": ["12"] * 3 + ["-2"] * 3,
        "data_source": ["pets"] * 6,
        "reward": EMPTY, "correct": EMPTY,
    },
    "verl_dataproto": {
        "group_id": ["7f3c"] * 3 + ["91ab"] * 3,
        "prompt_ids": PROMPT_IDS, "response_ids": IDS, "response_mask": MASKS, "rollout_log_probs": LOG_PROBS,
        "token_rewards": [[0, 0, 0, 1], [0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0]],
        "reward": [1.0, 0.0, 1.0, 1.0, 0.0, 0.0],
        "correct": RIGHT,
        "ground_truth": ["12"] * 3 + ["-2"] * 3,
        "step": [6] * 6,
    },
    "trl": {
        "step": [20] * 6 + [22] * 6,
        "response": [*TEXTS, "3 x 4 = 12!", "it is 7!", "calc(3*4)12so 12!", "-2!", "I will count down!", "2!"],
        "reward": [1.25, 0.25, 1.25, 1.25, 0.0, 0.25, 1.25, 0.25, 1.25, 1.25, None, 0.25],
        "correct": [*RIGHT, True, False, True, True, None, False],
        "rewards": [
            [("accuracy_reward", accuracy), ("tag_reward", tag)]
            for accuracy, tag in [
                (1.0, 0.25), (0.0, 0.25), (1.0, 0.25), (1.0, 0.25), (0.0, None), (0.0, 0.25),
                (1.0, 0.25), (0.0, 0.25), (1.0, 0.25), (1.0, 0.25), (None, None), (0.0, 0.25),
            ]
        ],
        "advantage": [0.5, -1.0, 0.5, 1.0, -0.5, -0.5] * 2,
        "group_id": EMPTY,
    },
    "nemo_rl": {
        "prompt": [A] * 3 + [B] * 3,
        "response": TEXTS,
        "prompt_ids": PROMPT_IDS, "response_ids": IDS, "response_mask": MASKS,
        "rollout_log_probs": LOG_PROBS, "old_log_probs": DOUBLED, "trainer_advantages": ADVANTAGES,
        "reward": [1.0, 0.0, 1.0, 1.0, 0.0, 0.0],
        "step": [12] * 6,
        "idx": [0, 1, 2, 3, 4, 5],
        "group_id": EMPTY, "correct": EMPTY,
    },
    "nemo_rl_validation": {
        "prompt": [A] * 3 + [B] * 3, "response": TEXTS, "reward": [1.0, 0.0, 1.0, 1.0, 0.0, 0.0], "step": [30] * 6,
        "response_ids": EMPTY,
    },
    "prime_rl": {
        "group_id": ["7f3c"] * 3 + ["91ab"] * 4,
        "rollout_id": ["t0", "t1", "t2", "t3", "t3", "t4", "t5"],
        "prompt": [A] * 3 + [B] * 4,
        "response": [*TEXTS[:4], "minus two", *TEXTS[4:]],
        "prompt_ids": [*PROMPT_IDS, B_IDS],
        "response_ids": [*IDS[:4], [37, 9], *IDS[4:]],
        "response_mask": [*MASKS[:4], [True, True], *MASKS[4:]],
        "rollout_log_probs": [*LOG_PROBS[:4], [-1.0, -0.5], *LOG_PROBS[4:]],
        "trainer_advantages": [*ADVANTAGES_OF_POLICY[:4], [1.0, 1.0], *ADVANTAGES_OF_POLICY[4:]],
        "turn_ids": [[0] * 4, [0] * 3, [0, 0, 0, 0, 1, 1], [0] * 3, [0] * 2, [0] * 3, [0] * 2],
        "reward": [1.25, 0.25, 1.25, 1.25, 1.25, 0.25, 0.25],
        "rewards": [[("correct", float(right)), ("tags", 1.0)] for right in (1, 0, 1, 1, 1, 0, 0)],
        "correct": [True, False, True, True, True, False, False],
        "ground_truth": ["12"] * 3 + ["-2"] * 4,
        "finish_reason": ["stop", "stop", "stop", "stop", "stop", "length", "stop"],
        "step": [40] * 7,
        "env_name": ["pets"] * 7, "episode_id": ["e0", "e1", "e2", "e3", "e3", "e4", "e5"],
    },
    "verifiers_v1": {
        "group_id": ["h0"] * 3 + ["h1"],
        "rollout_id": ["t0", "t1", "t2", "t3"],
        "response": TEXTS[:4],
        "reward": [1.0, 0.0, 1.0, 1.0],
        "finish_reason": ["stop", "error", "stop", "stop"],
        "response_ids": EMPTY, "correct": EMPTY,
    },
    "prime_rl_tokens": {
        "prompt_ids": PROMPT_IDS, "response_ids": IDS, "response_mask": MASKS, "rollout_log_probs": LOG_PROBS,
        "log_probs": DOUBLED, "trainer_advantages": ADVANTAGES_OF_POLICY,
        "old_entropy": [[0.5] * 4, [0.5] * 3, [0.5] * 6, [0.5] * 3, [0.5] * 3, [0.5] * 2],
        "step": [40] * 6, "micro_step": [0, 0, 0, 1, 1, 1],
        "reward": EMPTY, "group_id": EMPTY, "mismatch_kl": EMPTY,
    },
    "prime_rl_parquet": {
        "prompt": [A] * 3 + [B] * 3, "response": TEXTS, "prompt_ids": PROMPT_IDS, "response_ids": IDS,
        "rollout_log_probs": [LOG_PROBS[0], None, *LOG_PROBS[2:]],
        "reward": [1.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        "correct": RIGHT,
        "rewards": [
            [("task_rewards", task), ("length_penalties", penalty)]
            for task, penalty in [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
        ],
        "advantage": [0.5, -1.0, 0.5, 1.0, -0.5, -0.5],
        "problem_id": ["p0", "p0", "p0", "p1", "p1", "p1"],
        "step": [5] * 6,
    },
    "slime": {
        "group_id": ["2/30"] * 3 + ["2/31"] * 3,
        "rollout_id": ["2/90", "2/91", "2/92", "2/93", "2/94", "2/95"],
        "prompt": [A] * 3 + [B] * 3, "response": TEXTS, "prompt_ids": PROMPT_IDS, "response_ids": IDS,
        "response_mask": [None, None, TOOL, None, None, None], "rollout_log_probs": LOG_PROBS,
        "reward": [0.75, -1.25, 0.75, 0.75, -1.25, -1.25],
        "rewards": [
            [("score", score), ("acc", acc)]
            for score, acc in [(0.75, 1), (-1.25, 0), (0.75, 1), (0.75, 1), (-1.25, 0), (-1.25, 0)]
        ],
        "correct": RIGHT, "ground_truth": ["12"] * 3 + ["-2"] * 3, "finish_reason": FINISH, "step": [2] * 6,
        "reward.pred": ["3 x 4 = 12", "it is 7", "so 12", "-2", "I will count down", "2"],
        "reward.score": [0.75, -1.25, 0.75, 0.75, -1.25, -1.25],
        "metadata": EMPTY,
    },
    "slime_train": {
        "rollout_id": ["2/95", "2/94", "2/93", "2/92", "2/91", "2/90"],
        "prompt_ids": backwards(PROMPT_IDS), "response_ids": backwards(IDS), "response_mask": backwards(MASKS),
        "rollout_log_probs": backwards(LOG_PROBS), "old_log_probs": backwards(DOUBLED),
        "trainer_advantages": backwards(ADVANTAGES),
        "reward": [0.0, 0.0, 1.0, 1.0, 0.0, 1.0],
        "normalised_reward": [-0.5, -0.5, 1.0, 0.5, -1.0, 0.5],
        "finish_reason": ["stop", "length", "stop", "stop", "stop", "stop"],
        "step": [2] * 6, "group_id": EMPTY, "correct": EMPTY,
    },
    "open_instruct": {
        "prompt_ids": PROMPT_IDS * 2, "response_ids": IDS * 2, "rollout_log_probs": LOG_PROBS * 2,
        "reward": [10.0, 0.0, 10.0, 10.0, 0.0, 0.0] * 2,
        "advantage": [0.5, -1.0, 0.5, 1.0, -0.5, -0.5] * 2,
        "finish_reason": FINISH * 2, "step": [1] * 6 + [2] * 6, "ground_truth": (["12"] * 3 + ["-2"] * 3) * 2,
        "prompt_idx": [0, 0, 1, 1, 2, 2] * 2,
        "group_id": EMPTY, "correct": EMPTY, "response_mask": EMPTY,
    },
    "areal": {
        "group_id": ["0", "0", "1", "1", "1", "0"],
        "prompt": [A, A, B, B, B, A],
        "response": [
            "3 x 4 = 12<|end|>", "it is 7<|end|>", "-2<|end|>", "I will count down", "2<|end|>",
            "calc(3*4)12so 12<|end|>",
        ],
        "reward": [1.0, 0.0, 1.0, 0.0, 0.0, 1.0],
        "step": [3, 3, 3, 3, 3, 4],
        "correct": EMPTY,
    },
}  # fmt: skip
FORMATS = {"verl_v1": "verl", "verl_validation": "verl", "nemo_rl_validation": "nemo_rl"}
FORMATS |= {"verifiers_v1": "prime_rl", "slime_train": "slime"}
COUNTED = {
    "trl": {"duplicate rows dropped": 6},
    "prime_rl": {"traces left out, their agent is not trained": 1},
    "prime_rl_tokens": {"sequences left out, none of their tokens was trained on": 1},
    "open_instruct": {"rollouts with tool text that the dump does not mask": 2},
}


class Read:
    """What was read from a path: the reader's name, the rows, what was said and counted, and the source."""

    def __init__(self, path: Path | str, scratch: Path, format: str = "auto", **options: Any):
        self.said: list[str] = []
        self.warned: list[str] = []
        given = ReaderOptions(notice=self.said.append, warn=self.warned.append, counts={}, **options)
        scratch.mkdir()
        self.source = open_rollouts([str(path)], str(scratch), ReadInputs(format=format, reader=given))
        table = pa.Table.from_batches(list(self.source.batches()), schema=self.source.schema)
        self.name, self.counts, self.table = self.source.reader, given.counts, table

    def __getitem__(self, column: str) -> list[Any]:
        return self.table.column(column).to_pylist()


@pytest.fixture(autouse=True)
def stand_ins_go_with_the_test():
    """Take away the modules that pickled classes stand in, or another test would find them for verl's own."""
    names = ("verl", "verl.protocol", "tensordict", "tensordict._td")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.fixture
def read(tmp_path):
    number = iter(range(1000))

    def opened(path: Path | str, **options: Any) -> Read:
        return Read(path, tmp_path / f"scratch{next(number)}", **options)

    return opened


@pytest.fixture
def write_jsonl(tmp_path):
    def written(rows: list[Any], name: str = "1.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return written


def options_for(name: str) -> dict[str, Any]:
    return {"unsafe_pickle": True} if "dataproto" in name else {}


@pytest.mark.parametrize("name", EXPECTED)
def test_own_dump_gives_its_rows(name, read):
    found = read(DUMPS / name, **options_for(name))
    assert found.name == FORMATS.get(name, name)
    for column, values in EXPECTED[name].items():
        if values is EMPTY:
            assert column not in found.table.column_names
        else:
            assert (column, found[column]) == (column, values)
    assert found.counts == COUNTED.get(name, {})


def test_every_dump_of_the_script_is_expected():
    assert {format.__name__ for format in make_dumps_a.FORMATS} == set(EXPECTED)


def test_dumps_in_the_folder_are_those_that_the_script_writes(tmp_path):
    make_dumps_a.main(tmp_path)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(made) == 24
    for path in made:
        kept = DUMPS / path.relative_to(tmp_path)
        if path.suffix == ".parquet":
            assert repr(pq.read_table(path).to_pylist()) == repr(pq.read_table(kept).to_pylist())
        elif path.suffix == ".pt":
            entries = [zipfile.ZipFile(file).read("2/data.pkl") for file in (path, kept)]
            assert entries[0] == entries[1]
        elif path.suffix != ".dp":  # its inner bytes name torch's version
            assert path.read_bytes() == kept.read_bytes()


# --- the shared samples against their truth -------------------------------------------------------------------------

TOOL_ROLLOUT, CUT_ROLLOUT = 3, 7
# What each format carries. A verdict may follow from the reward; text is the prompt and the response.
CARRIES = {
    "verl/v0_rollout_data/1.jsonl": "text ok truth",
    "verl/v1_rollout_data/1.jsonl": "text group ok truth",
    "verl/v1_validation_data/1.jsonl": "text group ok truth",
    "verl/main_generation/out.parquet": "text group truth",
    "verl/rollout_skip/1/gen_batch.dp": "prompt_ids ids mask log_probs group ok truth",
    "trl/completions": "text ok advantage",
    "nemo_rl/train_data_step1.jsonl": "text prompt_ids ids mask log_probs ok advantages",
    "nemo_rl/val_data_step1.jsonl": "text ok",
    "prime_rl/rollouts": "text prompt_ids ids mask log_probs group ok truth finish advantages",
    "prime_rl/token_exports": "prompt_ids ids mask log_probs advantages",
    "prime_rl/legacy_parquet": "text prompt_ids ids log_probs group ok advantage",
    "slime/rollout_data": "text prompt_ids ids mask log_probs group ok truth finish",
    "slime/train_data": "prompt_ids ids mask log_probs ok finish advantages",
    "open_instruct": "prompt_ids ids log_probs ok finish advantage",
    "areal": "text group ok",
}  # fmt: skip
FIELDS = ("text", "group", "prompt_ids", "ids", "mask", "log_probs", "ok", "truth", "finish", "advantage", "advantages")


def truth_of(found: Read) -> list[dict[str, Any]]:
    """Return the truth in the order of the rows: verl's v0 trainer shuffles, so the text says which one it is."""
    truth = json.loads((SAMPLES / "TRUTH.json").read_text())
    with open(SAMPLES / "open_instruct" / "toyrun_rollouts_000000.jsonl") as lines:  # the truth has no log-probs
        truth = [row | {"log_probs": json.loads(line)["logprobs"]} for row, line in zip(truth, lines, strict=True)]
    if "response" not in found.table.column_names:
        return truth
    by_text = {row["text"]: row for row in truth}
    return [by_text.get(text.removesuffix("<eos>"), row) for text, row in zip(found["response"], truth, strict=True)]


@pytest.mark.skipif(not SAMPLES.exists(), reason="the shared samples are not here")
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("sample", CARRIES)
def test_shared_sample_equals_the_truth(sample, field, read):
    if field not in CARRIES[sample].split():
        pytest.skip("the format does not carry it")
    found = read(SAMPLES / sample, **options_for("dataproto"))
    truth = truth_of(found)
    assert found.table.num_rows == 8
    check_field(field, found, truth)


def check_field(field: str, found: Read, truth: list[dict[str, Any]]) -> None:
    if field == "text":
        areal_cut = found.name == "areal"  # its prompt reaches into the response where a tool was called
        for prompt, response, row in zip(found["prompt"], found["response"], truth, strict=True):
            assert row["prob"] in prompt
            whole = response.removesuffix("<eos>")
            assert whole == row["text"] or (areal_cut and row["text"] == prompt.partition("assistant\n")[2] + whole)
    elif field == "group":
        key = "group_id" if "group_id" in found.table.column_names else "problem_id"
        assert len(set(found[key])) == 2
        assert [value == found[key][0] for value in found[key]] == [row["g"] == truth[0]["g"] for row in truth]
    elif field in ("prompt_ids", "ids"):
        column, key = {"prompt_ids": ("prompt_ids", "pid"), "ids": ("response_ids", "ids")}[field]
        assert found[column] == [row[key] for row in truth]
    elif field == "mask":
        masks = [mask or [True] * len(row["ids"]) for mask, row in zip(found["response_mask"], truth, strict=True)]
        assert masks == [[bool(m) for m in row["mask"]] for row in truth]
    elif field == "log_probs":
        sampled = [[v for v, m in zip(row["log_probs"], row["mask"], strict=True) if m] for row in truth]
        for values, row, wanted in zip(found["rollout_log_probs"], truth, sampled, strict=True):
            if values is not None:  # the older prime-rl file has one row without
                assert len(values) == len(row["ids"])
                policy = [v for v, m in zip(values, row["mask"], strict=True) if m]
                assert policy == pytest.approx(wanted, abs=1e-6)
    elif field == "ok":
        names = found.table.column_names
        verdicts = found["correct"] if "correct" in names else [reward > 0 for reward in found["reward"]]
        assert verdicts == [row["ok"] == 1 for row in truth]
    elif field == "truth":
        assert found["ground_truth"] == [row["ans"] for row in truth]
    elif field == "finish":
        assert found["finish_reason"] == [row["fin"] for row in truth]
    elif field == "advantage":
        assert found["advantage"] == pytest.approx([row["adv"] for row in truth], abs=1e-3)  # TRL adds 1e-4 to the std
    else:
        for values, row in zip(found["trainer_advantages"], truth, strict=True):
            assert len(values) == len(row["ids"])
            assert {round(v, 6) for v, m in zip(values, row["mask"], strict=True) if m} == {round(row["adv"], 6)}


# --- groups ---------------------------------------------------------------------------------------------------------


def scored(path: Path, tmp_path: Path, *options: str) -> pa.Table:
    out = tmp_path / "out.parquet"
    assert ktae("score", path, "-o", out, "--force", "-e", "grpo", *options) == 0
    return pq.read_table(out)


def advantages_of(path: Path, tmp_path: Path, *options: str) -> list[list[float] | None]:
    return scored(path, tmp_path, *options).column("advantages").to_pylist()


def test_nemo_rl_groups_are_one_prompt_in_one_step(tmp_path):
    found = advantages_of(DUMPS / "nemo_rl", tmp_path)
    # rewards 1, 0, 1: mean 2/3, standard deviation sqrt(1/3); 1, 0, 0: mean 1/3
    assert [row[0] for row in found] == pytest.approx([0.57735, -1.1547, 0.57735, 1.1547, -0.57735, -0.57735], abs=1e-4)
    assert found[2] == pytest.approx([0.57735, 0.57735, 0.0, 0.0, 0.57735, 0.57735], abs=1e-4)


def test_open_instruct_groups_by_prompt_and_step_not_by_prompt_idx(tmp_path):
    found = advantages_of(DUMPS / "open_instruct", tmp_path)
    assert [row[0] for row in found] == pytest.approx(
        [0.57735, -1.1547, 0.57735, 1.1547, -0.57735, -0.57735] * 2, abs=1e-4
    )
    assert len(set(pq.read_table(tmp_path / "out.parquet").column("group_id").to_pylist())) == 4


def test_slime_takes_the_mask_and_the_shaped_score(tmp_path):
    found = advantages_of(DUMPS / "slime", tmp_path)
    assert found[2][2:4] == [0.0, 0.0]
    assert [row[0] for row in found] == pytest.approx([0.57735, -1.1547, 0.57735, 1.1547, -0.57735, -0.57735], abs=1e-4)


def test_prime_rl_branches_of_a_trace_count_once(tmp_path):
    found = advantages_of(DUMPS / "prime_rl", tmp_path)
    # t3 has two paths; its group's rewards are 1.25, 0.25, 0.25
    assert [row[0] for row in found[3:]] == pytest.approx([1.1547, 1.1547, -0.57735, -0.57735], abs=1e-4)


def test_verl_without_uid_is_grouped_whatever_the_order_of_its_rows(write_jsonl, tmp_path):
    rows = [json.loads(line) for line in (DUMPS / "verl" / "rollout_data" / "4.jsonl").read_text().splitlines()]
    for order in (rows, rows[::-1]):
        table = scored(write_jsonl(order, "4.jsonl"), tmp_path, "--tokenizer", str(ROOT / "sample_data"))
        found = dict(zip(table["request_id"].to_pylist(), table["advantages"].to_pylist(), strict=True))
        assert [found[name][0] for name in sorted(found)] == pytest.approx(
            # rewards 1, -1, 1: mean 1/3, deviation sqrt(4/3); 1, -1.5, -1: mean -0.5, deviation sqrt(1.75)
            [0.57735, -1.1547, 0.57735, 1.13389, -0.75593, -0.37796],
            abs=1e-4,
        )
        assert len(set(table["group_id"].to_pylist())) == 2
        assert table["retokenized"].to_pylist() == [True] * 6


def test_verl_same_prompt_under_two_uids_is_two_groups(read, write_jsonl):
    rows = [
        {"input": "p", "output": f"{i}", "gts": "1", "score": float(i % 2), "step": step, "uid": f"u{step}_{i}_0"}
        for step in (1, 2)
        for i in range(4)
    ]
    assert read(write_jsonl(rows))["group_id"] == ["u1"] * 4 + ["u2"] * 4


def test_verl_uid_without_session_is_the_group_itself(read, write_jsonl):
    rows = [{"input": "p", "output": "o", "score": 1, "step": 1, "uid": uid} for uid in ("a_b_c", "plain")]
    found = read(write_jsonl(rows))
    assert found["group_id"] == ["a_b_c", "plain"]
    assert "rollout_id" not in found.table.column_names


def test_verl_step_comes_from_the_name_of_the_file_where_the_line_has_none(read, write_jsonl):
    assert read(write_jsonl([{"input": "p", "output": "o", "score": 1}], "17.jsonl"))["step"] == [17]


def test_areal_tasks_of_evaluation_stay_apart(read, write_jsonl, tmp_path):
    row = {"task_id": 0, "sample_idx": 0, "tail_version": 1, "reward": 0.5, "prompt": "p", "completion": "c"}
    for kind in ("rollout", "eval-rollout"):
        write_jsonl([row], f"logs/{kind}/1/0.jsonl")
    assert sorted(read(tmp_path / "logs")["group_id"]) == ["0", "eval/0"]


def test_slime_evaluation_and_missing_group_index(read, tmp_path):
    torch = pytest.importorskip("torch")
    sample = {
        "index": 5,
        "tokens": [1, 2, 3],
        "response_length": 2,
        "response": "r",
        "reward": 1.0,
        "status": "aborted",
    }
    torch.save({"rollout_id": 9, "samples": [sample | {"group_index": 4}, sample]}, tmp_path / "eval_9.pt")
    found = read(tmp_path / "eval_9.pt")
    assert found["group_id"] == ["eval/9/4", None]
    assert found["rollout_id"] == ["eval/9/5"] * 2
    assert found["finish_reason"] == ["abort"] * 2
    assert found["prompt_ids"] == [[1], [1]]


def test_verl_generation_same_base_name_in_two_folders_is_not_one_group(read, tmp_path):
    for folder in ("one", "two"):
        make_dumps_a.verl_generation(tmp_path / "both" / folder)
    groups = read(tmp_path / "both")["group_id"]
    assert len(groups) == 12
    assert set(groups) == {
        "generations.parquet:0", "generations.parquet:1", "two/generations.parquet:0", "two/generations.parquet:1",
    }  # fmt: skip


# --- rewards and verdicts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acc", "correct"),
    [
        (True, True), (False, False), (1, True), (0.0, False), (-1.0, False), (0.5, True), (-2, False),
        ("True", True), ("0.0", False), (None, None), (float("nan"), None), ("none", None),
    ],
)  # fmt: skip
def test_verl_acc_decides_before_the_score(acc, correct, read, write_jsonl):
    row = {"input": "p", "output": "o", "gts": None, "score": 0.25, "step": 1, "acc": acc}
    assert read(write_jsonl([row]))["correct"] == [correct]


def test_verl_acc_that_is_no_verdict_is_an_error_with_its_line(read, write_jsonl):
    rows = [{"input": "p", "output": "o", "score": 1.0, "step": 1, "acc": acc} for acc in (True, "maybe")]
    with pytest.raises(InputError, match=r"1\.jsonl, line 2: acc is 'maybe', expected true, false, 0 or 1"):
        read(write_jsonl(rows))


def test_verl_verdict_of_another_column_by_map(read, write_jsonl):
    row = {"input": "p", "output": "o", "score": 1.0, "step": 1, "acc": True, "strict_acc": False}
    assert read(write_jsonl([row]), correct_column="strict_acc")["correct"] == [False]


def test_verl_nan_score_is_unknown_and_null_in_no_group_mean(write_jsonl, tmp_path):
    rows = [
        {"input": "p", "output": "o", "gts": "", "score": value, "step": 1, "response_ids": [1, 2], "acc": value == 1}
        for value in (1.0, None, 0.0, float("nan"))
    ]
    found = advantages_of(write_jsonl(rows), tmp_path)
    # over 1 and 0 alone: mean 0.5, standard deviation sqrt(0.5)
    assert [None if row is None else round(row[0], 4) for row in found] == [0.7071, None, -0.7071, None]


@pytest.mark.parametrize(
    ("gts", "text"), [("10", "10"), (10, "10"), ([1, 2], "[1,2]"), ({"a": 1.5}, '{"a":1.5}'), (None, None)]
)
def test_verl_ground_truth_of_any_type_is_text(gts, text, read, write_jsonl):
    found = read(write_jsonl([{"input": "p", "output": "o", "gts": gts, "score": 1.0, "step": 1}]))
    assert found["ground_truth"] == [text]


def write_trl(path: Path, step: int, rows: list[tuple[str, str, float | None]], **columns: list[Any]) -> Path:
    path.mkdir(exist_ok=True)
    table: dict[str, Any] = {
        "step": [step] * len(rows),
        "prompt": [row[0] for row in rows],
        "completion": [row[1] for row in rows],
    }
    table |= columns or {"accuracy_reward": pa.array([row[2] for row in rows], pa.float64())}
    table["advantage"] = pa.array([0.0] * len(rows), pa.float64())
    pq.write_table(pa.table(table), path / f"completions_{step:05d}.parquet")
    return path


def test_trl_repeats_of_an_earlier_step_are_dropped_and_keep_the_first(read, tmp_path):
    for step in (1, 2, 3):
        folder = write_trl(tmp_path / "c", step, [("p", "a", 1.0), ("p", "b", None), ("q", "a", 1.0)])
    found = read(folder)
    assert (found["step"], found.counts) == ([1, 1, 1], {"duplicate rows dropped": 6})
    assert found.source.place(2).endswith("completions_00001.parquet, row 2")
    kept = read(folder, keep_duplicates=True)
    assert (kept["step"], kept.counts) == ([1, 1, 1, 2, 2, 2, 3, 3, 3], {})


def test_trl_equal_siblings_of_one_step_stay(read, tmp_path):
    write_trl(tmp_path / "c", 1, [("p", "a", 1.0), ("p", "a", 1.0), ("p", "b", 0.0)])
    folder = write_trl(tmp_path / "c", 2, [("p", "a", 1.0), ("p", "a", 1.0), ("p", "a", 1.0)])
    found = read(folder)
    assert list(zip(found["step"], found["response"], strict=True)) == [(1, "a"), (1, "a"), (1, "b"), (2, "a")]
    assert found.counts == {"duplicate rows dropped": 2}


def test_trl_row_with_another_reward_or_advantage_is_another_rollout(read, tmp_path):
    write_trl(tmp_path / "c", 1, [("p", "a", 1.0)])
    assert read(write_trl(tmp_path / "c", 2, [("p", "a", 0.0)]))["step"] == [1, 2]


@pytest.mark.parametrize("names", [("format_reward",), ("accuracy", "correctness"), ("acc_a", "acc_b")])
def test_trl_verdict_in_doubt_names_map_and_the_candidates(names, read, tmp_path):
    folder = write_trl(tmp_path / "c", 1, [("p", "a", 1.0)], **{name: [1.0] for name in names})
    with pytest.raises(InputError, match="--map correct=COLUMN") as error:
        read(folder)
    assert all(name in str(error.value) for name in names)
    assert read(folder, correct_column=names[-1])["correct"] == [True]


@pytest.mark.parametrize("name", ["accuracy_reward", "acc", "correct", "correctness_reward_func", "Accuracy"])
def test_trl_verdict_by_the_beginning_of_its_name(name, read, tmp_path):
    columns = {name: [1.0, 0.0, float("nan"), 0.5], "inaccuracy": [0.0, 1.0, 1.0, 1.0]}
    found = read(write_trl(tmp_path / "c", 1, [("p", t, None) for t in "abcd"], **columns))
    assert found["correct"] == [True, False, None, True]
    assert found["reward"] == [1.0, 1.0, 1.0, 1.5]


def test_trl_only_columns_of_floats_are_rewards(read, tmp_path):
    columns = {"accuracy_reward": [1.0], "length": [7], "solved": [True], "note": ["x"]}
    found = read(write_trl(tmp_path / "c", 1, [("p", "a", None)], **columns))
    assert (found["reward"], found["rewards"], found["length"]) == ([1.0], [[("accuracy_reward", 1.0)]], [7])
    assert "reward is the sum of accuracy_reward; correct is accuracy_reward > 0" in found.said


def test_slime_reward_of_a_dict_is_named_and_another_can_be_mapped(read, tmp_path):
    found = read(DUMPS / "slime")
    assert any("reward is 'score'; name another with --map reward=reward.NAME" in text for text in found.said)
    shaped, plain = scored(DUMPS / "slime", tmp_path), scored(DUMPS / "slime", tmp_path, "--map", "reward=reward.score")
    assert shaped["advantages"].equals(plain["advantages"])


def test_slime_dict_without_a_score_leaves_the_reward_to_map(read, tmp_path):
    torch = pytest.importorskip("torch")
    samples = [
        {"group_index": 0, "index": i, "tokens": [1, 2 + i], "response_length": 1, "reward": {"a": 1.0 - i, "b": 2.0}}
        for i in range(2)
    ]
    torch.save({"rollout_id": 1, "samples": samples}, tmp_path / "1.pt")
    found = read(tmp_path / "1.pt")
    assert "reward" not in found.table.column_names
    assert found["rewards"] == [[("a", 1.0), ("b", 2.0)], [("a", 0.0), ("b", 2.0)]]
    assert "none is called score or reward; name another with --map reward=reward.NAME" in found.warned[0]
    assert ktae("score", tmp_path / "1.pt", "-o", tmp_path / "o.parquet") == 2
    found = advantages_of(tmp_path / "1.pt", tmp_path, "--map", "reward=reward.a")
    assert [row[0] for row in found] == pytest.approx([0.70711, -0.70711], abs=1e-4)


def test_slime_samples_without_the_verdict_of_others_take_it_from_the_reward(read, tmp_path):
    torch = pytest.importorskip("torch")
    rewards = [{"score": 0.5, "acc": False}, 1.0, -1.0, float("nan")]
    samples = [{"index": i, "tokens": [1, 2], "response_length": 1, "reward": r} for i, r in enumerate(rewards)]
    torch.save({"rollout_id": 1, "samples": samples}, tmp_path / "1.pt")
    assert read(tmp_path / "1.pt")["correct"] == [False, True, False, None]


def test_prime_rl_score_that_is_null_is_unknown(read, write_jsonl):
    rewards = [{"a": {"score": None, "weight": 1.0}}, {"a": {"score": 0.5}, "b": {"score": None}}, {}]
    traces = [{"id": f"t{i}", "nodes": [], "rewards": r} for i, r in enumerate(rewards)]
    found = read(write_jsonl([{"task": {"hash": "h"}, "ok": True, "traces": traces}], "traces.jsonl"))
    assert found["reward"] == [None, 0.5, None]


def test_prime_rl_traces_of_two_environments_leave_a_missing_verdict_unknown(read, write_jsonl):
    rewards = [{"accuracy": {"score": 1.0}}, {"passed": {"score": 1.0}}]
    traces = [{"id": f"t{i}", "nodes": [], "rewards": r} for i, r in enumerate(rewards)]
    found = read(write_jsonl([{"task": {"hash": "h"}, "ok": True, "traces": traces}], "traces.jsonl"))
    assert found["correct"] == [True, None]
    assert found.counts == {"traces without a reward that says right or wrong, their verdict unknown": 1}


# --- tokens ---------------------------------------------------------------------------------------------------------


def nemo_line(**changes: Any) -> dict[str, Any]:
    line = {"rewards": [1.0], "input_lengths": [5], "token_ids": [[1, 2, 3, 4, 5, 0, 0]], "idx": 0}
    return (
        line | {"token_loss_mask": [[0, 0, 1, 1, 1, 0, 0]], "generation_logprobs": [[0, 0, -1, -2, -3, 0, 0]]} | changes
    )


def test_padding_is_cut_by_length_where_no_end_of_text_was_written(read, write_jsonl):
    found = read(write_jsonl([nemo_line()], "train_data_step1.jsonl"))
    assert (found["prompt_ids"], found["response_ids"]) == ([[1, 2]], [[3, 4, 5]])
    assert found["rollout_log_probs"] == [[-1.0, -2.0, -3.0]]


def test_a_padding_id_that_was_sampled_stays(read, write_jsonl):
    found = read(write_jsonl([nemo_line(input_lengths=[6], token_loss_mask=[[0, 0, 1, 1, 1, 1, 0]])], "1.jsonl"))
    assert found["response_ids"] == [[3, 4, 5, 0]]


def test_unequal_lists_name_the_row_and_every_length(read, write_jsonl):
    bad = nemo_line(
        token_ids=[[1, 2, 3, 4, 5, 6]], token_loss_mask=[[0, 0, 1, 1, 1]], generation_logprobs=[[-1.0] * 7], idx=8
    )
    path = write_jsonl([nemo_line(), bad], "train_data_step1.jsonl")
    with pytest.raises(InputError) as error:
        read(path)
    shown = "line 2 (idx 8): token_ids has 6, token_loss_mask has 5, generation_logprobs has 7 values"
    assert shown in str(error.value)
    assert "--on-mismatch drop" in str(error.value)
    found = read(path, on_mismatch="drop")
    assert (len(found["idx"]), found.counts) == (1, {"rows dropped, their lists of unequal length": 1})


def test_open_instruct_log_probs_of_another_length_are_an_error(read, write_jsonl):
    row = {"prompt_tokens": [1], "response_tokens": [2, 3], "finish_reason": "stop", "reward": 0.0, "sample_idx": 6}
    with pytest.raises(InputError, match=r"line 1 \(sample_idx 6\): response_tokens has 2, logprobs has 3 values"):
        read(write_jsonl([row | {"logprobs": [-1.0, -1.0, -1.0]}]))


def test_slime_mask_of_another_length_is_an_error_that_names_the_sample(read, tmp_path):
    torch = pytest.importorskip("torch")
    sample = {"index": 5, "tokens": [1, 2, 3], "response_length": 2, "loss_mask": [1], "reward": 1.0}
    torch.save({"rollout_id": 9, "samples": [sample]}, tmp_path / "9.pt")
    with pytest.raises(InputError, match=r"sample 5\): response_length has 2, loss_mask has 1 values"):
        read(tmp_path / "9.pt")


def test_slime_response_longer_than_its_tokens_is_an_error(read, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"rollout_id": 9, "samples": [{"tokens": [1], "response_length": 2}]}, tmp_path / "9.pt")
    with pytest.raises(InputError, match="response_length is 2, the sample has 1 tokens"):
        read(tmp_path / "9.pt")


def test_slime_empty_response_has_no_ids(read, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"rollout_id": 9, "samples": [{"tokens": [1, 2], "response_length": 0}]}, tmp_path / "9.pt")
    found = read(tmp_path / "9.pt")
    assert (found["prompt_ids"], found["response_ids"]) == ([[1, 2]], [[]])


def trace_line(nodes: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    trace = {"id": "t", "nodes": nodes, "rewards": {"solved": {"score": 1.0, "weight": 2.0}}} | changes
    return {"task": {"hash": "h"}, "ok": True, "traces": [trace]}


def test_prime_rl_header_tokens_of_a_sampled_message_belong_to_the_prompt(read, write_jsonl):
    nodes = [
        {"message": {"role": "user", "content": "q"}, "sampled": False, "token_ids": [1, 2], "mask": [False, False]},
        {
            "message": {"role": "assistant", "content": "a"}, "sampled": True, "parent": 0, "token_ids": [3, 4, 5],
            "mask": [False, True, True], "logprobs": [-1.0, -2.0], "advantages": [0.5, 0.25],
        },
    ]  # fmt: skip
    found = read(write_jsonl([trace_line(nodes)], "step_6/traces.jsonl"))
    assert (found["prompt_ids"], found["response_ids"]) == ([[1, 2, 3]], [[4, 5]])
    assert (found["rollout_log_probs"], found["trainer_advantages"]) == ([[-1.0, -2.0]], [[0.5, 0.25]])
    assert (found["reward"], found["step"], found["group_id"]) == ([2.0], [6], ["6/h"])


def test_prime_rl_path_without_some_log_probs_has_none(read, write_jsonl):
    nodes = [
        {"message": {"content": "q"}, "token_ids": [1], "mask": [False]},
        {
            "message": {"content": "a"},
            "sampled": True,
            "parent": 0,
            "token_ids": [2],
            "mask": [True],
            "logprobs": [-1.0],
        },
        {"message": {"content": "b"}, "sampled": True, "parent": 1, "token_ids": [3], "mask": [True], "logprobs": []},
    ]
    found = read(write_jsonl([trace_line(nodes)], "traces.jsonl"))
    assert found["response_ids"] == [[2, 3]]
    assert "rollout_log_probs" not in found.table.column_names


def test_prime_rl_log_probs_of_another_length_name_trace_and_node(read, write_jsonl):
    nodes = [{"message": {"content": "a"}, "sampled": True, "token_ids": [2], "mask": [True], "logprobs": [-1.0, -1.0]}]
    with pytest.raises(InputError, match=r"line 1 \(trace t, node 0\): sampled tokens has 1, logprobs has 2 values"):
        read(write_jsonl([trace_line(nodes)], "traces.jsonl"))


@pytest.mark.parametrize("parent", [0, 1, 5, -1, "0", 0.0, True])
def test_prime_rl_parent_that_is_no_earlier_node_is_an_error(parent, read, write_jsonl):
    nodes = [{"message": {"content": "a"}, "sampled": True, "token_ids": [2], "mask": [True], "parent": parent}]
    with pytest.raises(InputError, match=r"the parent of node 0 is .*, expected an earlier node"):
        read(write_jsonl([trace_line(nodes)], "traces.jsonl"))


def test_prime_rl_failed_trace_without_messages_is_an_empty_rollout(read, write_jsonl):
    line = trace_line([], rewards={}, errors=["boom"], stop_condition="error")
    found = read(write_jsonl([line, trace_line([])], "traces.jsonl"))
    assert (found["response_ids"], found["reward"]) == ([[], []], [None, 2.0])
    assert found["finish_reason"] == ["error", None]


@pytest.mark.parametrize("condition", ["max_turns", "max_output_tokens", "max_total_tokens", "context_length"])
def test_prime_rl_stop_condition_of_a_limit_is_length(condition, read, write_jsonl):
    line = trace_line([], stop_condition=condition, is_completed=True)
    assert read(write_jsonl([line], "traces.jsonl"))["finish_reason"] == ["length"]


def test_prime_rl_tokens_without_the_marker_of_a_finished_step_warns(read, tmp_path):
    line = (DUMPS / "prime_rl_tokens/token_exports/step_40/rank_0.jsonl").read_text()
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1" / "rank_0.jsonl").write_text(line)
    assert "no file STABLE" in read(tmp_path / "step_1").warned[0]
    assert read(DUMPS / "prime_rl_tokens").warned == []


def test_trl_and_verl_keep_special_tokens_and_areal_shows_end_of_text(read):
    assert [text.endswith("<|end|>") for text in read(DUMPS / "areal")["response"]] == [
        True,
        True,
        True,
        False,
        True,
        True,
    ]


def test_dataproto_without_unsafe_pickle_is_refused_in_one_line(read):
    with pytest.raises(KtaeError, match="--unsafe-pickle"):
        read(DUMPS / "verl_dataproto")


def test_dataproto_of_numpy_serialisation_is_read(read, tmp_path):
    kind = make_dumps_a._stand_in("verl.protocol", "DataProto")
    arrays = {"prompts": [[0, 7]], "responses": [[8, 9, 0]], "attention_mask": [[0, 1, 1, 1, 0]]}
    columns = {n: ("torch.int64", (1, len(v[0])), np.array(v, np.int64).tobytes()) for n, v in arrays.items()}
    scores = np.array([[0.0, -1.5, 0.0]], np.float32)
    proto = kind()
    proto.saved = (((1,), None, columns | {"rm_scores": ("float32", (1, 3), scores.tobytes())}), {}, {})
    path = tmp_path / "12" / "gen_batch.dp"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(proto))
    found = read(path, unsafe_pickle=True)
    assert (found["prompt_ids"], found["response_ids"], found["reward"]) == ([[7]], [[8, 9]], [-1.5])
    assert found["step"] == [12]


@pytest.mark.parametrize("change", ["responses", "rm_scores", "attention_mask"])
def test_dataproto_with_tensors_of_odd_shape_is_an_error(change, read, tmp_path):
    kind = make_dumps_a._stand_in("verl.protocol", "DataProto")
    arrays = {"prompts": [[0, 7]], "responses": [[8, 9, 0]], "attention_mask": [[0, 1, 1, 1, 0]]}
    arrays["rm_scores"] = [[0, 0, 1]]
    arrays[change] = [arrays[change][0] + [1]]
    columns = {n: ("int64", (1, len(v[0])), np.array(v, np.int64).tobytes()) for n, v in arrays.items()}
    proto = kind()
    proto.saved = (((1,), None, columns), {}, {})
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(pickle.dumps(proto))
    with pytest.raises(InputError, match="has shape"):
        read(path, unsafe_pickle=True)


# --- what is missing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "verl_generation",
            ["--tokenizer", str(ROOT / "sample_data")],
            ["no reward and no verdict", "--map reward=COLUMN"],
        ),
        ("verl_generation", [], ["no column of response token ids", "--tokenizer"]),
        ("prime_rl_tokens", [], ["no reward and no verdict", "--map reward=COLUMN"]),
        ("verl", [], ["no column of response token ids", "--tokenizer"]),
        ("trl", [], ["no column of response token ids", "--tokenizer"]),
        ("verifiers_v1", [], ["no column of response token ids", "--tokenizer"]),
        ("areal", [], ["no column of response token ids", "--tokenizer"]),
        ("verl_dataproto", [], ["--unsafe-pickle"]),
    ],
)
def test_score_names_what_is_missing_and_what_supplies_it(name, options, words, tmp_path, capsys):
    assert ktae("score", DUMPS / name, "-o", tmp_path / "o.parquet", *options) == 2
    assert not (tmp_path / "o.parquet").exists()
    said = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in said
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("name", "supplier"), [("verl_generation", "`ktae verify`"), ("prime_rl_tokens", "rollouts/step_<N> traces")]
)
def test_dump_without_rewards_says_what_supplies_them(name, supplier, read):
    assert any("no reward" in text and supplier in text for text in read(DUMPS / name).said)


@pytest.mark.parametrize("name", ["trl", "prime_rl_parquet", "verl_generation"])
def test_forced_format_names_the_columns_that_a_file_lacks(name, read, tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=f"not of the layout {name}"):
        read(tmp_path / "x.parquet", format=name)


# --- hostile files --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
JSON_KEY = st.text(max_size=3) | st.integers(0, 9)
KEYS = {
    "verl": ("input", "output", "gts", "score", "step", "acc", "uid", "reward"),
    "nemo_rl": (
        "content", "rewards", "filtered_rewards", "input_lengths", "token_ids", "token_loss_mask", "advantages", "idx",
    ),
    "prime_rl": ("id", "env", "task", "group", "run", "ok", "traces"),
    "prime_rl_tokens": ("token_ids", "position_ids", "loss_mask", "step", "inference_logprobs", "entropy"),
    "open_instruct": (
        "prompt_tokens", "response_tokens", "logprobs", "reward", "finish_reason", "ground_truth", "step",
    ),
    "areal": ("task_id", "sample_idx", "tail_version", "reward", "prompt", "completion"),
}  # fmt: skip
TRACE = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON, "agent": JSON, "rewards": JSON, "calls": JSON, "stop_condition": JSON, "errors": JSON,
        "nodes": st.lists(
            st.fixed_dictionaries(
                {},
                optional=dict.fromkeys(("message", "sampled", "token_ids", "mask", "logprobs", "parent"), JSON),
            ),
            max_size=3,
        ),
    },
)  # fmt: skip


@st.composite
def lines_of(draw, name: str) -> list[dict[str, Any]]:
    values = dict.fromkeys(KEYS[name], JSON)
    if name == "prime_rl":
        values |= {"traces": st.lists(TRACE, max_size=2), "task": st.just({"hash": "h"})}
    if name == "nemo_rl" and draw(st.booleans()):
        ids = st.lists(st.integers(0, 9), min_size=4, max_size=4)
        values |= {"token_ids": st.just([draw(ids)]), "token_loss_mask": st.just([draw(ids)]), "advantages": st.none()}
    return draw(st.lists(st.fixed_dictionaries({}, optional=values), min_size=1, max_size=3))


@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_json_under_the_keys_of_a_format_is_read_or_refused(name, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    lines = data.draw(lines_of(name))
    path = folder / "1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    try:
        found = Read(path, folder / "scratch", format=name)
    except KtaeError as error:
        assert str(folder) in str(error)
    else:
        assert found.table.num_rows >= 1


SAMPLE = st.fixed_dictionaries(
    {"tokens": JSON | st.lists(st.integers(0, 9)), "response_length": JSON | st.integers(0, 3)},
    optional=dict.fromkeys(
        ("reward", "loss_mask", "group_index", "index", "prompt", "response", "status", "label", "metadata", 7), JSON
    )
    | {"rollout_log_probs": st.none() | st.lists(st.floats(), max_size=3), "reward": st.dictionaries(JSON_KEY, JSON)},
)


@settings(max_examples=25, deadline=None)
@given(payload=st.fixed_dictionaries({"rollout_id": JSON, "samples": st.lists(SAMPLE, max_size=3), "raw_reward": JSON}))
def test_any_samples_in_a_slime_file_are_read_or_refused(payload, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with zipfile.ZipFile(folder / "1.pt", "w") as archive:
        archive.writestr("1/data.pkl", pickle.dumps(payload, protocol=2))
    try:
        found = Read(folder / "1.pt", folder / "scratch", format="slime")
    except KtaeError as error:
        assert str(folder) in str(error)
    else:
        assert found.table.num_rows == len(payload["samples"])


@pytest.mark.parametrize("name", EXPECTED)
def test_dump_that_is_cut_anywhere_is_read_or_refused(name, tmp_path):
    file = next(
        path for path in sorted((DUMPS / name).rglob("*")) if path.suffix in (".jsonl", ".parquet", ".pt", ".dp")
    )
    whole = file.read_bytes()
    for k, size in enumerate(range(0, len(whole), max(1, len(whole) // 23))):
        path = tmp_path / f"cut{k}" / file.name
        path.parent.mkdir()
        path.write_bytes(whole[:size])
        try:
            Read(path, path.parent / "scratch", **options_for(name))
        except KtaeError as error:
            assert str(path) in str(error)
