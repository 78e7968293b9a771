"""The advantages of verl and TRL beside ours, on random batches; runs where these trainers are installed.

Where the conventions are one, the values agree to 1e-6; where they differ, the name of the test says how.
"""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import estimate

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl")
AlgoConfig = pytest.importorskip("verl.trainer.config").AlgoConfig

SEEDS = range(6)
SINGLES_KEPT_BY_VERL = {"grpo", "dr_grpo", "rloo", "opo", "gpg", "optimal_token_baseline"}


class Padded:
    """Rollouts as verl holds them: matrices padded on the right, the reward on the last token, a group index a row."""

    def __init__(self, seed: int, smallest: int = 1, holes: bool = True, constant: bool = True):
        """Draw groups of `smallest` to 6 rollouts of 1 to 9 tokens; holes: masked tokens, the last one unmasked."""
        random = np.random.default_rng(seed)
        sizes = random.integers(smallest, 7, 12)
        self.index = np.repeat(np.arange(len(sizes)), sizes)
        rows = len(self.index)
        self.lengths = random.integers(1, 10, rows)
        place = np.arange(9)
        self.inside = place < self.lengths[:, None]
        holed = self.inside & (random.random((rows, 9)) < 0.75) if holes else self.inside
        self.mask = holed | (place == self.lengths[:, None] - 1)
        self.rewards = random.choice([0.0, 0.25, 0.5, 1.0, 2.0], rows)
        if constant:
            self.rewards[np.isin(self.index, (2, 5))] = 0.5
        self.parts = {"exact": random.choice([0.0, 1.0], rows), "style": random.integers(0, 9, rows) / 8}
        pi = random.uniform(0.05, 0.95, (rows, 9))
        self.old_log_probs = np.log(pi).astype(np.float32)
        self.sum_pi_squared = (pi**2 + (1 - pi) ** 2 * random.random((rows, 9))).astype(np.float32)

    def scores(self, rewards: np.ndarray | None = None) -> torch.Tensor:
        out = np.zeros((len(self.index), 9))
        out[np.arange(len(out)), self.lengths - 1] = self.rewards if rewards is None else rewards
        return torch.from_numpy(out)

    def arguments(self) -> dict:
        return {
            "token_level_rewards": self.scores(),
            "response_mask": torch.from_numpy(self.mask.astype(np.int64)),
            "index": self.index,
        }

    def batch(self) -> GroupBatch:
        inside = self.inside
        return GroupBatch(
            torch.zeros(int(self.lengths.sum()), dtype=torch.int64),
            torch.from_numpy(np.concatenate([[0], np.cumsum(self.lengths)])),
            torch.from_numpy(self.rewards.copy()),
            torch.from_numpy((self.rewards > 0).astype(np.int8)),
            torch.from_numpy(self.index),
            response_mask=torch.from_numpy(self.mask[inside]),
            old_log_probs=torch.from_numpy(self.old_log_probs[inside]),
            sum_pi_squared=torch.from_numpy(self.sum_pi_squared[inside]),
            rewards_by_name={name: torch.from_numpy(part) for name, part in self.parts.items()},
        )

    def ours(self, spec: str) -> np.ndarray:
        return estimate(spec, self.batch()).advantages.numpy()

    def flat(self, matrix: torch.Tensor) -> np.ndarray:
        """Return what verl gives at the tokens of the responses, and check that it gives nothing elsewhere."""
        values = matrix.numpy()
        assert (values[~self.mask] == 0).all()
        return values[self.inside]

    def of(self, chosen: np.ndarray) -> np.ndarray:
        """Return which tokens belong to the chosen rows."""
        return np.repeat(chosen, self.lengths)

    def alone(self) -> np.ndarray:
        return np.bincount(self.index)[self.index] == 1

    def equal(self) -> np.ndarray:
        """Return the rows whose group holds one reward only."""
        group = [set(self.rewards[self.index == g]) for g in range(self.index.max() + 1)]
        return np.array([len(group[g]) == 1 for g in self.index])


