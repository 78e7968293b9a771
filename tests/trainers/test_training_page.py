"""The Python of docs/training.md runs inside the real trainers."""

import pytest

from tests.rollout_files import ktae
from tests.trainers.test_recorders import accuracy_reward, python_of_the_page, quiet, save_tiny_model, tokenizer
from tests.trainers.test_trl_online import PROMPTS, train, trl


def names_of(tmp_path):
    datasets = pytest.importorskip("datasets")
    save_tiny_model("model")
    return {
        "model": "model",
        "tokenizer": tokenizer(),
        "accuracy_reward": accuracy_reward,
        "config": trl.GRPOConfig(**quiet(tmp_path), max_steps=1, num_generations=4, per_device_train_batch_size=8),
        "dataset": datasets.Dataset.from_dict(PROMPTS),
    }


def test_trl_example_takes_a_step_with_an_advantage_for_each_token(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_of(tmp_path)
    exec(python_of_the_page("from trl import GRPOTrainer", "training"), names)
    (buffered,) = names["trainer"]._buffered_inputs
    assert buffered["advantages"].shape == buffered["completion_ids"].shape
    assert buffered["advantages"].count_nonzero() > 8
    assert names["trainer"].state.global_step == 1


def test_trl_example_of_saved_rollouts_takes_a_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(tmp_path, num_iterations=2)
    assert ktae("score", "run", "-o", "rollouts.scored.parquet") == 0
    assert ktae("export", "rollouts.scored.parquet", "--to", "trl") == 0
    names = names_of(tmp_path)
    exec(python_of_the_page("from datasets import load_from_disk", "training"), names)
    assert names["trainer"].state.global_step == 1


def test_verl_examples_register_and_compute_verls_loss(tmp_path, monkeypatch):
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl")
    config = pytest.importorskip("verl.workers.config").ActorConfig
    exec(python_of_the_page("from ktae_cli.integrations.verl import register", "training"), {})
    assert core_algos.get_adv_estimator_fn("my_ktae").__name__ == "ktae__base_dapo__max_length_4096__tf_bounded"

    from tests.exports.cases import ROWS, write_case

    monkeypatch.chdir(tmp_path)
    write_case(tmp_path / "rollouts.scored.parquet", ROWS)
    assert ktae("export", "rollouts.scored.parquet", "--to", "verl") == 0
    names = {"actor_config": config(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)}
    exec(python_of_the_page("from verl.trainer.ppo.core_algos", "training"), names)
    saved = names["saved"]
    names["log_probs"] = saved["old_log_probs"]
    exec(python_of_the_page("loss, metrics", "training"), names)
    exec(python_of_the_page("from ktae_cli.integrations.verl import write_replay", "training"), {})
    assert (tmp_path / "replay/EXPERIMENT_PROJECT/GBS64_N16_in512_out4096/1/0/tq_batch.pt").is_file()
    on = saved["response_mask"].bool()
    assert float(names["loss"]) == pytest.approx(-float(saved["advantages"][on].mean()), abs=1e-6)
