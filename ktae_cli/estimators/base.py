"""What every estimator shares: the declaration, the check before any compute, and the call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from ktae_cli.batch import TOKEN_COLUMNS, GroupBatch
from ktae_cli.catalogue import needs as needs_of
from ktae_cli.catalogue import resolve_spec
from ktae_cli.errors import MissingColumnError
from ktae_cli.names import Spec
from ktae_cli.stats.segments import Moments, moments_within_groups

_BATCH_FIELDS = {"response_ids": "token_ids", "reward": "rewards"}


@dataclass(frozen=True)
class Estimate:
    """Advantages (n_tokens,) float32, and further per-token columns by name.

    tokens: of a KTAE estimator, gathers the token table when called: column -> (n_entries,), one entry for each
    distinct (group, token id), with `group` the index of the group in the batch.
    """

    advantages: Tensor
    columns: dict[str, Tensor] = field(default_factory=dict)
    tokens: Callable[[], dict[str, Tensor]] | None = None


def estimator(
    *, needs: tuple[str, ...], level: str, scope: str, columns: tuple[str, ...] = ()
) -> Callable[[Callable], Callable]:
    """Declare an estimator: the canonical columns it needs, what it returns, and over what it pools.

    columns: the per-token columns that it returns beside the advantages.

    level "rollout": a tensor (n_rollouts,), spread over the mask here; "token": an `Estimate`.
    scope "group": each group by itself; "batch": statistics of the whole batch.
    """

    def declare(function: Callable) -> Callable:
        function.needs, function.level, function.scope, function.columns = needs, level, scope, columns
        return function

    return declare


@cache
def load(spec: str | Spec) -> tuple[Callable, Spec]:
    """Import an estimator; return its function and the resolved spec."""
    spec = resolve_spec(spec)
    return getattr(import_module(f"ktae_cli.estimators.{spec.name}"), spec.name), spec


def rollout_advantages(spec: str | Spec, batch: GroupBatch) -> Tensor:
    """Return the advantages (n_rollouts,) float64 of a rollout-level spec."""
    function, spec = load(spec)
    return function(batch, **dict(spec.arguments))


def estimate(spec: str | Spec, batch: GroupBatch) -> Estimate:
    """Run one estimator on a batch.

    Raises `MissingColumnError` when the batch lacks a column that the spec needs. Advantages are float32 and 0
    where response_mask is false.
    """
    function, spec = load(spec)
    check_needs(spec, {name for name in needs_of(spec) if _has(batch, name)})
    if function.level == "rollout":
        return Estimate(batch.spread(function(batch, **dict(spec.arguments))))
    return function(batch, **dict(spec.arguments))


def check_parameters(spec: str | Spec, eos_ids: tuple[int, ...] = ()) -> None:
    """Run a spec on two rollouts of one token: parameters that cannot be are refused before anything is scored."""
    zeros = torch.zeros(2)
    estimate(
        spec,
        GroupBatch(
            torch.zeros(2, dtype=torch.int32), torch.arange(3), torch.tensor([1.0, 0.0], dtype=torch.float64),
            torch.tensor([1, 0], dtype=torch.int8), torch.zeros(2, dtype=torch.int64), eos_ids=eos_ids,
            **dict.fromkeys(TOKEN_COLUMNS, zeros),
        ),
    )  # fmt: skip


def check_needs(spec: Spec, available: set[str]) -> None:
    """Raise `MissingColumnError` that names the columns which the spec needs and the input lacks."""
    missing = [name for name in needs_of(spec) if name not in available]
    if missing:
        raise MissingColumnError(
            f"{spec} needs {', '.join(missing)}, which the input does not have; "
            f"name a column with --map {missing[0]}=COLUMN, or choose an estimator without it"
        )


def _has(batch: GroupBatch, name: str) -> bool:
    return getattr(batch, _BATCH_FIELDS.get(name, name)) is not None


def moments_of(batch: GroupBatch, rewards: Tensor) -> Moments:
    """Return the groups' moments of the rewards (n_rollouts,), computed once for the batch's own rewards."""
    if rewards is not batch.rewards:
        return moments_within_groups(rewards, batch.group_index)
    if "moments" not in batch.memo:
        batch.memo["moments"] = moments_within_groups(rewards, batch.group_index)
    return batch.memo["moments"]


def centred(batch: GroupBatch, rewards: Tensor) -> Tensor:
    """Return rewards minus their group's mean (n_rollouts,), exactly 0 where a group's rewards are all equal."""
    moments = moments_of(batch, rewards)
    difference = rewards - moments.mean[batch.group_index]
    return difference.masked_fill_(moments.constant[batch.group_index], 0.0)