def verl(name: str, padded: Padded, config: dict | None = None, **arguments) -> np.ndarray:
    """Run one of verl's registered functions."""
    function = core_algos.get_adv_estimator_fn(name)
    found, _ = function(**padded.arguments(), **arguments, config=AlgoConfig(**(config or {})))
    return padded.flat(found)


def verl_of(spec: str, padded: Padded) -> np.ndarray:
    """Run verl's function for a spec of ours."""
    if spec == "dr_grpo":
        return verl("grpo", padded, norm_adv_by_std_in_grpo=False)
    if spec == "grpo_passk(scale=false)":
        return verl("grpo_passk", padded, {"norm_adv_by_std_in_grpo": False})
    if spec.startswith("reinforce_plus_plus(gamma"):
        return verl("reinforce_plus_plus", padded, {"gamma": float(spec[:-1].partition("=")[2])})
    if spec.startswith("optimal_token_baseline"):
        columns = {name: torch.from_numpy(getattr(padded, name)) for name in ("old_log_probs", "sum_pi_squared")}
        tail = "false" not in spec
        return verl("optimal_token_baseline", padded, handle_zero_tail=tail, **columns)
    return verl(spec, padded)


GROUPED = [
    "grpo", "dr_grpo", "rloo", "opo", "gpg", "grpo_passk", "grpo_passk(scale=false)",
]  # fmt: skip
WHITENED = [
    "reinforce_plus_plus", "reinforce_plus_plus(gamma=0.9)", "reinforce_plus_plus(gamma=0.5)",
    "reinforce_plus_plus_baseline",
]  # fmt: skip
PER_TOKEN = ["optimal_token_baseline", "optimal_token_baseline(zero_tail=false)"]


@pytest.mark.parametrize("spec", GROUPED)
@pytest.mark.parametrize("seed", SEEDS)
def test_groups_of_two_and_more_have_the_advantages_of_verl(spec, seed):
    padded = Padded(seed, smallest=2)
    expected = verl_of(spec, padded)
    assert padded.ours(spec) == pytest.approx(expected, abs=1e-6)
    assert np.count_nonzero(expected) > 10


@pytest.mark.parametrize("spec", WHITENED)
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_with_groups_of_one_are_whitened_as_verl_does(spec, seed):
    padded = Padded(seed)
    assert padded.alone().any() and (padded.equal() & ~padded.alone()).any()
    assert padded.ours(spec) == pytest.approx(verl_of(spec, padded), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [None, (0.5, 2.0)])
def test_gdpo_is_that_of_verl_with_the_parts_in_the_order_of_their_names(seed, weights):
    padded = Padded(seed)
    function, arguments = core_algos.get_adv_estimator_fn("gdpo"), padded.arguments()
    config = {"gdpo_reward_keys": ["exact", "style"], "gdpo_reward_weights": weights and list(weights)}
    inside = torch.from_numpy(padded.inside.astype(np.int64))
    found, _ = function(
        **arguments,
        config=config,
        non_tensor_batch=padded.parts,
        batch={"prompts": torch.zeros((len(padded.index), 1)), "attention_mask": torch.cat([inside[:, :1], inside], 1)},
    )
    spec = "gdpo" if weights is None else f"gdpo(weights={'+'.join(map(str, weights))})"
    # verl's z-scores are float32
    assert padded.ours(spec) == pytest.approx(padded.flat(found), abs=3e-6)


@pytest.mark.parametrize("spec", PER_TOKEN)
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimal_token_baseline_of_groups_with_a_contrast_is_that_of_verl(spec, holes, seed):
    padded = Padded(seed, smallest=2, holes=holes)
    kept = padded.of(~padded.equal())
    assert padded.ours(spec)[kept] == pytest.approx(verl_of(spec, padded)[kept], abs=1e-6)
    assert kept.sum() > 50


