"""KTAE inside TRL's GRPOTrainer: real optimiser steps on a model of two layers, and losses written by hand."""

import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import InputError, KtaeError, PrerequisiteError
from tests.helpers import ROOT
from tests.rollout_files import ktae
from tests.trainers.test_recorders import accuracy_reward, brevity, quiet, save_tiny_model, tokenizer

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="needs TRL")
datasets = pytest.importorskip("datasets")

from ktae_cli.integrations.trl import record, saved_rollouts, token_advantages  # noqa: E402

PROMPTS = {"prompt": ["w11 w12", "w13 w14 w15", "w16", "w17 w18"]}


def accuracy_by_turns(completions, **kwargs):
    return [float(i % 2) for i, _ in enumerate(completions)]


def watched(trainer_class, seen):
    """Return a subclass that keeps what it hands to its loss, its loss, and the weights before the first step."""

    class Watched(trainer_class):
        def _compute_loss(self, model, inputs):
            weights = {name: value.detach().clone() for name, value in model.named_parameters()}
            loss = super()._compute_loss(model, inputs)
            kept = {name: value.clone() for name, value in inputs.items() if hasattr(value, "clone")}
            seen.append((kept, float(loss), weights))
            return loss

    return Watched


def trainer_of(trainer_class, tmp_path, dataset, **config):
    saved = tmp_path / f"model{os.environ.get('RANK', 0)}"
    save_tiny_model(saved)
    reward_funcs = config.pop("reward_funcs", None)
    defaults = {"num_generations": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "max_steps": 1,
                "loss_type": "grpo"}  # fmt: skip
    arguments = trl.GRPOConfig(**quiet(tmp_path), **(defaults | config))
    given = {} if reward_funcs is None else {"reward_funcs": list(reward_funcs)}
    return trainer_class(model=str(saved), args=arguments, train_dataset=dataset, processing_class=tokenizer(), **given)


def train(tmp_path, spec="ktae", recording=True, reward_funcs=(accuracy_reward,), seen=None, **options):
    """Take real steps with generation; return (trainer, what it handed to its loss)."""
    seen = [] if seen is None else seen
    correct = {"correct": options.pop("correct")} if "correct" in options else {}
    credited = token_advantages(trl.GRPOTrainer, spec, **correct)
    credited = record(credited, tmp_path / "run") if recording else credited
    trainer = trainer_of(
        watched(credited, seen), tmp_path, datasets.Dataset.from_dict(PROMPTS), reward_funcs=reward_funcs, **options
    )
    trainer.train()
    return trainer, seen


def log_probs(model, inputs):
    """Return the log-probabilities of the completion tokens, (B, T), from a plain forward pass."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=attention).logits.float()
    places = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None])[:, :, 0]
    return places[:, -inputs["completion_ids"].shape[1] :]


def hand_written_loss(model, inputs, advantages):
    """Return the clipped loss, averaged over the tokens of each completion and then over completions."""
    now = log_probs(model, inputs)
    old = inputs.get("old_per_token_logps")
    ratio = torch.exp(now - (now.detach() if old is None else old))
    mask = inputs["completion_mask"] * inputs.get("tool_mask", torch.ones_like(inputs["completion_mask"]))
    terms = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * mask
    return (terms.sum(1) / mask.sum(1).clamp(min=1)).mean()


def model_of(trainer, weights):
    """Return the trainer's model with the weights that it had."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.load_state_dict(weights, strict=False)
    return model.eval()


def rows_of(directory):
    rows = [row for path in sorted(directory.iterdir()) for row in pq.read_table(path).to_pylist()]
    assert rows
    return rows


def unpadded(inputs, *names):
    """Return the named values of each completion without padding."""
    lengths = inputs["completion_mask"].sum(1).tolist()
    cut = ([row[:n] for row, n in zip(inputs[name].tolist(), lengths, strict=True)] for name in names)
    return list(zip(*cut, strict=True))


@pytest.mark.parametrize("spec", ["ktae", "ktae(tf=bounded)", "ktae(loo=true)"])
def test_a_step_trains_with_the_advantages_that_score_computes(tmp_path, spec):
    trainer, ((inputs, _, before), *_) = train(tmp_path, spec)
    advantages = inputs["advantages"]
    assert advantages.shape == inputs["completion_ids"].shape
    assert len({value for row in advantages.tolist() for value in row}) > 4
    assert ktae("score", tmp_path / "run", "-o", tmp_path / "out.parquet", "-e", spec) == 0
    scored = pq.read_table(tmp_path / "out.parquet").to_pylist()
    expected = sorted((row["response_ids"], row["advantages"]) for row in scored)
    found = sorted(unpadded(inputs, "completion_ids", "advantages"))
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    for (_, mine), (_, theirs) in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    assert [row["trainer_advantages"] for row in scored] == [
        pytest.approx(row["advantages"], abs=1e-6) for row in scored
    ]
    after = dict(trainer.model.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before)  # the optimiser stepped


