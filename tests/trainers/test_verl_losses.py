"""verl's policy losses beside our ratios, gradient weights and loss weights; runs where verl is installed."""

import pytest
import torch

from ktae_cli.estimators.base import estimate
from tests.trainers.losses import Padded, clipped_terms, drawn, gated_terms

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig

SEEDS = range(4)
MODES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-sum-norm": "dr_grpo",
}


def loss_of(name, padded, mode="token-mean", **settings):
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_c=1e9, **settings)
    loss, _ = core_algos.get_policy_loss_fn(name)(
        padded.old_log_probs, padded.log_probs, padded.advantages, padded.mask, mode, config
    )
    return loss


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_loss_weights_average_as_verl_does(mode, seed):
    batch = drawn(seed)
    found = estimate(f"grpo(aggregation={MODES[mode]})", batch)
    padded = Padded(batch, found)
    terms = torch.randn(padded.inside.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = core_algos.agg_loss(terms, padded.mask, mode)
    assert float((found.columns["loss_weight"] * terms[padded.inside]).sum()) == pytest.approx(
        float(expected), abs=1e-6
    )


def test_the_aggregation_length_is_verls_loss_scale_factor():
    batch = drawn(1)
    found = estimate("grpo(aggregation=dr_grpo,aggregation_length=40)", batch)
    padded = Padded(batch, found)
    expected = core_algos.agg_loss(padded.log_probs, padded.mask, "seq-mean-token-sum-norm", loss_scale_factor=40)
    assert float((found.columns["loss_weight"] * batch.log_probs).sum()) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.1, 0.15)])
def test_gspo_is_verls(mode, seed, low, high):
    batch = drawn(seed)
    found = estimate(f"gspo(eps_low={low},eps_high={high},aggregation={MODES[mode]})", batch)
    padded = Padded(batch, found)
    loss = loss_of("gspo", padded, mode, clip_ratio_low=low, clip_ratio_high=high)
    padded.assert_loss(loss, clipped_terms(found, low, high))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("low", "high"), [(0.4, 0.4), (0.2, 0.1)])
def test_gmpo_is_verls_geo_mean_where_every_rollout_has_a_token(seed, low, high):
    batch = drawn(seed, empty=False)
    found = estimate(f"gmpo(eps_low={low},eps_high={high},aggregation=seq_mean_token_sum)", batch)
    padded = Padded(batch, found)
    loss = loss_of("geo_mean", padded, clip_ratio_low=low, clip_ratio_high=high)
    terms = found.advantages.double() * found.columns["ratio"] / batch.spread(batch.counted_lengths).clamp(min=1)
    padded.assert_loss(loss, terms)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_is_verls(mode, seed):
    batch = drawn(seed)
    found = estimate(f"cispo(aggregation={MODES[mode]})", batch)
    padded = Padded(batch, found)
    loss = loss_of("cispo", padded, mode, clip_ratio_low=0.2, clip_ratio_high=0.28)
    clipped = found.columns["ratio"].double().clamp(0.8, 1.28)
    padded.assert_loss(loss, found.advantages * clipped * batch.log_probs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("positive", "negative"), [(1.0, 1.05), (2.0, 4.0)])
def test_sapo_is_verls(seed, positive, negative):
    batch = drawn(seed)
    found = estimate(f"sapo(tau_pos={positive},tau_neg={negative},aggregation=seq_mean_token_mean)", batch)
    padded = Padded(batch, found)
    loss = loss_of("sapo", padded, tau_pos=positive, tau_neg=negative)
    padded.assert_loss(loss, gated_terms(found, positive, negative))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "spec", ["sspo(delimiters=token,aggregation={})", "dhpo(weight=1,aggregation={})"]
)  # fmt: skip
def test_one_token_a_span_and_the_token_branch_of_dhpo_are_verls_vanilla(mode, seed, spec):
    batch = drawn(seed)
    found = estimate(spec.format(MODES[mode]), batch)
    padded = Padded(batch, found)
    loss = loss_of("vanilla", padded, mode, clip_ratio_low=0.2, clip_ratio_high=0.28)
    padded.assert_loss(loss, clipped_terms(found, 0.2, 0.28))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("bounds", "low", "high"), [("", 0.2, 0.28), (",eps_low=0.02,eps_high=0.03", 0.02, 0.03)])
def test_tepo_of_the_sequence_is_verls_gspo_as_a_token_mean(seed, bounds, low, high):
    batch = drawn(seed)
    found = estimate(f"tepo(aggregation=token_mean{bounds})", batch)
    padded = Padded(batch, found)
    loss = loss_of("gspo", padded, clip_ratio_low=low, clip_ratio_high=high)
    padded.assert_loss(loss, clipped_terms(found, low, high))


@pytest.mark.parametrize("scale", [1.0, 4.0, 30.0])
@pytest.mark.parametrize(("reference", "column"), [("old", "old_log_probs"), ("ref", "ref_log_probs")])
def test_the_kl_of_tepo_is_verls_low_var_kl(scale, reference, column):
    batch = drawn(3)
    moved = {name: getattr(batch, name) * scale for name in ("log_probs", "old_log_probs", "ref_log_probs")}
    batch = type(batch)(**{**vars(batch), **moved, "memo": {}})
    plain = estimate(f"tepo(reference={reference})", batch)
    held = estimate(f"tepo(beta=0.5,reference={reference})", batch)
    log_probs = batch.log_probs.double().requires_grad_()
    kl = core_algos.kl_penalty(log_probs, getattr(batch, column).double(), "low_var_kl")
    kept = batch.response_mask
    assert torch.allclose(held.columns["kl"][kept].double(), kl[kept], rtol=1e-6, atol=1e-6)
    (0.5 * kl * held.columns["kl_mask"]).sum().backward()
    change = (held.columns["grad_weight"].double() - plain.columns["grad_weight"]).double()
    assert torch.allclose(change, -log_probs.grad, rtol=1e-5, atol=1e-5)
    assert log_probs.grad.count_nonzero() > 5


@pytest.mark.parametrize("difference", [1000.0, -1000.0, 15.0, 25.0, -25.0])
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("gspo", "gspo(aggregation=token_mean,eps_low=0.2,eps_high=0.28)"),
        ("vanilla", "dhpo(weight=1,aggregation=token_mean)"),
        ("cispo", "cispo(aggregation=token_mean)"),
        ("sapo", "sapo(aggregation=seq_mean_token_mean)"),
    ],
)
def test_extreme_ratios_are_held_as_verl_holds_them(name, spec, difference):
    batch = drawn(0)
    batch = type(batch)(**{**vars(batch), "log_probs": batch.old_log_probs + difference, "memo": {}})
    found = estimate(spec, batch)
    padded = Padded(batch, found)
    loss_of(name, padded, clip_ratio_low=0.2, clip_ratio_high=0.28).backward()
    gradient = -padded.log_probs.grad[padded.inside]
    product = found.columns["grad_weight"].double() * found.columns["loss_weight"]
    assert torch.allclose(product, gradient, rtol=1e-6, atol=1e-9)