# Where the conventions differ


@pytest.mark.parametrize("spec", sorted(SINGLES_KEPT_BY_VERL))
def test_a_group_of_one_keeps_its_raw_reward_in_verl_and_is_zero_here(spec):
    padded = Padded(1)
    alone = padded.of(padded.alone()) & padded.mask[padded.inside]
    alpha = len(padded.rewards) / np.count_nonzero(padded.rewards) if spec == "gpg" else 1
    raw = np.repeat(padded.rewards, padded.lengths)[alone] * alpha
    assert alone.any() and raw.any()
    assert verl_of(spec, padded)[alone] == pytest.approx(raw, rel=2e-6)
    assert (padded.ours(spec)[alone] == 0).all()
    if spec == "grpo":
        assert padded.ours("grpo(singleton=raw)") == pytest.approx(verl_of(spec, padded), abs=1e-6)


def test_pass_at_k_of_a_group_of_one_raises_in_verl_and_is_zero_here():
    padded = Padded(1)
    with pytest.raises(ValueError, match="at least 2 samples"):
        verl("grpo_passk", padded)
    assert (padded.ours("grpo_passk")[padded.of(padded.alone())] == 0).all()


def test_equal_rewards_keep_the_raw_reward_beyond_the_second_longest_rollout_in_verl_and_are_zero_here():
    kept = 0
    for seed in SEEDS:
        padded = Padded(seed, smallest=2)
        dead = padded.of(padded.equal())
        assert (padded.ours("optimal_token_baseline")[dead] == 0).all()
        kept += np.count_nonzero(np.isclose(verl_of("optimal_token_baseline", padded)[dead], 0.5))
    assert kept > 5


def test_a_batch_of_one_token_raises_in_verl_and_is_zero_here():
    padded = Padded(0)
    for name in ("index", "lengths", "inside", "mask", "rewards", "old_log_probs", "sum_pi_squared"):
        setattr(padded, name, getattr(padded, name)[:1])
    padded.parts = {name: part[:1] for name, part in padded.parts.items()}
    padded.mask = padded.inside & (np.arange(9) == padded.lengths[:, None] - 1)
    for spec in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        with pytest.raises(ValueError, match="sum of the mask is one"):
            verl(spec, padded)
        assert (padded.ours(spec) == 0).all()


def test_a_reward_on_a_masked_token_is_lost_in_verl_and_kept_here():
    padded = Padded(3, smallest=2)
    last = np.arange(9) == padded.lengths[:, None] - 1
    padded.mask = padded.inside & ~last
    assert (verl("reinforce_plus_plus", padded) == 0).all()
    assert np.count_nonzero(padded.ours("reinforce_plus_plus")) > 10
    for spec in ("grpo", "reinforce_plus_plus_baseline"):  # which sum the scores without the mask
        assert padded.ours(spec) == pytest.approx(verl(spec, padded), abs=1e-6)


# TRL: the arithmetic stands inside a method of its trainer, so the method runs on a stand-in with given rewards.


def trl_advantages(rewards: np.ndarray, per_group: int, scale: str, aggregation: str = "sum_then_normalize"):
    """Return TRL's advantages of rewards (n_rollouts, n_parts), the groups `per_group` rows each."""
    trainer = pytest.importorskip("trl").GRPOTrainer
    n, n_parts = rewards.shape
    cpu = torch.device("cpu")
    names = [f"part {i}" for i in range(n_parts)]
    stand_in = SimpleNamespace(
        accelerator=SimpleNamespace(device=cpu, process_index=0, gather=lambda values: values),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        args=SimpleNamespace(
            per_device_train_batch_size=n, steps_per_generation=1, gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
        ),
        environment_factories=None, environments=None, tools=None, pad_to_multiple_of=None, use_vllm=False, beta=0.0,
        _tokenizer=SimpleNamespace(pad_token_id=0), mask_truncated_completions=False, num_iterations=1, _is_vlm=False,
        num_generations=per_group, multi_objective_aggregation=aggregation, scale_rewards=scale,
        reward_weights=torch.ones(n_parts), reward_funcs=names, reward_func_names=names, log_multimodal=False,
        _metrics={"train": defaultdict(list)}, _logs=defaultdict(list, rewards=defaultdict(list)),
        _pending_extra_logs={}, _pending_metrics={},
        _generate=lambda prompts: ([[1]] * n, [[2]] * n, None, ["x"] * n, None, {}, None, None),
        _calculate_rewards=lambda *_: torch.from_numpy(rewards).float(),
    )  # fmt: skip
    return trainer._generate_and_score_completions(stand_in, [{"prompt": "p"}] * n)["advantages"].numpy()


