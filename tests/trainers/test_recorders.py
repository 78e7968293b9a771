"""Recorders inside the real trainers: what is read back is what the trainer held; runs where verl and TRL are."""

import json
import logging
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import PrerequisiteError
from ktae_cli.integrations import _recording
from tests.helpers import ROOT
from tests.rollout_files import ktae, tokens_of

EOS = 2


def python_of_the_page(start, name="recording"):
    """Return the example of a page of docs/ that begins with these words."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if block.startswith(start))
    return found


def table_of(*files):
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def scored(directory, tmp_path):
    assert ktae("score", directory, "-o", tmp_path / "out.parquet", "--force") == 0
    return pq.read_table(tmp_path / "out.parquet")


# --- verl: a DataProto as the trainer of verl 0.9 holds it ------------------------------------------------------------

PROMPTS = [[0, 0, 11, 12], [0, 0, 11, 12], [13, 14, 15, 16], [13, 14, 15, 16]]
PROMPT_LENGTHS = [2, 2, 4, 4]
# Padding is the end-of-text id: only the attention mask tells the two apart.
RESPONSES = [[5, 6, 7, 8, EOS], [5, EOS, EOS, EOS, EOS], [5, 6, EOS, EOS, EOS], [9, 8, 7, 6, 5]]
LENGTHS = [5, 2, 4, 5]
TOOL = [[1, 1, 0, 0, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 0, 0, 1, 1]]
SCORES = [1.0, 0.0, 0.5, -1.0]


@pytest.fixture
def data_proto():
    """Four rollouts of two prompts: prompts padded left, responses right, tool tokens masked, one truncated."""
    torch = pytest.importorskip("torch")
    protocol = pytest.importorskip("verl.protocol", reason="needs verl")
    inside = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    left = torch.arange(4) >= 4 - torch.tensor(PROMPT_LENGTHS)[:, None]
    scores = torch.zeros(4, 5)
    scores[torch.arange(4), torch.tensor(LENGTHS) - 1] = torch.tensor(SCORES)
    random = torch.Generator().manual_seed(0)
    floats = {
        name: -torch.rand(4, 5, generator=random) * inside
        for name in ("old_log_probs", "rollout_log_probs", "ref_log_prob", "entropys", "advantages")
    }
    floats["old_log_probs"] = floats["old_log_probs"].to(torch.bfloat16)
    objects = {
        "uid": ["u-1", "u-1", "u-2", "u-2"],
        "reward_model": [{"ground_truth": "42", "style": "rule"}] * 2 + [{"ground_truth": [1, 2]}] * 2,
        "acc": [True, False, True, False],
        "format": [0.25, 0.5, 0.75, 1.0],
        "answer": ["42", None, "x", "y"],
    }
    return protocol.DataProto.from_dict(
        tensors={
            "prompts": torch.tensor(PROMPTS),
            "responses": torch.tensor(RESPONSES),
            "attention_mask": torch.cat([left, inside], dim=1).long(),
            "response_mask": torch.tensor(TOOL),
            "token_level_scores": scores,
        }
        | floats,
        non_tensors={name: np.array(values, dtype=object) for name, values in objects.items()},
        meta_info={"reward_extra_keys": ["acc", "format", "answer"]},
    )


def test_verl_rollouts_are_read_back_as_they_were(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    rows = table_of(record(data_proto, tmp_path, 7, eos_ids=EOS))
    assert rows["group_id"] == ["u-1", "u-1", "u-2", "u-2"]
    assert rows["rollout_id"] == ["u-1_0", "u-1_1", "u-2_0", "u-2_1"]
    assert rows["prompt_ids"] == [[11, 12], [11, 12], [13, 14, 15, 16], [13, 14, 15, 16]]
    assert rows["response_ids"] == [[5, 6, 7, 8, 2], [5, 2], [5, 6, 2, 2], [9, 8, 7, 6, 5]]
    assert rows["response_mask"] == [
        [True, True, False, False, True], [True, True], [True] * 4, [True, False, False, True, True],
    ]  # fmt: skip
    assert rows["reward"] == SCORES
    assert rows["correct"] == [True, False, True, False]
    assert [dict(one) for one in rows["rewards"]] == [
        {"acc": float(i % 2 == 0), "format": (i + 1) / 4} for i in range(4)
    ]
    assert rows["ground_truth"] == ["42", "42", "[1,2]", "[1,2]"]
    assert rows["verl_answer"] == ["42", None, "x", "y"]
    assert rows["finish_reason"] == ["stop", "stop", "stop", "length"]
    assert rows["step"] == [7] * 4
    names = {
        "old_log_probs": "old_log_probs",
        "rollout_log_probs": "rollout_log_probs",
        "ref_log_prob": "ref_log_probs",
        "entropys": "old_entropy",
        "advantages": "trainer_advantages",
    }
    for name, column in names.items():
        expected = [row[:n] for row, n in zip(data_proto.batch[name].float().tolist(), LENGTHS, strict=True)]
        assert rows[column] == expected, name
    assert "token_rewards" not in rows


def test_verl_rollouts_are_scored_from_the_directory(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    for step in (1, 2):
        data_proto.non_tensor_batch["uid"] = np.array([f"{step}-{i // 2}" for i in range(4)], dtype=object)
        record(data_proto, tmp_path / "run", step)
    table = scored(tmp_path / "run", tmp_path)
    assert table["group_id"].to_pylist() == ["1-0", "1-0", "1-1", "1-1", "2-0", "2-0", "2-1", "2-1"]
    advantages = table["advantages"].to_pylist()
    assert [len(row) for row in advantages] == LENGTHS * 2
    assert advantages[0][2:4] == [0.0, 0.0]  # tool tokens
    assert advantages[0][0] > 0 > advantages[1][0]
    assert set(tokens_of(tmp_path)["group_id"].to_pylist()) == {"1-0", "1-1", "2-0", "2-1"}


def test_verl_process_rewards_are_kept_by_token(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    data_proto.batch["token_level_scores"][0, 0] = 0.5
    rows = table_of(record(data_proto, tmp_path, 1))
    assert rows["reward"] == [1.5, 0.0, 0.5, -1.0]
    assert rows["token_rewards"][0] == [0.5, 0.0, 0.0, 0.0, 1.0]


def test_verl_batch_without_verdict_uid_or_log_probs_leaves_their_columns_out(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    for name in ("old_log_probs", "ref_log_prob", "entropys", "advantages"):
        data_proto.batch.pop(name)
    data_proto.non_tensor_batch.clear()
    rows = table_of(record(data_proto, tmp_path, 3))
    assert set(rows) == {
        "rollout_id", "prompt_ids", "response_ids", "response_mask", "reward", "rollout_log_probs", "step",
    }  # fmt: skip
    assert len(set(rows["rollout_id"])) == 4


def test_verl_log_probs_that_repeat_those_of_the_engine_are_left_out(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    data_proto.batch["old_log_probs"] = data_proto.batch["rollout_log_probs"].clone()
    assert "old_log_probs" not in table_of(record(data_proto, tmp_path, 1))


@pytest.mark.parametrize(
    ("acc", "verdict"), [(1.0, True), (-1.0, False), (0.3, True), (float("nan"), None), ("?", None)]
)
def test_verl_verdict_of_a_number_is_right_above_zero(data_proto, tmp_path, acc, verdict):
    from ktae_cli.integrations.verl import record

    data_proto.non_tensor_batch["acc"] = np.array([acc] * 4, dtype=object)
    assert table_of(record(data_proto, tmp_path, 1))["correct"] == [verdict] * 4


def test_verl_tokenizer_adds_text_and_the_end(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    rows = table_of(record(data_proto, tmp_path, 1, tokenizer()))
    assert rows["prompt"][0] == "w11 w12"
    assert rows["response"][:2] == ["w5 w6 w7 w8", "w5"]
    assert rows["finish_reason"] == ["stop", "stop", "stop", "length"]


def without_workers(trainer_class):
    """Return a trainer that can log a step and no more: no model, no GPU, no dataset."""
    trainer = trainer_class.__new__(trainer_class)
    trainer.tokenizer, trainer.global_steps = tokenizer(), 5
    trainer._init_dump_executor()
    return trainer


def test_verl_v0_trainer_that_calls_the_recorder_writes_its_step(data_proto, tmp_path, monkeypatch):
    ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="needs what verl's trainer imports")
    trainer_class = ray_trainer.RayPPOTrainer
    monkeypatch.setattr(trainer_class, "_log_rollout_data", trainer_class._log_rollout_data)
    v1 = "from verl.trainer.ppo.v1 import PPOTrainer"
    example = python_of_the_page("from ktae_cli.integrations.verl")
    assert v1 in example
    exec(example.replace(v1, "from verl.trainer.ppo.ray_trainer import RayPPOTrainer as PPOTrainer"), {})

    trainer = without_workers(trainer_class)
    extra = {"acc": data_proto.non_tensor_batch["acc"]}
    trainer._log_rollout_data(data_proto, extra, {}, str(tmp_path / "log"))
    trainer._shutdown_dump_executor()
    own = [json.loads(line) for line in (tmp_path / "log" / "5.jsonl").read_text().splitlines()]
    rows = table_of(*(tmp_path / "log_ktae").iterdir())
    assert rows["step"] == [5] * 4
    assert rows["response"] == [line["output"] for line in own]
    assert rows["reward"] == [line["score"] for line in own]


def test_verl_v1_trainer_that_calls_the_recorder_writes_its_step(transfer_queue, tmp_path, monkeypatch):
    v1 = pytest.importorskip("verl.trainer.ppo.v1", reason="needs what verl's trainer imports")
    import torch
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    monkeypatch.setattr(v1.PPOTrainer, "_log_rollout_data", v1.PPOTrainer._log_rollout_data)
    exec(python_of_the_page("from ktae_cli.integrations.verl"), {})

    fields, tags = [], []
    for i, length in enumerate(LENGTHS[:3]):
        mask, logs = torch.tensor(TOOL[i][:length]), -torch.rand(4, length)
        prompt, response = torch.tensor(PROMPTS[i][-PROMPT_LENGTHS[i] :]), torch.tensor(RESPONSES[i][:length])
        fields.append({
            "prompts": prompt, "responses": response, "input_ids": torch.cat([prompt, response]),
            "position_ids": torch.arange(len(prompt) + length), "multi_modal_inputs": {}, "num_turns": 2,
            "loss_mask": mask, "response_mask": mask * 0 if i == 0 else mask,  # rejected by rollout correction
            "rollout_log_probs": logs[0], "old_log_probs": logs[1], "ref_log_prob": logs[2], "entropy": -logs[3],
            "rm_scores": torch.tensor([0.0] * (length - 1) + [SCORES[i]]), "advantages": mask * SCORES[i],
            "uid": f"u{i // 2}", "reward_model": {"ground_truth": "42"},
            "extra_fields": {"reward_extra_info": {"acc": i == 0}},
        })  # fmt: skip
        tags.append({"prompt_len": len(prompt), "response_len": length, "seq_len": len(prompt) + length})
    keys = ["u0_0_0", "u0_0_1", "u1_0_0"]  # two outputs of one session, then another prompt
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)
    batch = transfer_queue.KVBatchMeta(partition_id="train", keys=keys, tags=tags)
    batch = upsample_batch_to_divisible_size(batch, 4, EOS)
    assert len(batch) == 4

    trainer = without_workers(v1.PPOTrainerSync)
    trainer._log_rollout_data(batch, {}, str(tmp_path / "log"))
    trainer._shutdown_dump_executor()
    own = [json.loads(line) for line in (tmp_path / "log" / "5.jsonl").read_text().splitlines()]
    own = {line["uid"]: line for line in own if line["uid"] in keys}
    rows = table_of(*(tmp_path / "log_ktae").iterdir())
    assert rows["group_id"] == ["u0", "u0", "u1"]
    assert rows["rollout_id"] == ["u0_0", "u0_0", "u1_0"]
    assert rows["response"] == [own[key]["output"] for key in keys]
    assert rows["reward"] == [own[key]["score"] for key in keys]
    assert rows["correct"] == [True, False, False]
    assert rows["response_mask"] == [[bool(m) for m in row[:n]] for row, n in zip(TOOL[:3], LENGTHS[:3], strict=True)]
    names = {"rollout_log_probs": "rollout_log_probs", "old_log_probs": "old_log_probs",
             "ref_log_prob": "ref_log_probs", "entropy": "old_entropy", "responses": "response_ids"}  # fmt: skip
    for name, column in names.items():
        assert rows[column] == [field[name].tolist() for field in fields], name


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_step_that_is_run_again_gets_the_next_part(data_proto, tmp_path):
    from ktae_cli.integrations.verl import record

    record(data_proto, tmp_path, 3)
    record(data_proto, tmp_path, 3)
    record(data_proto, tmp_path, 3, rank=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step_000003_rank_0000_part_00.parquet",
        "step_000003_rank_0000_part_01.parquet",
        "step_000003_rank_0001_part_00.parquet",
    ]


def test_the_process_number_comes_from_the_environment(data_proto, tmp_path, monkeypatch):
    from ktae_cli.integrations.verl import record

    monkeypatch.setenv("RANK", "12")
    assert record(data_proto, tmp_path, 1).name == "step_000001_rank_0012_part_00.parquet"


def test_a_failure_is_one_warning_and_training_goes_on(data_proto, tmp_path, caplog):
    from ktae_cli.integrations.verl import record

    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert record(data_proto, tmp_path / "file", 1) is None
        assert record(data_proto, tmp_path / "file", 2) is None
    assert len(caplog.records) == 1
    assert "these rollouts are not recorded" in caplog.text


def test_a_failure_while_writing_leaves_no_file(data_proto, tmp_path, monkeypatch):
    from ktae_cli.integrations.verl import record

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_recording.ParquetOutput, "close", full)
    assert record(data_proto, tmp_path, 1) is None
    assert list(tmp_path.iterdir()) == []


def test_row_groups_of_a_large_step_are_bounded(tmp_path):
    rows = [{"response_ids": np.arange(1 << 20, dtype=np.int64) + i, "step": 1} for i in range(4)]
    file = pq.ParquetFile(_recording.write_rollouts(rows, tmp_path / "x.parquet"))
    assert file.metadata.num_row_groups == 2  # 4 MB a row, at most 16 MB together
    assert file.schema_arrow.field("response_ids").type.value_type == "int32"


# --- TRL: one step of the real trainer on a model of two layers -------------------------------------------------------


def tokenizer():
    """Build a tokenizer of 32 words `w0` … `w31`, the third of which ends a text and pads."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    words = {f"w{i}": i for i in range(32)} | {"</s>": EOS}
    words.pop("w2")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="</s>")


