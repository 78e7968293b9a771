"""The arithmetic that the KTAE estimators share: counts -> key weight of each (group, token id) -> positions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError, PrerequisiteError
from ktae_cli.estimators.base import Estimate, TokenScores, rollout_advantages
from ktae_cli.names import Spec
from ktae_cli.stats.counts import Counts, count_tokens
from ktae_cli.stats.tables import Cells, exact_cells, look_up
from ktae_cli.stats.term_frequency import bounded_direction, ratio_direction, term_frequency


@dataclass(frozen=True)
class Settings:
    """Parameters of the family; `scale` is "tanh" for the released 2 (sigma - 1/2), "paper" for sigma - 1/2."""

    base: str | Spec
    fisher: str
    alpha: float
    beta: float
    gamma: float
    tf: str
    top: float
    k1: float
    b: float
    tf_eps: float
    zero_ids: str | int | tuple[int, ...]
    loo: bool
    base_scale: float
    shift_scale: float
    scale: str = "tanh"
    cells: Cells = exact_cells
    dtype: torch.dtype = torch.float64

    def __post_init__(self):
        if self.scale == "tanh" and self.alpha + self.beta == 0:
            raise KtaeError("alpha + beta is 0, and the strength is divided by it; give at least one a weight")
        if min(self.alpha, self.beta, self.k1, self.tf_eps) < 0 or not 0 <= self.b <= 1:
            raise KtaeError("alpha, beta, k1 and tf_eps must not be negative, and b lies between 0 and 1")
        if self.tf == "code" and self.tf_eps == 0:
            raise KtaeError("tf=code divides by the other side's frequency; give tf_eps > 0, or use tf=bounded")


@dataclass(frozen=True)
class ClassTotals:
    """Rollouts and counted tokens of each group's right and wrong side, all (n_groups,) int64."""

    n_correct: Tensor
    n_incorrect: Tensor
    tokens_correct: Tensor
    tokens_incorrect: Tensor


def ktae_estimate(batch: GroupBatch, settings: Settings) -> Estimate:
    """Add the key weights of a batch to its base advantages.

    advantages = base_scale * base + shift_scale * key_weight, float32, 0 off the mask.
    """
    base = rollout_advantages(settings.base, batch)
    counts = counts_of(batch)
    totals = class_totals(batch)
    measures = look_up(
        settings.cells, counts.group, counts.correct_with, counts.incorrect_with, totals.n_correct, totals.n_incorrect
    ).to(settings.dtype)
    tf_correct, tf_incorrect = _term_frequencies(
        settings, counts.group, counts.correct_count, counts.incorrect_count, totals
    )
    weight = key_weight(settings, measures, tf_correct, tf_incorrect)
    zeroed = _zeroed(settings, counts.token_id, batch.eos_ids)
    weight = torch.where(zeroed, 0.0, weight)
    if settings.loo:
        per_position = _leave_one_out(settings, batch, counts, totals, zeroed)
    else:
        padded = torch.cat([weight, weight.new_zeros(1)]).to(torch.float32)
        per_position = padded.index_select(0, counts.entry_index)
    advantages = batch.spread(base * settings.base_scale).add_(per_position, alpha=settings.shift_scale)
    p_value = measures[1 if settings.fisher == "point" else 0]
    tokens = TokenScores(
        counts.group, counts.token_id, weight, measures[3], p_value, measures[2],
        counts.correct_with, counts.incorrect_with,
        totals.n_correct[counts.group], totals.n_incorrect[counts.group], tf_correct, tf_incorrect,
    )  # fmt: skip
    return Estimate(advantages, {"key_weight": per_position}, tokens)


def key_weight(settings: Settings, measures: Tensor, tf_correct: Tensor, tf_incorrect: Tensor) -> Tensor:
    """Return the key weight from (p two-sided, p point, information gain, half h) rows and the term frequencies."""
    p = measures[1 if settings.fisher == "point" else 0]
    association = torch.where(p == 1, 0.0, torch.exp(-2 * p))
    strength = settings.alpha * association + settings.beta * measures[2]
    direction = measures[3]
    if settings.tf == "code":
        direction = direction + settings.gamma * ratio_direction(tf_correct, tf_incorrect, settings.tf_eps)
    elif settings.tf == "bounded":
        direction = direction + settings.gamma * bounded_direction(tf_correct, tf_incorrect)
    if settings.scale == "paper":
        return settings.top * 0.5 * torch.tanh(strength * direction / 2)  # sigma(z) - 1/2 = tanh(z / 2) / 2
    return settings.top * torch.tanh(strength * direction / (settings.alpha + settings.beta) / 2)


def counts_of(batch: GroupBatch) -> Counts:
    """Count the tokens of a batch, once for all estimators of the call."""
    if "counts" not in batch.memo:
        batch.memo["counts"] = count_tokens(
            batch.token_ids, batch.offsets, batch.group_index, batch.correct, counted=batch.response_mask
        )
    return batch.memo["counts"]


