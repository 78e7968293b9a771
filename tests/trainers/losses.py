"""Rollouts padded as trainers hold them, and the objective that our columns describe."""

import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators.base import Estimate
from tests.helpers import batch_of, draw_groups, rollout

COLUMNS = ("old_log_probs", "log_probs", "ref_log_probs", "old_entropy", "entropy", "response_tokens")


def drawn(seed: int, empty: bool = True) -> GroupBatch:
    """Draw a batch of one step; without `empty` each rollout has an unmasked token."""
    groups = draw_groups(seed)
    rows = [
        [rollout(r.ids, r.reward, r.correct, r.mask, r.seed) for r in group if empty or any(r.mask)] for group in groups
    ]
    return batch_of([group for group in rows if group], COLUMNS)


class Padded:
    """A batch as matrices (n_rollouts, longest) in float64, 0 behind each response; log_probs takes gradients."""

    def __init__(self, batch: GroupBatch, found: Estimate):
        self.batch, self.found = batch, found
        self.inside = torch.arange(int(batch.lengths.max())) < batch.lengths[:, None]
        self.mask = self.matrix(batch.response_mask).long()
        self.old_log_probs, self.advantages = self.matrix(batch.old_log_probs), self.matrix(found.advantages)
        self.log_probs = self.matrix(batch.log_probs).requires_grad_()

    def matrix(self, values: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(self.inside.shape, dtype=torch.float64)
        out[self.inside] = values.double()
        return out

    def assert_loss(self, loss: torch.Tensor, terms: torch.Tensor) -> None:
        """Compare a trainer's loss with terms (n_tokens,) under our loss weights, and its gradient with our columns."""
        columns = self.found.columns
        weight = columns["loss_weight"].double()
        assert abs(float(loss.detach() + (weight * terms).sum())) < 1e-6
        loss.backward()
        gradient = -self.log_probs.grad[self.inside]
        assert gradient.count_nonzero() > 20
        assert torch.allclose(columns["grad_weight"].double() * weight, gradient, rtol=1e-6, atol=1e-7)
        assert torch.equal(columns["mask"] & (self.found.advantages != 0), gradient != 0)


def clipped_terms(found: Estimate, low: float, high: float) -> torch.Tensor:
    """Return min(r A, clip(r) A) of the ratio column (n_tokens,) float64."""
    ratio, advantage = found.columns["ratio"].double(), found.advantages.double()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def gated_terms(found: Estimate, positive: float, negative: float) -> torch.Tensor:
    """Return SAPO's A (4 / tau) sigma(tau (r - 1)) of the ratio column (n_tokens,) float64."""
    ratio, advantage = found.columns["ratio"].double(), found.advantages.double()
    tau = torch.where(advantage > 0, positive, negative)
    return advantage * 4 / tau * torch.sigmoid(tau * (ratio - 1))
