"""The tokens that the policy sampled, without those of tools between them."""

from typing import NamedTuple

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch


class PolicyTokens(NamedTuple):
    """The unmasked tokens of all rollouts end to end.

    place (n_unmasked,) int64: their places among all tokens, None where all are unmasked. begin, end (n_rollouts,)
    int64: where each rollout begins and ends here. rollout (n_unmasked,) int32: the rollout of each.
    """

    place: Tensor | None
    begin: Tensor
    end: Tensor
    rollout: Tensor

    def take(self, values: Tensor) -> Tensor:
        """Keep the values (n_tokens,) of the unmasked tokens."""
        return values if self.place is None else values[self.place]

    def put(self, values: Tensor, n_tokens: int) -> Tensor:
        """Put values (n_unmasked,) at their places among all tokens (n_tokens,) float32, 0 off the mask."""
        values = values.to(torch.float32)
        if self.place is None:
            return values
        return torch.zeros(n_tokens, dtype=torch.float32, device=values.device).index_copy_(0, self.place, values)

    def sums(self, values: Tensor) -> Tensor:
        """Add up values (n_unmasked,) of each rollout in the order of its tokens (n_rollouts,) float64."""
        return torch.segment_reduce(values.to(torch.float64), "sum", lengths=self.end - self.begin, unsafe=True)

    def positions(self) -> Tensor:
        """Number the unmasked tokens of each rollout from 0 (n_unmasked,) int64."""
        return torch.arange(len(self.rollout), device=self.begin.device) - self.begin.index_select(0, self.rollout)


def policy_tokens(batch: GroupBatch) -> PolicyTokens:
    """Return the unmasked tokens of a batch, found once for all estimators of the call."""
    if "policy_tokens" not in batch.memo:
        lengths = batch.counted_lengths
        end = torch.cumsum(lengths, 0)
        place = None if batch.response_mask is None else torch.nonzero(batch.response_mask).squeeze(1)
        n_unmasked = len(batch.token_ids) if place is None else len(place)
        rollout = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
        rollout = torch.repeat_interleave(rollout, lengths, output_size=n_unmasked)
        batch.memo["policy_tokens"] = PolicyTokens(place, end - lengths, end, rollout)
    return batch.memo["policy_tokens"]


def mean_entropies(batch: GroupBatch) -> Tensor:
    """Return the mean entropy of the unmasked tokens of each rollout (n_rollouts,) float64, nats, 0 where none is.

    Entropies below 0, which rounding makes, count as 0.
    """
    tokens = policy_tokens(batch)
    return tokens.sums(tokens.take(batch.old_entropy).clamp(min=0)) / batch.counted_lengths.clamp(min=1)