def equal_groups(seed: int, per_group: int = 4, n_parts: int = 1) -> tuple[np.ndarray, GroupBatch]:
    """Draw nine groups of one size, responses of one token, and their batch; two groups have equal rewards."""
    random = np.random.default_rng(seed)
    parts = random.choice([0.0, 0.5, 1.0], (9 * per_group, n_parts))
    parts[: 2 * per_group] = 0.5
    rewards = torch.from_numpy(parts.sum(1))
    n = len(rewards)
    by_name = {f"part {i}": torch.from_numpy(parts[:, i].copy()) for i in range(n_parts)}
    index = torch.arange(9).repeat_interleave(per_group)
    ids = torch.zeros(n, dtype=torch.int64)
    return parts, GroupBatch(
        ids, torch.arange(n + 1), rewards, (rewards > 0).to(torch.int8), index, rewards_by_name=by_name
    )


@pytest.mark.parametrize(("scale", "spec"), [("group", "grpo(eps=1e-4)"), ("none", "dr_grpo")])
@pytest.mark.parametrize("seed", SEEDS)
def test_group_advantages_are_those_of_trl(scale, spec, seed):
    parts, batch = equal_groups(seed)
    assert estimate(spec, batch).advantages.numpy() == pytest.approx(trl_advantages(parts, 4, scale), abs=1e-6)


def test_a_group_of_one_is_zero_in_trl_and_here():
    parts, batch = equal_groups(0, per_group=1)
    assert (trl_advantages(parts, 1, "group") == 0).all()
    assert (estimate("grpo(eps=1e-4)", batch).advantages == 0).all()


def test_scaling_by_the_batch_in_trl_is_dr_grpo_over_the_deviation_of_all_rewards():
    parts, batch = equal_groups(1)
    expected = trl_advantages(parts, 4, "batch")
    above = estimate("dr_grpo", batch).advantages.numpy()
    assert above / (np.std(parts, ddof=1) + 1e-4) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_whitens_parts_over_rollouts_with_another_eps_which_is_gdpo_where_all_responses_are_of_one_length(seed):
    parts, batch = equal_groups(seed, n_parts=2)
    expected = trl_advantages(parts, 4, "group", "normalize_then_sum")
    ours = estimate("gdpo(eps=1e-4)", batch).advantages.numpy()
    assert ours == pytest.approx(expected, rel=3e-4, abs=1e-6)


def test_a_missing_part_adds_nothing_in_trl_and_in_gdpo():
    parts, batch = equal_groups(2, n_parts=2)
    parts[[9, 14, 15], [0, 1, 1]] = np.nan
    batch = GroupBatch(
        batch.token_ids, batch.offsets, batch.rewards, batch.correct, batch.group_index,
        rewards_by_name={f"part {i}": torch.from_numpy(parts[:, i].copy()) for i in range(2)},
    )  # fmt: skip
    expected = trl_advantages(parts, 4, "group", "normalize_then_sum")
    assert estimate("gdpo(eps=1e-4)", batch).advantages.numpy() == pytest.approx(expected, rel=3e-4, abs=1e-6)
