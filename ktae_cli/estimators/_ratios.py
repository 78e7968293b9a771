"""What the ratio methods share: log-ratios of two policies, their means over stretches of tokens, and clips."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import Estimate, old_log_probs, rollout_advantages
from ktae_cli.names import Spec

LARGEST_TOKEN_LOG = 20.0
"""Bound of a token's log-ratio on both sides, as verl's `compute_policy_loss_vanilla` has it."""

LARGEST_MEAN_LOG = 10.0
"""Upper bound of the log-ratio of several tokens, as verl's `compute_policy_loss_gspo` has it."""


ROW = 64
"""Tokens that are added up one after the other where sums run along a rollout."""


@dataclass(frozen=True)
class Terms:
    """What a ratio method's loss is made of.

    base (n_rollouts,) float64: the advantages; lengths (n_rollouts,) of the responses. Per token (n_tokens,): log_ratio
    float64, log pi - log pi_old, 0 off the mask; counted bool, the mask.
    """

    base: Tensor
    lengths: Tensor
    log_ratio: Tensor
    counted: Tensor

    @cached_property
    def advantage(self) -> Tensor:
        """The base of each token's rollout (n_tokens,) float64."""
        return repeat(self.base, self.lengths)

    def means(self, lengths: Tensor, values: Tensor | None = None) -> Tensor:
        """Return the mean over the counted tokens of consecutive stretches (n_stretches,); 0 where there is none.

        values (n_tokens,): the log-ratios unless given. A stretch is added up by itself, from its first token on.
        """
        values = self.log_ratio if values is None else torch.where(self.counted, values.to(torch.float64), 0.0)
        sums = torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)
        return sums / self.numbers(lengths).clamp(min=1)

    def numbers(self, lengths: Tensor) -> Tensor:
        """Return the number of counted tokens of consecutive stretches (n_stretches,) int64."""
        return counts(self.counted, lengths)


def ratio_terms(base: str | Spec, batch: GroupBatch) -> Terms:
    """Return the terms of a batch; base is the spec of its advantages."""
    advantages = rollout_advantages(base, batch).to(torch.float64)
    counted = counted_tokens(batch)
    difference = batch.log_probs.to(torch.float64) - old_log_probs(batch).to(torch.float64)
    return Terms(advantages, batch.lengths, torch.where(counted, difference, 0.0), counted)


def counted_tokens(batch: GroupBatch) -> Tensor:
    """Return the mask of the tokens (n_tokens,) bool; all true where the batch has none."""
    if batch.response_mask is None:
        return torch.ones(len(batch.token_ids), dtype=torch.bool, device=batch.offsets.device)
    return batch.response_mask


def repeat(values: Tensor, lengths: Tensor) -> Tensor:
    """Repeat a value per stretch over its tokens: (n_stretches,) -> (n_tokens,)."""
    return torch.repeat_interleave(values, lengths)


