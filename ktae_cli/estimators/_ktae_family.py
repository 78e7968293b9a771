"""The arithmetic that the KTAE estimators share: counts -> key weight of each (group, token id) -> positions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError, PrerequisiteError
from ktae_cli.estimators._before import written_before
from ktae_cli.estimators._gate import NO_GATING, Evidence, Gated, Gating, Tables, gate_weights
from ktae_cli.estimators._policy_tokens import policy_tokens
from ktae_cli.estimators.base import Estimate, moments_of, rollout_advantages
from ktae_cli.names import Spec
from ktae_cli.stats.counts import Counts, count_tokens
from ktae_cli.stats.tables import Cells, Lookup, exact_cells, look_up
from ktae_cli.stats.term_frequency import bounded_direction, length_scale, ratio_direction, term_frequency


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
    gating: Gating = NO_GATING

    def __post_init__(self):
        if self.scale == "tanh" and self.alpha + self.beta == 0:
            raise KtaeError("alpha + beta is 0, and the strength is divided by it; give at least one a weight")
        if min(self.alpha, self.beta, self.top, self.k1, self.tf_eps) < 0 or not 0 <= self.b <= 1:
            raise KtaeError("alpha, beta, top, k1 and tf_eps must not be negative, and b lies between 0 and 1")
        if self.tf == "code" and self.tf_eps == 0:
            raise KtaeError("tf=code divides by the other side's frequency; give tf_eps > 0, or use tf=bounded")


@dataclass(frozen=True)
class ClassTotals:
    """Rollouts and counted tokens of each group's right and wrong side, all (n_groups,) int64."""

    n_correct: Tensor
    n_incorrect: Tensor
    tokens_correct: Tensor
    tokens_incorrect: Tensor


def ktae_estimate(batch: GroupBatch, settings: Settings, source: Evidence | None = None) -> Estimate:
    """Add the key weights of a batch to its base advantages; source: where evidence from other prompts comes from.

    advantages = base_scale * base + shift_scale * key_weight, float32, 0 off the mask.
    """
    base = rollout_advantages(settings.base, batch)
    counted = written_before(batch, settings.gating.before)
    counts, totals = counts_of(counted), class_totals(counted)
    lookup = look_up(
        settings.cells, counts.group, counts.correct_with, counts.incorrect_with, totals.n_correct, totals.n_incorrect
    )
    near = counts.group.int()  # half the traffic of an int64 index
    tf = tuple(
        _term_frequency(settings, count, near, own, other)
        for count, own, other in (
            (counts.correct_count, totals.tokens_correct, totals.tokens_incorrect),
            (counts.incorrect_count, totals.tokens_incorrect, totals.tokens_correct),
        )
    )
    fold = None if source is None else source.folds(batch)
    gated = _gated(settings, source, key_weight(settings, lookup, *tf), lambda: Tables(
        fold[counts.group], counts.token_id, counts.correct_with, counts.incorrect_with,
        totals.n_correct[counts.group], totals.n_incorrect[counts.group],
    ))  # fmt: skip
    weight = _zero(settings, gated.weight, counts.token_id, batch.eos_ids)
    if settings.loo:
        per_position = _leave_one_out(settings, counted, counts, totals, source, fold)
    else:
        per_position = _spread(weight, counts)
    per_position = _limited(settings, _centred(settings, per_position, counted), base, batch)
    advantages = batch.spread(base * settings.base_scale).add_(per_position, alpha=settings.shift_scale)

    def tokens() -> dict[str, Tensor]:
        p, gain, effect = (
            lookup.measures[1 if settings.fisher == "point" else 0],
            lookup.measures[2],
            lookup.measures[3],
        )
        return {
            "group": counts.group,
            "token_id": counts.token_id,
            "key_weight": weight,
            "effect": lookup.of_entries(effect),
            "p_value": lookup.of_entries(p),
            "information_gain": lookup.of_entries(gain),
            "correct_with": counts.correct_with,
            "incorrect_with": counts.incorrect_with,
            "n_correct": totals.n_correct.index_select(0, near),
            "n_incorrect": totals.n_incorrect.index_select(0, near),
            "tf_correct": tf[0],
            "tf_incorrect": tf[1],
        }

    return Estimate(advantages, {"key_weight": per_position}, tokens, gated.counts())


