"""How a trainer averages the loss: the weight of each token, beside the advantages and never inside them."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import aggregation
from ktae_cli.names import Spec
from ktae_cli.stats.pooled import StepCounts, steps_of


def loss_totals(batch: GroupBatch, kept: Tensor) -> StepCounts:
    """Count the tokens and rollouts in the loss of each step, and its longest response."""
    counted, lengths, kept = batch.counted_lengths.cpu(), batch.lengths.cpu(), kept.cpu()
    return StepCounts(
        steps_of(batch.step, batch.n_rollouts),
        {"tokens": (counted * kept).numpy(), "rollouts": ((counted > 0) & kept).numpy()},
        {"longest": (lengths * kept).numpy()},
    )


def loss_weights(spec: Spec, batch: GroupBatch, totals: StepCounts, kept: Tensor) -> Tensor:
    """Return the weight of each token (n_tokens,) float32 in the loss of its step, 0 off the mask and outside the loss.

    The loss is -sum over tokens of loss_weight times the method's term. With T_i the unmasked tokens of rollout i, N
    the rollouts of the step that have one, L `aggregation_length` or else the step's longest response:
    `token_mean` 1 / sum T; `seq_mean_token_mean` 1 / (N T_i); `seq_mean_token_sum` 1 / N; `dr_grpo` 1 / (N L).

    Source: verl's `agg_loss`, whose seq-mean-token-sum-norm is `dr_grpo` with loss_scale_factor, or else the padded
    width, as L; TRL's loss_type dr_grpo has its max_completion_length there.
    """
    device = batch.offsets.device
    tokens, rollouts, longest = (
        totals.of(name, batch.step, batch.n_rollouts, device) for name in ("tokens", "rollouts", "longest")
    )
    own = batch.counted_lengths.to(torch.float64)
    divisor = {
        "token_mean": tokens,
        "seq_mean_token_mean": rollouts * own,
        "seq_mean_token_sum": rollouts,
        "dr_grpo": rollouts * (dict(spec.arguments).get("aggregation_length") or longest),
    }[aggregation(spec)]
    return batch.spread(torch.where(kept & (own > 0), 1 / divisor.clamp(min=1), 0.0))