def token_ratios(log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp of the log-ratios held within +-20, and where they are: a clamp passes no gradient beyond."""
    return torch.exp(log_ratio.clamp(-LARGEST_TOKEN_LOG, LARGEST_TOKEN_LOG)), log_ratio.abs() <= LARGEST_TOKEN_LOG


def mean_ratios(log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp of the log-ratios held below 10, and where they are: a clamp passes no gradient beyond."""
    return torch.exp(log_ratio.clamp(max=LARGEST_MEAN_LOG)), log_ratio <= LARGEST_MEAN_LOG


def is_open(ratio: Tensor, advantage: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Tell where min(r A, clip(r, low, high) A) is r A: the gradient flows; also wherever A = 0."""
    return ~(((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low)))


def one_sided_clip(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """Return what multiplies A in min(r A, clip(r, low, high) A); r itself where A = 0."""
    clipped = torch.where(advantage > 0, ratio.clamp(max=high), ratio)
    return torch.where(advantage < 0, ratio.clamp(min=low), clipped)


def rollout_estimate(batch: GroupBatch, terms: Terms, ratio: Tensor, flows: Tensor, weight: Tensor) -> Estimate:
    """Build the estimate of a method whose ratio, flow and gradient weight are one a rollout (n_rollouts,)."""
    return Estimate(
        batch.spread(terms.base),
        {
            "ratio": batch.spread(ratio),
            "mask": batch.spread(flows) > 0,
            "grad_weight": batch.spread(torch.where(flows, weight, 0.0)),
        },
    )


def token_estimate(
    batch: GroupBatch, terms: Terms, ratio: Tensor, flows: Tensor, weight: Tensor, **more: Tensor
) -> Estimate:
    """Build the estimate of a method whose ratio, flow and gradient weight are one a token (n_tokens,)."""
    columns = {"ratio": ratio, "mask": flows, "grad_weight": torch.where(flows, weight, 0.0), **more}
    return Estimate(batch.spread(terms.base), {name: masked(terms, values) for name, values in columns.items()})


def masked(terms: Terms, values: Tensor) -> Tensor:
    """Return values (n_tokens,) as a column: float32 or bool, 0 off the mask."""
    if values.dtype == torch.bool:
        return values & terms.counted
    return torch.where(terms.counted, values.to(torch.float32), 0.0)


def check_bounds(owner: str, low: float, high: float, names: tuple[str, str] = ("eps_low", "eps_high")) -> None:
    """Raise `KtaeError` for bounds of 1 - low and 1 + high that hold no ratio or reach below 0."""
    if not 0 <= low <= 1 or high < 0:
        raise KtaeError(
            f"{owner}: {names[0]} lies between 0 and 1, and {names[1]} is not negative; found {low:g} and {high:g}"
        )


def counts(flags: Tensor, lengths: Tensor) -> Tensor:
    """Return how many flags (n_tokens,) bool are set in consecutive stretches (n_stretches,) int64."""
    count = torch.cat([lengths.new_zeros(1), torch.cumsum(flags, 0)])
    ends = torch.cumsum(lengths, 0)
    return count[ends] - count[ends - lengths]


def running_counts(flags: Tensor, batch: GroupBatch) -> Tensor:
    """Return how many flags (n_tokens,) bool are set up to each token within its rollout, itself included."""
    count = torch.cat([batch.offsets.new_zeros(1), torch.cumsum(flags, 0)])
    return count[1:] - repeat(count[batch.offsets[:-1]], batch.lengths)


@dataclass(frozen=True)
class Blocks:
    """Where sums along rollouts are formed: each rollout in rows of 64 places, the last one filled up.

    slot (n_tokens,): the place of each token. row (n_rows,), row_from_end (n_rows,): the row's number in its rollout.
    """

    slot: Tensor
    row: Tensor
    row_from_end: Tensor

    def running_sums(self, values: Tensor, backwards: bool = False) -> Tensor:
        """Return the sum of values (n_tokens,) up to each token of its rollout; backwards: from it to the end.

        A token's bits depend on its own rollout alone.
        """
        rows = values.new_zeros(len(self.row) * ROW).index_copy_(0, self.slot, values).view(-1, ROW)
        row = self.row
        if backwards:
            rows, row = rows.flip(0, 1), self.row_from_end.flip(0)
        rows = rows.cumsum(1)
        sums = _join(rows[:, -1], row)
        rows[1:] += torch.where(row[1:] > 0, sums[:-1], 0.0)[:, None]
        return (rows.flip(0, 1) if backwards else rows).reshape(-1)[self.slot]


def blocks(lengths: Tensor) -> Blocks:
    """Lay out rollouts of some lengths (n_rollouts,)."""
    n_rows = (lengths + ROW - 1) // ROW
    number, first_row = torch.arange(int(n_rows.sum()), device=lengths.device), torch.cumsum(n_rows, 0) - n_rows
    row = number - repeat(first_row, n_rows)
    place = torch.arange(int(lengths.sum()), device=lengths.device)
    slot = place + repeat(first_row * ROW - (torch.cumsum(lengths, 0) - lengths), lengths)
    return Blocks(slot, row, repeat(n_rows, n_rows) - 1 - row)


def _join(sums: Tensor, row: Tensor) -> Tensor:
    """Return the sum of rows up to each of its rollout, from joined sums of 1, 2, 4, … rows."""
    reach = 1
    longest = int(row.max()) if len(row) else 0
    while reach <= longest:
        sums = torch.cat([sums[:reach], sums[reach:] + torch.where(row[reach:] >= reach, sums[:-reach], 0.0)])
        reach *= 2
    return sums
