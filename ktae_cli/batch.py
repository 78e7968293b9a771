"""GroupBatch: the rollouts of whole groups, flat and without padding, checked once when it is built."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

TOKEN_COLUMNS = (
    "rollout_log_probs",
    "old_log_probs",
    "log_probs",
    "ref_log_probs",
    "old_entropy",
    "entropy",
    "sum_pi_squared",
    "positive_log_probs",
    "negative_log_probs",
    "contrast_log_z",
    "token_rewards",
)


@dataclass(frozen=True)
class GroupBatch:
    """The rollouts of one or more whole groups. Absent columns are None, never empty.

    token_ids (n_tokens,) int32 or int64: the responses end to end. offsets (n_rollouts + 1,) int64: where each begins.
    rewards (n_rollouts,) float64, finite. correct (n_rollouts,) int8: 1 right, 0 wrong, -1 unknown.
    group_index (n_rollouts,) int64: dense, sorted. response_mask (n_tokens,) bool: true where the policy sampled.
    step (n_rollouts,) int64: the trainer's batch that a rollout belongs to. The token columns are (n_tokens,) float32.
    text_marks (n_tokens,) uint8: where the decoded text can be cut, as `ktae_cli.spans` numbers it.
    before_outcome (n_tokens,) bool: written before the response settles its outcome.
    prompt (n_rollouts,) int64: the prompt's number, as `ktae_cli.prompts` gives it. truncated (n_rollouts,) bool.
    rewards_by_name: the parts of the reward, each (n_rollouts,) float64, NaN where a rollout lacks the part.
    pooled: statistics of the whole input by spec, gathered beforehand; None says that this batch is the whole.

    Rows that share a trajectory are joined before they get here, and rows without a reward are left out:
    one rollout is one trajectory with a known reward.
    """

    token_ids: Tensor
    offsets: Tensor
    rewards: Tensor
    correct: Tensor
    group_index: Tensor
    response_mask: Tensor | None = None
    step: Tensor | None = None
    rollout_log_probs: Tensor | None = None
    old_log_probs: Tensor | None = None
    log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    old_entropy: Tensor | None = None
    entropy: Tensor | None = None
    sum_pi_squared: Tensor | None = None
    positive_log_probs: Tensor | None = None
    negative_log_probs: Tensor | None = None
    contrast_log_z: Tensor | None = None
    token_rewards: Tensor | None = None
    text_marks: Tensor | None = None
    before_outcome: Tensor | None = None
    prompt: Tensor | None = None
    truncated: Tensor | None = None
    rewards_by_name: dict[str, Tensor] | None = None
    eos_ids: tuple[int, ...] = ()
    pooled: dict[str, Any] | None = None
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Statistics that several estimators of one call share, such as the counts."""

    def __post_init__(self):
        n_rollouts, n_tokens = len(self.rewards), len(self.token_ids)
        if len(self.offsets) != n_rollouts + 1 or (n_rollouts and int(self.offsets[-1]) != n_tokens):
            raise ValueError(f"offsets do not cover {n_tokens} tokens of {n_rollouts} rollouts")
        by_rollout = {name: getattr(self, name) for name in ("correct", "group_index", "step", "prompt", "truncated")}
        for name, value in (by_rollout | (self.rewards_by_name or {})).items():
            if value is not None and len(value) != n_rollouts:
                raise ValueError(f"{name} has {len(value)} values for {n_rollouts} rollouts")
        for name in ("response_mask", "text_marks", "before_outcome", *TOKEN_COLUMNS):
            value = getattr(self, name)
            if value is not None and len(value) != n_tokens:
                raise ValueError(f"{name} has {len(value)} values for {n_tokens} tokens")

    @property
    def n_rollouts(self) -> int:
        """Number of rollouts."""
        return len(self.rewards)

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.group_index[-1]) + 1 if self.n_rollouts else 0

    @property
    def lengths(self) -> Tensor:
        """Response length of each rollout, masked tokens included (n_rollouts,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def counted_lengths(self) -> Tensor:
        """Unmasked tokens of each rollout (n_rollouts,) int64."""
        if self.response_mask is None:
            return self.lengths
        running = torch.cat([self.offsets.new_zeros(1), torch.cumsum(self.response_mask, 0)])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    @property
    def group_sizes(self) -> Tensor:
        """Rollouts in each group (n_groups,) int64."""
        return torch.bincount(self.group_index, minlength=self.n_groups)

    def spread(self, per_rollout: Tensor) -> Tensor:
        """Repeat a value per rollout over its tokens: (n_rollouts,) -> (n_tokens,) float32, 0 off the mask."""
        values = torch.repeat_interleave(per_rollout.to(torch.float32), self.lengths, output_size=len(self.token_ids))
        return values if self.response_mask is None else torch.where(self.response_mask, values, 0.0)