def _gated(settings: Settings, source: Evidence | None, weight: Tensor, tables: Callable[[], Tables]) -> Gated:
    """Let other prompts have their say on weights, where they are asked."""
    if source is None:
        return Gated(weight)
    return gate_weights(weight, tables(), settings.gating, source, settings.top)


def _centred(settings: Settings, shift: Tensor, counted: GroupBatch) -> Tensor:
    """Take the mean of a rollout's shift off all of its positions that count."""
    if settings.gating.center == "none":
        return shift
    tokens = policy_tokens(counted)
    return shift - counted.spread(tokens.sums(tokens.take(shift)) / counted.counted_lengths.clamp(min=1))


def _limited(settings: Settings, shift: Tensor, base: Tensor, batch: GroupBatch) -> Tensor:
    """Cut the shift to a share of the base advantage of its rollout."""
    if not settings.gating.cap or not settings.shift_scale:
        return shift
    limit = batch.spread(base.abs() * abs(settings.gating.cap * settings.base_scale / settings.shift_scale))
    return torch.maximum(torch.minimum(shift, limit), -limit).add_(0.0)  # no negative zeros


def key_weight(settings: Settings, lookup: Lookup, tf_correct: Tensor, tf_incorrect: Tensor) -> Tensor:
    """Return the key weight of each entry (n_entries,) in the settings' dtype."""
    measures = lookup.measures.to(settings.dtype)
    p = measures[1 if settings.fisher == "point" else 0]
    association = torch.exp(-2 * p).masked_fill_(p == 1, 0.0)
    strength = lookup.of_entries(settings.alpha * association + settings.beta * measures[2])
    direction = lookup.of_entries(measures[3])
    if settings.tf == "code":
        direction = direction.add_(ratio_direction(tf_correct, tf_incorrect, settings.tf_eps), alpha=settings.gamma)
    elif settings.tf == "bounded":
        direction = direction.add_(bounded_direction(tf_correct, tf_incorrect), alpha=settings.gamma)
    z = direction.mul_(strength).add_(0.0)  # no negative zeros
    if settings.scale == "paper":
        return z.mul_(0.5).tanh_().mul_(0.5 * settings.top)  # sigma(z) - 1/2 = tanh(z / 2) / 2
    return z.mul_(0.5 / (settings.alpha + settings.beta)).tanh_().mul_(settings.top)


def _spread(weight: Tensor, counts: Counts) -> Tensor:
    """Return the weight at each position (n_tokens,) float32, 0 where it is not counted."""
    padded = torch.zeros(len(weight) + 1, dtype=torch.float32, device=weight.device)
    padded[:-1] = weight
    return padded.index_select(0, counts.entry_index)


def _term_frequency(settings: Settings, count: Tensor, group: Tensor, own: Tensor, other: Tensor) -> Tensor:
    scale = length_scale(own, other, settings.k1, settings.b).to(settings.dtype)
    return term_frequency(count, scale.index_select(0, group), settings.k1)


def _zero(settings: Settings, weight: Tensor, token_id: Tensor, eos_ids: tuple[int, ...]) -> Tensor:
    """Set the weight of the zero_ids to 0."""
    ids = settings.zero_ids
    if ids == "none":
        return weight
    if ids == "eos":
        if not eos_ids:
            raise PrerequisiteError(
                "zero_ids=eos needs the end-of-text id: give --eos-id ID, or a tokenizer that has one"
            )
        ids = eos_ids
    return weight.masked_fill_(torch.isin(token_id, torch.tensor(ids, device=token_id.device)), 0.0)