def class_totals(batch: GroupBatch) -> ClassTotals:
    """Count rollouts and unmasked tokens on the two sides of each group."""
    lengths = counted_lengths(batch)
    totals = []
    for weights in (torch.ones_like(lengths), lengths):
        for side in (1, 0):
            chosen = torch.where(batch.correct == side, weights, 0)
            totals.append(torch.zeros_like(batch.group_sizes).index_add_(0, batch.group_index, chosen))
    return ClassTotals(*totals)


def counted_lengths(batch: GroupBatch) -> Tensor:
    """Return the unmasked tokens of each rollout (n_rollouts,) int64."""
    if batch.response_mask is None:
        return batch.lengths
    running = torch.cat([batch.offsets.new_zeros(1), torch.cumsum(batch.response_mask, 0)])
    return running[batch.offsets[1:]] - running[batch.offsets[:-1]]


def _term_frequencies(settings, group, correct_count, incorrect_count, totals: ClassTotals):
    mean_tokens = (totals.tokens_correct + totals.tokens_incorrect).to(torch.float64) / 2
    return tuple(
        term_frequency(count, tokens[group], mean_tokens[group], settings.k1, settings.b, settings.dtype)
        for count, tokens in ((correct_count, totals.tokens_correct), (incorrect_count, totals.tokens_incorrect))
    )


def _zeroed(settings: Settings, token_id: Tensor, eos_ids: tuple[int, ...]) -> Tensor:
    ids = settings.zero_ids
    if ids == "none":
        return torch.zeros_like(token_id, dtype=torch.bool)
    if ids == "eos":
        if not eos_ids:
            raise PrerequisiteError(
                "zero_ids=eos needs the end-of-text id: give --eos-id ID, or a tokenizer that names it"
            )
        ids = eos_ids
    return torch.isin(token_id, torch.tensor(ids, device=token_id.device))


def _leave_one_out(
    settings: Settings, batch: GroupBatch, counts: Counts, totals: ClassTotals, zeroed: Tensor
) -> Tensor:
    """Return the weights of each position computed from the other rollouts of its group (n_tokens,) float32.

    The table of (token, rollout) is the group's less the rollout's own presence; its term frequencies are the group's
    less the rollout's own occurrences and length. 0 where the others are all right or all wrong.
    """
    entry, rollout, own, position_pair = _pairs(batch, counts)
    right = (batch.correct[rollout] == 1).to(torch.int64)
    wrong = 1 - right
    group, lengths = counts.group[entry], counted_lengths(batch)[rollout]
    # A group splits in two compositions: without a right rollout, without a wrong one. Index 2 g + right.
    n_correct = torch.stack([totals.n_correct, totals.n_correct - 1], 1).flatten()
    n_incorrect = torch.stack([totals.n_incorrect - 1, totals.n_incorrect], 1).flatten()
    half = 2 * group + right
    one_sided = (torch.minimum(n_correct, n_incorrect) <= 0)[half]
    measures = look_up(
        settings.cells, half, counts.correct_with[entry] - right, counts.incorrect_with[entry] - wrong,
        n_correct.clamp(min=0), n_incorrect.clamp(min=0),
    )  # fmt: skip
    tokens_correct = totals.tokens_correct[group] - lengths * right
    tokens_incorrect = totals.tokens_incorrect[group] - lengths * wrong
    mean_tokens = (tokens_correct + tokens_incorrect).to(torch.float64) / 2
    form = (settings.k1, settings.b, settings.dtype)
    tf_correct = term_frequency(counts.correct_count[entry] - own * right, tokens_correct, mean_tokens, *form)
    tf_incorrect = term_frequency(counts.incorrect_count[entry] - own * wrong, tokens_incorrect, mean_tokens, *form)
    weight = key_weight(settings, measures, tf_correct, tf_incorrect)
    weight = torch.where(one_sided | zeroed[entry], 0.0, weight).to(torch.float32)
    return torch.cat([weight, weight.new_zeros(1)]).index_select(0, position_pair)


def _pairs(batch: GroupBatch, counts: Counts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Number the distinct (entry, rollout) pairs.

    Returns entry, rollout and own count of each pair (n_pairs,), and the pair of each position (n_tokens,), n_pairs
    where the position is not counted.
    """
    if "pairs" in batch.memo:
        return batch.memo["pairs"]
    n_entries = len(counts.group)
    rollout = torch.repeat_interleave(torch.arange(batch.n_rollouts, device=batch.offsets.device), batch.lengths)
    key = counts.entry_index.to(torch.int64) * batch.n_rollouts + rollout
    pair, position_pair, own = torch.unique(key, return_inverse=True, return_counts=True)
    known = pair < n_entries * batch.n_rollouts
    n_pairs = int(known.sum())  # pairs of positions that are not counted sort behind all others
    pair, own = pair[:n_pairs], own[:n_pairs]
    batch.memo["pairs"] = (pair // batch.n_rollouts, pair % batch.n_rollouts, own, position_pair.clamp(max=n_pairs))
    return batch.memo["pairs"]