def accuracy_reward(completions, **kwargs):
    return [float(len(text.split()) % 2) for text in completions]


def brevity(completions, **kwargs):
    return [None if i == 0 else 1 / (1 + len(text)) for i, text in enumerate(completions)]


def save_tiny_model(directory):
    """Save a random model of two layers where the trainer, and its reference policy, load it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, eos_token_id=EOS, pad_token_id=EOS, bos_token_id=None,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(directory)


def quiet(tmp_path):
    """Return the options of a trainer that runs on the CPU and reports to nobody."""
    return {
        "output_dir": str(tmp_path / "out"), "max_completion_length": 6, "use_cpu": True, "bf16": False,
        "report_to": [], "save_strategy": "no", "disable_tqdm": True, "seed": 0,
    }  # fmt: skip


def train(tmp_path, name="GRPO", reward_funcs=(accuracy_reward, brevity), steps=1, recording=None, **config):
    """Take real training steps and return (trainer, what it handed to the optimizer in the order of generation)."""
    trl = pytest.importorskip("trl", reason="needs TRL")
    datasets = pytest.importorskip("datasets")
    from ktae_cli.integrations.trl import record

    saved = tmp_path / f"model{os.environ.get('RANK', 0)}"
    save_tiny_model(saved)
    base, outputs = getattr(trl, f"{name}Trainer"), []

    class Watched(base):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            outputs.append({key: value.clone() for key, value in output.items() if hasattr(value, "clone")})
            return output

    defaults = {"num_generations": 4, "per_device_train_batch_size": 8, "beta": 0.1,
                "reward_weights": [1.0, 0.5], "num_iterations": 2}  # fmt: skip
    arguments = getattr(trl, f"{name}Config")(**quiet(tmp_path), max_steps=steps, **(defaults | config))
    dataset = datasets.Dataset.from_dict(
        {"prompt": ["w11 w12", "w13 w14 w15", "w16", "w17 w18"], "solution": ["a", "b", "c", "d"]}
    )
    trainer = record(Watched, tmp_path / "run", **(recording or {}))(
        model=str(saved), reward_funcs=list(reward_funcs), args=arguments, train_dataset=dataset,
        processing_class=tokenizer(),
    )  # fmt: skip
    trainer.train()
    return trainer, outputs


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
def test_trl_step_is_read_back_as_it_was(tmp_path, name):
    trainer, (output, *_) = train(tmp_path, name)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step_000001_rank_0000_part_00.parquet"]
    rows = table_of(tmp_path / "run" / "step_000001_rank_0000_part_00.parquet")
    lengths = output["completion_mask"].sum(1).tolist()
    cut = lambda matrix: [row[:n] for row, n in zip(matrix.tolist(), lengths, strict=True)]  # noqa: E731
    assert rows["response_ids"] == cut(output["completion_ids"])
    assert rows["prompt_ids"] == [
        [token for token, inside in zip(ids, mask, strict=True) if inside]
        for ids, mask in zip(output["prompt_ids"].tolist(), output["prompt_mask"].tolist(), strict=True)
    ]
    kept = {"old_log_probs": "old_per_token_logps", "ref_log_probs": "ref_per_token_logps"}
    for column, tensor in kept.items():
        assert (tensor in output) == (column in rows) == (name == "GRPO")  # RLOO sums its log-probs
        assert column not in rows or rows[column] == cut(output[tensor])
    ended = [ids[-1] == EOS for ids in rows["response_ids"]]
    assert rows["finish_reason"] == ["stop" if end else "length" for end in ended]
    assert {True, False} == set(ended)
    assert rows["trainer_advantage"] == output["advantages"].tolist()
    assert rows["response"] == trainer.processing_class.batch_decode(rows["response_ids"], skip_special_tokens=True)
    assert [" ".join(f"w{i}" for i in ids) for ids in rows["prompt_ids"]] == rows["prompt"]


def test_trl_rewards_verdicts_and_groups_are_those_of_the_trainer(tmp_path):
    train(tmp_path)
    rows = table_of(*(tmp_path / "run").iterdir())
    parts = [dict(one) for one in rows["rewards"]]
    exact = accuracy_reward(rows["response"])
    short = np.array(brevity(rows["response"]), dtype=np.float32)
    assert [part["accuracy_reward"] for part in parts] == exact
    assert parts[0]["brevity"] is None
    assert [part["brevity"] for part in parts[1:]] == short[1:].tolist()
    assert rows["correct"] == [value > 0 for value in exact]
    assert rows["reward"] == pytest.approx([exact[0], *(exact[1:] + 0.5 * short[1:])])
    answers = {"w11 w12": "a", "w13 w14 w15": "b", "w16": "c", "w17 w18": "d"}
    assert rows["ground_truth"] == [answers[prompt] for prompt in rows["prompt"]]
    groups = rows["group_id"]
    assert groups == [groups[0]] * 4 + [groups[4]] * 4
    assert [group.split(".", 1)[1] for group in (groups[0], groups[4])] == ["1.0.0", "1.0.1"]
    assert rows["rollout_id"] == [f"{group}.{i % 4}" for i, group in enumerate(groups)]


def test_trl_advantages_are_what_score_computes_from_the_record(tmp_path):
    train(tmp_path, reward_funcs=(accuracy_reward,), reward_weights=[1.0])
    assert ktae("score", tmp_path / "run", "-o", tmp_path / "out.parquet", "-e", "grpo") == 0
    table = pq.read_table(tmp_path / "out.parquet")
    ours = [row[0] for row in table["advantages"].to_pylist()]
    # The trainer divides by the standard deviation plus 1e-4, `grpo` by it plus 1e-6.
    assert ours == pytest.approx(table["trainer_advantage"].to_pylist(), rel=1e-3)
    assert max(ours) > 0 > min(ours)


def test_trl_ids_are_kept_where_the_trainer_masks_truncated_completions(tmp_path):
    _, (output, *_) = train(tmp_path, mask_truncated_completions=True)
    rows = table_of(*(tmp_path / "run").iterdir())
    cut_off = [reason == "length" for reason in rows["finish_reason"]]
    assert any(cut_off)
    assert output["completion_mask"].any(1).tolist() == [not cut for cut in cut_off]
    assert all(len(ids) == 6 for ids, cut in zip(rows["response_ids"], cut_off, strict=True) if cut)


def test_trl_generation_that_serves_two_steps_is_written_once(tmp_path):
    _, outputs = train(tmp_path, steps=4)
    assert len(outputs) == 2
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["step_000001_rank_0000_part_00.parquet", "step_000003_rank_0000_part_00.parquet"]
    assert scored(tmp_path / "run", tmp_path).num_rows == 16


def test_trl_generations_of_one_step_are_parts_with_groups_of_their_own(tmp_path):
    config = {"num_iterations": 1, "steps_per_generation": 1, "gradient_accumulation_steps": 2}
    train(tmp_path, **config)
    rows = table_of(*sorted((tmp_path / "run").iterdir()))
    assert rows["step"] == [1] * 16
    assert len(set(rows["group_id"])) == 4
    assert "old_log_probs" not in rows  # the trainer computes none where generation and optimizer are in step
    assert len(rows["ref_log_probs"][0]) == len(rows["response_ids"][0])


def test_trl_verdict_is_left_out_unless_one_function_is_meant(tmp_path):
    train(tmp_path, reward_funcs=(brevity,), reward_weights=[1.0])
    assert "correct" not in table_of(*(tmp_path / "run").iterdir())


def test_trl_verdict_and_ground_truth_are_taken_by_name(tmp_path):
    train(tmp_path, recording={"correct": "brevity", "ground_truth": "prompt"})
    rows = table_of(*(tmp_path / "run").iterdir())
    assert rows["correct"] == [None] + [True] * 7
    assert rows["ground_truth"] == rows["prompt"]


def test_trl_failure_to_write_does_not_stop_training(tmp_path, caplog):
    (tmp_path / "run").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        trainer, _ = train(tmp_path, steps=4)
    assert trainer.state.global_step == 4
    assert caplog.text.count("these rollouts are not recorded") == 1


@pytest.mark.parametrize(
    ("recording", "said"),
    [
        ({"correct": "acuracy"}, "no reward function 'acuracy'; there are accuracy_reward, brevity"),
        ({"ground_truth": "gold"}, "no column 'gold' in the dataset; there are prompt, solution"),
    ],
)
def test_trl_name_that_nothing_has_is_said_while_training_goes_on(tmp_path, caplog, recording, said):
    with caplog.at_level(logging.WARNING):
        trainer, _ = train(tmp_path, recording=recording)
    assert trainer.state.global_step == 1
    assert said in caplog.text
    assert not (tmp_path / "run").exists()


def test_trl_processes_write_a_file_each_and_agree_on_the_groups_that_they_share(tmp_path):
    pytest.importorskip("trl", reason="needs TRL")
    script = tmp_path / "two.py"
    script.write_text(
        "from pathlib import Path\nfrom tests.trainers.test_recorders import train\n"
        f"train(Path({str(tmp_path)!r}), per_device_train_batch_size=6)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "run").iterdir())
    assert [file.name[:21] for file in files] == ["step_000001_rank_0000", "step_000001_rank_0001"]
    rows = table_of(*files)
    groups = rows["group_id"]
    assert groups == [groups[0]] * 4 + [groups[4]] * 4 + [groups[8]] * 4  # the second one lies in both files
    assert len(set(groups)) == 3
    assert rows["rollout_id"] == [f"{group}.{i % 4}" for i, group in enumerate(groups)]
    prompts = rows["prompt"]
    assert prompts == [prompts[0]] * 4 + [prompts[4]] * 4 + [prompts[8]] * 4
    assert [dict(one)["accuracy_reward"] for one in rows["rewards"]] == accuracy_reward(rows["response"])


def test_trl_example_of_the_page_trains_and_records(tmp_path, monkeypatch):
    trl, datasets = pytest.importorskip("trl", reason="needs TRL"), pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    save_tiny_model("model")
    names = {
        "model": "model",
        "tokenizer": tokenizer(),
        "accuracy_reward": accuracy_reward,
        "config": trl.GRPOConfig(**quiet(tmp_path), max_steps=1, num_generations=4, per_device_train_batch_size=4),
        "dataset": datasets.Dataset.from_dict({"prompt": ["w11 w12"] * 4}),
    }
    exec(python_of_the_page("from trl import"), names)
    rows = table_of(*(tmp_path / "rollouts").iterdir())
    assert rows["correct"] == [value > 0 for value in accuracy_reward(rows["response"])]


def test_trl_class_without_the_methods_is_refused():
    from ktae_cli.integrations.trl import record

    with pytest.raises(PrerequisiteError, match="dict has no method _generate_and_score_completions"):
        record(dict, "run")


def test_trl_trainer_that_computes_its_rewards_elsewhere_trains_unrecorded(tmp_path, caplog):
    from types import SimpleNamespace

    from ktae_cli.integrations.trl import record

    class Other:
        model = SimpleNamespace(training=True)

        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            raise NotImplementedError

        def _generate_and_score_completions(self, inputs):
            return {"completion_ids": inputs}

    with caplog.at_level(logging.WARNING):
        assert record(Other, tmp_path / "run")()._generate_and_score_completions([1]) == {"completion_ids": [1]}
    assert "the trainer did not call _calculate_rewards" in caplog.text


def test_recorders_import_no_trainer():
    code = "import sys, ktae_cli.integrations.verl, ktae_cli.integrations.trl; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ktae_cli.integrations.trl" in loaded
    assert not {"torch", "trl", "verl", "transformers", "ray"} & set(loaded)
