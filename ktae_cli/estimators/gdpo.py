"""GDPO: each part of the reward standardised by itself, summed, whitened over the tokens of the whole batch."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import Numbers
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.estimators._whitening import token_values, whiten
from ktae_cli.estimators.base import estimator
from ktae_cli.stats.pooled import StepMoments, WeightedValues
from ktae_cli.stats.segments import moments_within_groups
from ktae_cli.token_text import visible

_LARGEST = 1e30  # larger ones leave the range of float32 advantages
_SHOWN = 10


@estimator(needs=("rewards",), level="rollout", scope="batch")
def gdpo(batch: GroupBatch, pooled: "NamedParts", *, weights: Numbers = 1.0, eps: float = 1e-6) -> Tensor:
    """Give every token of a rollout the weighted sum of its z-scores in each part of the reward, whitened.

    z_ik = (r_ik - mean r_k) / (std r_k + eps) within the group, ddof 1, for each named part k of the reward;
    x_i = sum_k w_k z_ik; A_i = (x_i - mean x) / sqrt(var x + 1e-8) over all unmasked tokens of the step's batch.
    `weights`: one number for all parts, or one for each part in the alphabetical order of the names in the whole input,
    as in `gdpo(weights=1+0.5)`. The scalar reward plays no part.

    Source: arXiv 2601.05242; verl's `compute_gdpo_outcome_advantage`, whose gdpo_reward_keys are all parts here. TRL's
    `normalize_then_sum` whitens over rollouts instead of tokens, with eps 1e-4 in both places.
    Returns (n_rollouts,) float64, in units of the batch's standard deviation; the same bits for any order and cut of
    the rows.
    Degenerate: a part that a rollout lacks (null, NaN) is left out of that part's mean and std and adds 0 to its sum,
    as in TRL (verl requires every part); a part known to one rollout of several adds 0. A part that is equal in the
    whole group adds 0. As in verl, a group of one keeps r / (1 + eps). Whitening re-centres, so a group without
    contrast has the value -mean x / sqrt(var x + 1e-8); 0 where all x of the step are equal.
    Raises `KtaeError` when there are several weights and another number of parts, or eps is negative; `InputError`
    for a part that is infinite or beyond 1e30.
    """
    return whiten(batch, _weighted_sum(batch, pooled.names, weights, eps), pooled)


class NamedParts:
    """The names of the parts in the whole input; then, in a second pass, the sums that whitening needs."""

    def __init__(self, names: frozenset[str], sums: WeightedValues | None = None):
        self.names, self.sums = names, sums

    @property
    def complete(self) -> bool:
        """Tell whether the sums are gathered too."""
        return self.sums is not None

    def merge(self, other: "NamedParts") -> "NamedParts":
        """Return the names and sums of both."""
        return NamedParts(self.names | other.names, self.sums.merge(other.sums) if self.complete else None)

    def moments(self, step: Tensor | None, n_rollouts: int, device: torch.device | str = "cpu") -> StepMoments:
        """Return the moments of the sums in each rollout's step."""
        return self.sums.moments(step, n_rollouts, device)


def _pool(
    batch: GroupBatch, known: NamedParts | None, *, weights: float | tuple[float, ...] = 1.0, eps: float = 1e-6
) -> NamedParts:
    """Gather the names of the parts, and once these are known the weighted sums of the batch's unmasked tokens."""
    if known is None:
        return NamedParts(frozenset(_parts(batch)))
    return NamedParts(known.names, token_values(batch, _weighted_sum(batch, known.names, weights, eps)))


gdpo.pool = _pool


def _parts(batch: GroupBatch) -> dict[str, Tensor]:
    """Return the parts that some rollout has; raise `InputError` for a value that cannot be scored."""
    parts = {name: part for name, part in batch.rewards_by_name.items() if not part.isnan().all()}
    for name, part in parts.items():
        beyond = part[part.abs() > _LARGEST]
        if len(beyond):
            raise InputError(
                f"gdpo: the part {visible(name)!r} of the reward is {float(beyond[0]):g}, beyond what float32 "
                "advantages hold; correct the rewards"
            )
    return parts


def _weighted_sum(batch: GroupBatch, names: frozenset[str], weights: float | tuple[float, ...], eps: float) -> Tensor:
    """Return the weighted sum of each rollout's z-scores (n_rollouts,) over the parts in the order of their names."""
    ordered = sorted(names)
    given = weights if isinstance(weights, tuple) else (weights,) * len(ordered)
    if len(given) != len(ordered):
        found = ", ".join(repr(visible(name)) for name in ordered[:_SHOWN]) + (", …" if len(ordered) > _SHOWN else "")
        raise KtaeError(
            f"gdpo: {len(given)} weights for {len(ordered)} part(s) of the reward ({found or 'none'}); give one for "
            "each, in this order, or a single number"
        )
    if eps < 0:
        raise KtaeError(f"gdpo: eps is not negative, found {eps}")
    parts, total = _parts(batch), torch.zeros_like(batch.rewards)
    for name, weight in zip(ordered, given, strict=True):
        if name in parts:
            total += weight * _z_scores(batch, parts[name], eps)
    return total


def _z_scores(batch: GroupBatch, part: Tensor, eps: float) -> Tensor:
    """Return the z-scores of a part (n_rollouts,) within its group, 0 where it is missing."""
    known = ~part.isnan()
    values = part[known]
    _, place = torch.unique_consecutive(batch.group_index[known], return_inverse=True)
    moments = moments_within_groups(values, place)
    z = (values - moments.mean[place]) / (moments.std(1) + eps)[place]
    z.masked_fill_(moments.constant[place], 0.0)
    alone = (batch.group_sizes == 1)[batch.group_index][known]
    out = torch.zeros_like(part)
    out[known] = torch.where(alone, values / (1 + eps), z)
    return out