@pytest.mark.parametrize("shift", [0, 1])
def test_the_loss_is_the_hand_written_one_and_not_one_token_later(tmp_path, shift):
    trainer, ((inputs, loss, weights), *_) = train(tmp_path, recording=False)
    advantages = torch.roll(inputs["advantages"], shift, 1)
    found = float(hand_written_loss(model_of(trainer, weights), inputs, advantages).detach())
    assert abs(loss) > 1e-3
    assert (abs(found - loss) < 1e-5) == (shift == 0)


def test_the_gradient_is_that_of_the_hand_written_loss(tmp_path):
    trainer, ((inputs, _, weights), *_) = train(tmp_path, recording=False)
    model = model_of(trainer, weights)
    gradients = []
    for loss in (
        lambda: trainer._compute_loss(model, inputs),
        lambda: hand_written_loss(model, inputs, inputs["advantages"]),
    ):
        model.zero_grad()
        loss().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].norm() > 1e-3
    assert torch.allclose(*gradients, atol=1e-5)


def test_later_iterations_use_the_saved_ratio(tmp_path):
    trainer, seen = train(tmp_path, recording=False, num_iterations=2, max_steps=2)
    (_, first, _), (inputs, loss, weights) = seen
    assert loss != first
    found = float(hand_written_loss(model_of(trainer, weights), inputs, inputs["advantages"]).detach())
    assert abs(found - loss) < 1e-5


def test_masked_truncated_completions_get_nothing_and_keep_their_reward(tmp_path):
    _, ((inputs, _, _), *_) = train(tmp_path, recording=False, mask_truncated_completions=True)
    cut = inputs["completion_mask"].sum(1) == 0
    assert cut.any()
    assert not cut.all()
    assert (inputs["advantages"][cut] == 0).all()
    assert inputs["advantages"][~cut].count_nonzero() > 2


def test_a_completion_without_any_reward_is_in_no_statistic(tmp_path):
    def some(completions, **kwargs):
        return [None if i % 4 == 0 else float(i % 2) for i, _ in enumerate(completions)]

    _, ((inputs, _, _), *_) = train(tmp_path, spec="dr_grpo", recording=False, reward_funcs=(some,))
    # Of the other three of each group rewards are 1, 0, 1: less their mean 1/3, -2/3, 1/3.
    first = sorted(row[0] for row in inputs["advantages"].tolist())
    assert first == pytest.approx([-2 / 3] * 2 + [0.0] * 2 + [1 / 3] * 4)


def test_the_verdict_is_the_reward_function_that_is_asked_for(tmp_path):
    _, ((inputs, _, _), *_) = train(
        tmp_path, recording=False, reward_funcs=(accuracy_reward, brevity), correct="brevity"
    )
    # brevity is above 0 for all that it rates: no group has both verdicts, so each row has one value
    assert all(len(set(row[:n])) == 1 for row, n in zip(
        inputs["advantages"].tolist(), inputs["completion_mask"].sum(1).tolist(), strict=True))  # fmt: skip
    with pytest.raises(InputError, match="no reward function 'acuracy'; there are accuracy_reward"):
        train(tmp_path, recording=False, correct="acuracy")


def test_record_inside_keeps_the_advantage_that_trl_computed(tmp_path):
    both = token_advantages(record(trl.GRPOTrainer, tmp_path / "run"))
    seen, dataset = [], datasets.Dataset.from_dict(PROMPTS)
    trainer_of(watched(both, seen), tmp_path, dataset, reward_funcs=[accuracy_reward]).train()
    rows = rows_of(tmp_path / "run")
    assert len({row["trainer_advantage"] for row in rows}) > 1
    assert sorted(row["response_ids"] for row in rows) == sorted(
        ids for (ids,) in unpadded(seen[0][0], "completion_ids")
    )


