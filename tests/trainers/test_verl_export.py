"""What `ktae export --to verl` writes, as verl's own DataProto, policy loss and replay see it."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.helpers import ROOT
from tests.rollout_files import ktae, write
from tests.trainers.test_verl_online import Rows, scored

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig

from ktae_cli.integrations.verl import load_dataproto, register, write_replay  # noqa: E402


@pytest.fixture
def exported(tmp_path):
    """Score and export rollouts with holes in masks, unknown verdicts, empty responses: (scored table, DataProto)."""
    rows = Rows(0)
    table = pq.read_table(rows.write(tmp_path / "rows.parquet"))
    lengths = rows.lengths.tolist()
    random = np.random.default_rng(1)
    table = table.append_column("prompt_ids", [[[7] * (1 + i % 3) for i in range(len(lengths))]])
    table = table.append_column("old_log_probs", [[(-random.random(n)).tolist() for n in lengths]])
    write(tmp_path / "rows.parquet", table)
    scored(tmp_path / "rows.parquet", "ktae", tmp_path)
    out = tmp_path / "out.safetensors"
    assert ktae("export", tmp_path / "out.parquet", "--to", "verl(pad=3)", "-o", out) == 0
    return pq.read_table(tmp_path / "out.parquet"), load_dataproto(out)


def test_dataproto_holds_each_value_at_its_token(exported):
    table, data = exported
    tensors, rows = data.batch, table.to_pylist()
    assert data.non_tensor_batch["rollout_id"].tolist() == table["rollout_id"].to_pylist()
    assert data.non_tensor_batch["uid"].tolist() == table["group_id"].to_pylist()
    width = tensors["prompts"].shape[1]
    assert width == 3
    for i, row in enumerate(rows):
        n, p = len(row["response_ids"]), len(row["prompt_ids"])
        assert tensors["responses"][i].tolist() == row["response_ids"] + [3] * (tensors["responses"].shape[1] - n)
        assert tensors["prompts"][i].tolist() == [3] * (width - p) + row["prompt_ids"]
        inside = tensors["attention_mask"][i].bool()
        assert tensors["input_ids"][i][inside].tolist() == row["prompt_ids"] + row["response_ids"]
        assert tensors["position_ids"][i][inside].tolist() == list(range(p + n))
        assert tensors["response_mask"][i, :n].tolist() == row["response_mask"]
        assert tensors["response_mask"][i, n:].sum() == 0
        assert tensors["token_level_scores"][i].sum() == pytest.approx(row["reward"] if n else 0)
        for name in ("advantages", "returns"):
            assert tensors[name][i].tolist() == row["advantages"] + [0.0] * (tensors[name].shape[1] - n)
        kept = [value * mask for value, mask in zip(row["old_log_probs"], row["response_mask"], strict=True)]
        assert tensors["old_log_probs"][i, :n].tolist() == np.float32(kept).tolist()


@pytest.mark.parametrize("shift", [0, 1])
def test_verls_policy_loss_is_the_hand_written_one_and_not_one_token_later(exported, shift):
    _, data = exported
    old, advantages, mask = (data.batch[name] for name in ("old_log_probs", "advantages", "response_mask"))
    new = (old + 0.4 * torch.randn(old.shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_c=1e9)
    vanilla = core_algos.get_policy_loss_fn("vanilla")
    loss, _ = vanilla(old, new, torch.roll(advantages, shift, 1), mask, "token-mean", config)
    ratio = torch.exp(new - old)
    terms = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    expected = -float((terms * mask).detach().sum() / mask.sum())
    assert (abs(float(loss.detach()) - expected) < 1e-6) == (shift == 0)
    loss.backward()
    assert (new.grad[mask == 0] == 0).all()


def test_exported_advantages_are_those_of_the_registered_estimator(exported):
    ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="needs what verl's trainer imports")
    register()
    table, data = exported
    saved = data.batch["advantages"].clone()
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    assert data.non_tensor_batch["acc"].tolist() == table["correct"].to_pylist()
    found = ray_trainer.compute_advantage(data, adv_estimator="ktae").batch["advantages"]
    # An empty response has no token for its reward, which verl then takes as 0: its group differs.
    lost = {row["group_id"] for row in table.to_pylist() if not row["response_ids"]}
    whole = torch.tensor([uid not in lost for uid in data.non_tensor_batch["uid"]])
    assert saved[whole].count_nonzero() > 20
    assert torch.allclose(found[whole], saved[whole], atol=1e-6)


def test_sample_data_is_recovered_from_the_file(tmp_path):
    assert (
        ktae("score", ROOT / "sample_data" / "rollouts.parquet", "-o", tmp_path / "s.parquet", "--no-tokens-out") == 0
    )
    assert ktae("export", tmp_path / "s.parquet", "--to", "verl", "-o", tmp_path / "s.safetensors") == 0
    data = load_dataproto(tmp_path / "s.safetensors")
    table = pq.read_table(tmp_path / "s.parquet", columns=["rollout_id", "response_ids", "advantages"]).to_pylist()
    inside = data.batch["attention_mask"][:, data.batch["prompts"].shape[1] :].bool()
    found = {
        rollout: (data.batch["responses"][i][inside[i]].tolist(), data.batch["advantages"][i][inside[i]].tolist())
        for i, rollout in enumerate(data.non_tensor_batch["rollout_id"])
    }
    assert found == {row["rollout_id"]: (row["response_ids"], row["advantages"]) for row in table}
    assert data.meta_info["spec"] == "ktae"


def test_replayed_rollouts_get_the_advantages_of_the_scored_file_from_the_v1_trainer(transfer_queue, tmp_path):
    v1 = pytest.importorskip("verl.trainer.ppo.v1", reason="needs what verl's trainer imports")
    from omegaconf import OmegaConf
    from verl.utils.skip.rollout_skip import RolloutTqSkip

    register()
    random = np.random.default_rng(0)
    rows = [
        {"group_id": f"prompt_{g}", "rollout_id": f"{g}.{i}", "prompt_ids": [g + 1] * (g + 1),
         "response_ids": random.integers(3, 9, 4 + i).tolist(), "reward": float((i + g) % 2), "correct": i % 2 == 0}
        for g in range(3) for i in range(4)
    ]  # fmt: skip
    write(tmp_path / "rows.parquet", pa.Table.from_pylist(rows))
    expected = scored(tmp_path / "rows.parquet", "ktae", tmp_path)
    out = tmp_path / "out.safetensors"
    assert ktae("export", tmp_path / "out.parquet", "--to", "verl", "-o", out) == 0
    config = OmegaConf.create({
        "trainer": {"experiment_name": "e", "project_name": "p", "v1": {"trainer_mode": "sync"}},
        "data": {"train_batch_size": 3, "max_prompt_length": 3, "max_response_length": 7},
        "algorithm": {"adv_estimator": "ktae", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
        "actor_rollout_ref": {"rollout": {"n": 4}},
    })  # fmt: skip
    local = OmegaConf.create({"enable": True, "dump_dir": str(tmp_path), "steps": [5], "action": "cache"})
    write_replay(out, tmp_path / "e_p" / "GBS3_N4_in3_out7", step=5)
    new = ["x", "y", "z"]
    assert RolloutTqSkip(local, config).maybe_load_and_inject(5, new)

    keys = [f"{uid}_{session}_0" for uid in new for session in range(4)]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["prompts", "responses"])
    assert [row.tolist() for row in data["responses"].unbind()] == [row["response_ids"] for row in rows]
    assert [row.tolist() for row in data["prompts"].unbind()] == [row["prompt_ids"] for row in rows]
    trainer = v1.PPOTrainerSync.__new__(v1.PPOTrainerSync)
    trainer.config = config
    trainer._compute_advantage(transfer_queue.KVBatchMeta(partition_id="train", keys=keys, tags=[{}] * 12), {})
    data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["advantages"])
    for found, wanted in zip(data["advantages"].unbind(), expected, strict=True):
        assert found.tolist() == pytest.approx(wanted, abs=1e-6)
