"""TRL's policy losses beside ours: `_compute_loss` of its trainers on given log-probabilities, without a model."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from ktae_cli.estimators.base import estimate
from tests.trainers.losses import Padded, clipped_terms, drawn, gated_terms

GRPOTrainer = pytest.importorskip("trl.trainer.grpo_trainer", reason="needs TRL").GRPOTrainer
GMPOTrainer = pytest.importorskip("trl.experimental.gmpo.gmpo_trainer", reason="needs TRL").GMPOTrainer

SEEDS = range(4)
LENGTH = 40


def loss_of(trainer, padded, loss_type="grpo", level="token", low=0.2, high=0.28, **settings):
    """Compute a trainer's loss where only what `_compute_loss` reads is there."""
    identity = SimpleNamespace(
        num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x, gather_for_metrics=lambda x: x
    )
    this = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (padded.log_probs, torch.zeros_like(padded.log_probs), None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _entropy_bonus_enabled=False,
        accelerator=identity,
        args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False, **settings),
        aux_loss_enabled=False,
        beta=0.0,
        current_gradient_accumulation_steps=1,
        epsilon_low=low,
        epsilon_high=high,
        importance_sampling_level=level,
        loss_type=loss_type,
        max_completion_length=LENGTH,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    ids = torch.zeros(padded.inside.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": padded.mask,
        "advantages": padded.advantages.sum(1) / padded.mask.sum(1),
        "old_per_token_logps": padded.old_log_probs,
        "num_items_in_batch": padded.mask.sum(),
    }
    return trainer._compute_loss(this, this.model, inputs)


def padded_of(spec, seed):
    """Estimate on rollouts that all have a token: TRL counts empty ones in its means."""
    batch = drawn(seed, empty=False)
    return Padded(batch, estimate(spec, batch))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.1, 0.15)])
def test_gspo_is_trls_sequence_level_grpo(seed, low, high):
    padded = padded_of(f"gspo(eps_low={low},eps_high={high},aggregation=seq_mean_token_mean)", seed)
    loss = loss_of(GRPOTrainer, padded, level="sequence", low=low, high=high)
    padded.assert_loss(loss, clipped_terms(padded.found, low, high))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [
        ("grpo", "seq_mean_token_mean"),
        ("bnpo", "token_mean"),
        ("dapo", "token_mean"),
        ("dr_grpo", f"dr_grpo,aggregation_length={LENGTH}"),
    ],
)
def test_one_token_a_span_is_trls_token_level_loss(seed, loss_type, aggregation):
    padded = padded_of(f"sspo(delimiters=token,aggregation={aggregation})", seed)
    padded.assert_loss(loss_of(GRPOTrainer, padded, loss_type), clipped_terms(padded.found, 0.2, 0.28))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cap", [5.0, 1.2, 0.9])
def test_cispo_with_an_absolute_cap_is_trls(seed, cap):
    padded = padded_of(f"cispo(cap=absolute,eps_max={cap},aggregation=token_mean)", seed)
    clipped = padded.found.columns["ratio"].double().clamp(max=cap)
    terms = padded.found.advantages * clipped * padded.batch.log_probs
    padded.assert_loss(loss_of(GRPOTrainer, padded, "cispo", high=cap), terms)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("positive", "negative"), [(1.0, 1.05), (2.0, 4.0)])
def test_sapo_is_trls(seed, positive, negative):
    padded = padded_of(f"sapo(tau_pos={positive},tau_neg={negative},aggregation=seq_mean_token_mean)", seed)
    settings = {"sapo_temperature_pos": positive, "sapo_temperature_neg": negative}
    padded.assert_loss(loss_of(GRPOTrainer, padded, "sapo", **settings), gated_terms(padded.found, positive, negative))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("low", "high"), [(0.4, 0.4), (0.2, 0.1)])
def test_gmpo_is_trls(seed, low, high):
    padded = padded_of(f"gmpo(eps_low={low},eps_high={high},aggregation=seq_mean_token_sum)", seed)
    found, lengths = padded.found, padded.batch.spread(padded.batch.counted_lengths).clamp(min=1)
    terms = found.advantages.double() * found.columns["ratio"] / lengths
    padded.assert_loss(loss_of(GMPOTrainer, padded, low=low, high=high), terms)