def counts_of(batch: GroupBatch) -> Counts:
    """Count the tokens of a batch, once for all estimators of the call."""
    if "counts" not in batch.memo:
        batch.memo["counts"] = count_tokens(
            batch.token_ids, batch.offsets, batch.group_index, verdicts_of(batch), counted=batch.response_mask
        )
    return batch.memo["counts"]


def verdicts_of(batch: GroupBatch) -> Tensor:
    """Return the verdicts (n_rollouts,) int8, unknown where all rewards of the group are equal: nothing to credit."""
    if "verdicts" not in batch.memo:
        equal = moments_of(batch, batch.rewards).constant[batch.group_index]
        batch.memo["verdicts"] = batch.correct.masked_fill(equal, -1)
    return batch.memo["verdicts"]


def class_totals(batch: GroupBatch) -> ClassTotals:
    """Count rollouts and unmasked tokens on the two sides of each group."""
    lengths = batch.counted_lengths
    correct = verdicts_of(batch)
    side = torch.where(correct >= 0, 2 * batch.group_index + correct, 2 * batch.n_groups)
    sums = torch.zeros((2 * batch.n_groups + 1, 2), dtype=torch.int64, device=lengths.device)
    sums.index_add_(0, side, torch.stack([torch.ones_like(lengths), lengths], 1))
    wrong, right = sums[:-1].view(-1, 2, 2).unbind(1)
    return ClassTotals(right[:, 0], wrong[:, 0], right[:, 1], wrong[:, 1])


def _leave_one_out(
    settings: Settings,
    batch: GroupBatch,
    counts: Counts,
    totals: ClassTotals,
    source: Evidence | None,
    fold: Tensor | None,
) -> Tensor:
    """Return the weights of each position computed from the other rollouts of its group (n_tokens,) float32.

    The table of (token, rollout) is the group's less the rollout's own presence; its term frequencies are the group's
    less the rollout's own occurrences and length. 0 where the others are all right or all wrong.
    """
    entry, rollout, own, position_pair = pairs_of(batch, counts)
    right = (batch.correct[rollout] == 1).to(torch.int64)
    wrong = 1 - right
    group, length = counts.group[entry], batch.counted_lengths[rollout]
    # A group splits in two compositions: less a wrong rollout (2 g), less a right one (2 g + 1).
    n_correct = torch.stack([totals.n_correct, totals.n_correct - 1], 1).flatten()
    n_incorrect = torch.stack([totals.n_incorrect - 1, totals.n_incorrect], 1).flatten()
    half = 2 * group + right
    correct_with, incorrect_with = counts.correct_with[entry] - right, counts.incorrect_with[entry] - wrong
    lookup = look_up(
        settings.cells, half, correct_with, incorrect_with, n_correct.clamp(min=0), n_incorrect.clamp(min=0)
    )
    tokens_correct = totals.tokens_correct[group] - length * right
    tokens_incorrect = totals.tokens_incorrect[group] - length * wrong
    scale_correct = length_scale(tokens_correct, tokens_incorrect, settings.k1, settings.b).to(settings.dtype)
    scale_incorrect = length_scale(tokens_incorrect, tokens_correct, settings.k1, settings.b).to(settings.dtype)
    tf_correct = term_frequency(counts.correct_count[entry] - own * right, scale_correct, settings.k1)
    tf_incorrect = term_frequency(counts.incorrect_count[entry] - own * wrong, scale_incorrect, settings.k1)
    weight = _gated(settings, source, key_weight(settings, lookup, tf_correct, tf_incorrect), lambda: Tables(
        fold[group], counts.token_id[entry], correct_with, incorrect_with, n_correct[half], n_incorrect[half],
    )).weight  # fmt: skip
    weight = weight.masked_fill_((torch.minimum(n_correct, n_incorrect) <= 0)[half], 0.0)
    weight = _zero(settings, weight, counts.token_id[entry], batch.eos_ids).to(torch.float32)
    return torch.cat([weight, weight.new_zeros(1)]).index_select(0, position_pair)


def pairs_of(batch: GroupBatch, counts: Counts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Number the distinct (entry, rollout) pairs, once for all estimators of the call.

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
