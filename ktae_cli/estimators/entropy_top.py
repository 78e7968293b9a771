"""The 80/20 rule: the base advantage on the tokens of highest entropy only."""

import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import Estimate, estimator, in_loss, rollout_advantages
from ktae_cli.names import Spec
from ktae_cli.stats.quantile import StepQuantile


@estimator(needs=("reward", "old_entropy"), level="token", scope="batch")
def entropy_top(batch: GroupBatch, pooled: StepQuantile, *, base: Spec = "dapo", rho: float = 0.2) -> Estimate:
    """Keep the base advantage where the entropy is among the highest share rho of its batch, 0 elsewhere.

    A_it = 1[H_it >= h] base_i, h the (1 - rho)-quantile, linear between two values, of the entropies of all unmasked
    tokens of the step in rollouts that the base keeps in the loss: exact, in two passes over the input.

    Source: Wang et al., arXiv 2506.01939, on DAPO, hence the base; the mask as TRL's `get_high_entropy_mask`, which
    takes the current policy's entropies, equal to old_entropy for the first update, over all rollouts, and rounds the
    rank to float32. TRL divides the loss by all tokens, not by those kept, and so does an aggregation here; the
    paper's divisor is not confirmed.
    Returns advantages (n_tokens,) float32 in units of the base.
    Degenerate: all tokens at h are kept, so all of them where entropies are equal; rho=1 keeps every token. Those of
    the base. Without steps everything is one batch.
    """
    _check(rho)
    threshold = pooled.of(batch.step, batch.n_rollouts, batch.offsets.device)
    advantages = batch.spread(rollout_advantages(base, batch))
    least = torch.repeat_interleave(threshold, batch.lengths, output_size=len(advantages))
    return Estimate(torch.where(batch.old_entropy >= least, advantages, 0.0))


def _pool(batch: GroupBatch, known: StepQuantile | None, *, base: Spec = "dapo", rho: float = 0.2) -> StepQuantile:
    """Count the entropies of the tokens in the loss."""
    _check(rho)
    kept = in_loss(base, batch)
    lengths = torch.where(kept, batch.counted_lengths, 0)
    values = batch.old_entropy
    if batch.response_mask is not None or not bool(kept.all()):
        inside = torch.repeat_interleave(kept, batch.lengths, output_size=len(batch.token_ids))
        values = values[inside if batch.response_mask is None else inside & batch.response_mask]
    return StepQuantile(batch.step, lengths, values, 1 - rho, known)


entropy_top.pool = _pool


def _check(rho: float) -> None:
    if not 0 < rho <= 1:
        raise KtaeError(f"rho is the share of tokens to keep, above 0 and at most 1; found {rho:g}")