def test_processes_that_share_a_group_agree_on_its_key_weights(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(
        "from pathlib import Path\nfrom tests.trainers.test_trl_online import accuracy_by_turns, train\n"
        f"train(Path({str(tmp_path)!r}), per_device_train_batch_size=6, reward_funcs=(accuracy_by_turns,))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ktae("score", tmp_path / "run", "-o", tmp_path / "out.parquet") == 0
    scored = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert len({row["group_id"] for row in scored}) == 3
    for row in scored:
        assert row["trainer_advantages"] == pytest.approx(row["advantages"], abs=1e-6)
    shared = [row["advantages"] for row in scored[4:8]]  # the group that lies in both processes
    assert len({row["group_id"] for row in scored[4:8]}) == 1
    assert len({value for row in shared for value in row}) > 2


@pytest.mark.parametrize("name", ["RLOOTrainer", "SFTTrainer"])
def test_a_trainer_whose_loss_takes_one_advantage_a_completion_is_refused(name):
    with pytest.raises(PrerequisiteError, match=f"the loss of {name} takes no advantage per token"):
        token_advantages(getattr(trl, name))


def test_a_spec_that_needs_what_trl_does_not_hold_is_refused():
    with pytest.raises(KtaeError, match="optimal_token_baseline needs sum_pi_squared, which TRL does not hold"):
        token_advantages(trl.GRPOTrainer, "optimal_token_baseline")


# --- saved rollouts ---------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path):
    """Record a generation with old log-probs, score it, and export it for TRL."""
    train(tmp_path, num_iterations=2)
    assert ktae("score", tmp_path / "run", "-o", tmp_path / "out.scored.parquet") == 0
    assert ktae("export", tmp_path / "out.scored.parquet", "--to", "trl", "-o", tmp_path / "out.trl") == 0
    return datasets.load_from_disk(str(tmp_path / "out.trl"))


def offline(tmp_path, dataset, **config):
    seen = []
    config = {"per_device_train_batch_size": 8, **config}
    trainer = trainer_of(watched(saved_rollouts(trl.GRPOTrainer), seen), tmp_path, dataset, **config)
    trainer.train()
    return trainer, seen


def test_saved_rollouts_train_with_the_exported_advantages_at_the_same_tokens(tmp_path, exported):
    trainer, ((inputs, loss, weights), *_) = offline(tmp_path, exported)
    columns = ("completion_ids", "advantages", "old_per_token_logps")
    found = sorted(unpadded(inputs, *columns))
    assert found == sorted(tuple(row[name] for name in columns) for row in exported)
    assert any(len(set(row)) > 1 for _, row, _ in found)
    expected = float(hand_written_loss(model_of(trainer, weights), inputs, inputs["advantages"]).detach())
    assert abs(loss) > 1e-3
    assert abs(loss - expected) < 1e-5
    later = torch.roll(inputs["advantages"], 1, 1)
    assert abs(loss - float(hand_written_loss(model_of(trainer, weights), inputs, later).detach())) > 1e-4


def test_saved_rollouts_leave_out_masked_tokens_and_take_empty_completions(tmp_path, exported):
    rows = exported.to_list()
    rows[0] |= {"completion_mask": [0] * len(rows[0]["completion_ids"])}
    for name in ("completion_ids", "completion_mask", "advantages", "old_per_token_logps"):
        rows[1][name] = []
    trainer, ((inputs, loss, weights), *_) = offline(tmp_path, datasets.Dataset.from_list(rows))
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    assert mask.sum() == sum(sum(row["completion_mask"]) for row in rows)
    assert (mask.sum(1) == 0).sum() == 2
    expected = float(hand_written_loss(model_of(trainer, weights), inputs, inputs["advantages"]).detach())
    assert abs(loss - expected) < 1e-5


def test_saved_rollouts_without_log_probs_begin_at_a_ratio_of_one(tmp_path, exported):
    trainer, ((inputs, loss, weights), *_) = offline(tmp_path, exported.remove_columns("old_per_token_logps"))
    assert "old_per_token_logps" not in inputs
    expected = float(hand_written_loss(model_of(trainer, weights), inputs, inputs["advantages"]).detach())
    assert abs(loss - expected) < 1e-5


def test_each_saved_rollout_is_seen_once_in_an_epoch(tmp_path, exported):
    twice = datasets.concatenate_datasets([exported, exported.map(lambda row: {"reward": 7.0})])
    _, seen = offline(tmp_path, twice, max_steps=-1, num_train_epochs=1, per_device_train_batch_size=4)
    assert len(seen) == 4
    ids = [tuple(row) for inputs, _, _ in seen for row in inputs["completion_ids"].tolist()]
    assert len(ids) == 16


def test_a_dataset_that_is_no_export_is_refused(tmp_path, exported):
    with pytest.raises(InputError, match="train_dataset has no column prompt_ids; it has prompt"):
        offline(tmp_path, datasets.Dataset.from_dict(PROMPTS))
    with pytest.raises(InputError, match="has no prompt_ids: nothing precedes its first token"):
        offline(tmp_path, exported.map(lambda row: {"prompt_ids": []}))
    with pytest.raises(InputError, match="a dataset with a length"):
        offline(tmp_path, exported.to_iterable_dataset())
    with pytest.raises(PrerequisiteError, match="SFTTrainer is no GRPOTrainer"):
        saved_rollouts(trl.SFTTrainer)
