"""What every estimator shares: the declaration, the check before any compute, and the call."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ktae_cli.batch import TOKEN_COLUMNS, GroupBatch
from ktae_cli.catalogue import (
    aggregation,
    bases,
    extension,
    missing_needs,
    own_arguments,
    pools_over_prompts,
    resolve_spec,
    takes_pool,
)
from ktae_cli.catalogue import suppliers as readers_of
from ktae_cli.errors import KtaeError, MissingColumnError
from ktae_cli.estimators._loss_weight import loss_totals, loss_weights
from ktae_cli.extensions import load_extension
from ktae_cli.names import Spec
from ktae_cli.schema import BY_NAME, STAND_INS
from ktae_cli.stats.pooled import Pool
from ktae_cli.stats.segments import Moments, moments_within_groups

BATCH_FIELDS = {
    "response_ids": "token_ids",
    "reward": "rewards",
    "rewards": "rewards_by_name",
    "response_tokens": "text_marks",
    "response": "before_outcome",
}


MAX_PASSES = 16
"""A statistic of the whole input that is still open after so many passes will not be complete."""


@dataclass(frozen=True)
class Estimate:
    """Advantages (n_tokens,) float32, and further per-token columns by name.

    tokens: of a KTAE estimator, gathers the token table when called: column -> (n_entries,), one entry for each
    distinct (group, token id), with `group` the index of the group in the batch.
    counts: whole numbers by name, added over the parts of the input, for the estimator's notice.
    """

    advantages: Tensor
    columns: dict[str, Tensor] = field(default_factory=dict)
    tokens: Callable[[], dict[str, Tensor]] | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PoolRequest:
    """One statistic of the whole input: gather(batch, known) -> Pool, run when those of `after` are complete.

    known is what the passes so far have merged, None in the first.
    """

    key: str
    gather: Callable[[GroupBatch, Pool | None], Pool]
    after: tuple[str, ...] = ()


def estimator(
    *,
    needs: tuple[str, ...],
    level: str,
    scope: str,
    columns: tuple[str, ...] = (),
    needs_when: dict[str, tuple[str, ...]] | None = None,
    pools_when: tuple[str, ...] = (),
) -> Callable[[Callable], Callable]:
    """Declare an estimator: the canonical columns it needs, what it returns, and over what it pools.

    columns: the per-token columns that it returns beside the advantages.
    needs_when: further needs, `parameter=value` or `parameter` (any value but the default) -> columns.

    level "rollout": a tensor (n_rollouts,), spread over the mask here; "token": an `Estimate`. A rollout-level
    estimator may return an `Estimate` for parameters under which it differs along the response.
    scope "group": each group by itself, fn(batch, …). "batch": fn(batch, pooled, …) with statistics of all rollouts
    of a step; `fn.pool = gather` names gather(batch, known, …) -> `Pool`, with the same parameters.
    pools_when: of scope "group", conditions as in needs_when under which it is called as fn(batch, pooled, …) with
    evidence from all prompts of the input, whatever their step; of `fn.pool_takes`, a tuple of names, are the only
    parameters that gather depends on, so that specs which agree in them share a pool.
    `fn.notice = function` names function(pooled, counts, …) -> str, what is to be said when all is scored.
    `fn.in_loss = function` names function(batch, …) -> (n_rollouts,) bool where a method leaves rollouts out.
    """

    def declare(function: Callable) -> Callable:
        function.needs, function.level, function.scope, function.columns = needs, level, scope, columns
        return function

    return declare


@cache
def load(spec: str | Spec) -> tuple[Callable, Spec]:
    """Import an estimator; return its function and the resolved spec."""
    spec = resolve_spec(spec)
    found = extension(spec.name)
    if found:
        return load_extension(found), spec
    return getattr(import_module(f"ktae_cli.estimators.{spec.name}"), spec.name), spec


def rollout_advantages(spec: str | Spec, batch: GroupBatch) -> Tensor:
    """Return the advantages (n_rollouts,) float64 of a rollout-level spec."""
    found = _call(spec, batch)
    if isinstance(found, Estimate):
        raise KtaeError(f"{spec} gives one advantage per token; a base gives one per rollout")
    return found


def estimate(spec: str | Spec, batch: GroupBatch) -> Estimate:
    """Run one estimator on a batch.

    Raises `MissingColumnError` when the batch lacks a column that the spec needs. Advantages are float32 and 0
    where response_mask is false.
    """
    _, spec = load(spec)
    present = {name for name in BY_NAME if _has(batch, name)}
    check_needs(spec, present)
    found = _call(spec, batch)
    if not isinstance(found, Estimate):
        found = Estimate(batch.spread(found))
    if aggregation(spec) != "none":
        weights = loss_weights(spec, batch, pooled_of(_loss_request(spec), batch), in_loss(spec, batch))
        found = replace(found, columns={**found.columns, "loss_weight": weights})
    return found


def _call(spec: str | Spec, batch: GroupBatch) -> Any:
    function, spec = load(spec)
    arguments = own_arguments(spec)
    pooled = (pooled_of(own_request(spec), batch),) if takes_pool(spec) else ()
    return function(batch, *pooled, **arguments)


def pool_requests(specs: Iterable[Spec]) -> dict[str, PoolRequest]:
    """Return the statistics of the whole input that specs need, their bases' first, by key."""
    found: dict[str, PoolRequest] = {}
    for spec in specs:
        nested = pool_requests(bases(spec))
        found |= nested
        if takes_pool(spec):
            request = own_request(spec)
            found[request.key] = replace(request, after=tuple(nested))
        if aggregation(spec) != "none":
            request = _loss_request(spec)
            found[request.key] = replace(request, after=tuple(nested))
    return found


def own_request(spec: Spec) -> PoolRequest:
    """Return the statistic of the whole input that the spec itself is called with."""
    function, spec = load(spec)
    arguments = own_arguments(spec)
    if hasattr(function, "pool_takes"):
        arguments = {name: value for name, value in arguments.items() if name in function.pool_takes}
    bare = Spec(spec.name, tuple(sorted(arguments.items())))
    return PoolRequest(str(bare), partial(_gather, function, arguments))


def _gather(function: Callable, arguments: dict[str, Any], batch: GroupBatch, known: Pool | None) -> Pool:
    return function.pool(batch, known, **arguments)


def _loss_request(spec: Spec) -> PoolRequest:
    bare = Spec(spec.name, tuple(sorted(own_arguments(spec).items())))
    return PoolRequest(f"loss of {bare}", lambda batch, known: loss_totals(batch, in_loss(spec, batch)))


def pooled_of(request: PoolRequest, batch: GroupBatch) -> Pool:
    """Return a statistic of the whole input: gathered beforehand, or from this batch where it is the whole."""
    if batch.pooled is not None:
        return batch.pooled[request.key]
    key = ("pooled", request.key)
    if key not in batch.memo:
        known = request.gather(batch, None)
        for _ in range(MAX_PASSES):
            known = known if known.complete else request.gather(batch, known)
        if not known.complete:
            raise KtaeError(f"{request.key}: not complete after {MAX_PASSES} passes over the input")
        batch.memo[key] = known
    return batch.memo[key]


def evidence_of(specs: Iterable[Spec], pooled: dict[str, Pool]) -> dict[str, Pool]:
    """Return the evidence from all prompts that specs are called with, by key: what a `Job` can hold fixed."""
    keys = [own_request(spec).key for spec in specs if takes_pool(spec) and pools_over_prompts(spec)]
    return {key: pooled[key] for key in keys}


def notices(specs: Iterable[Spec], pooled: dict[str, Pool], counts: dict[Spec, dict[str, int]]) -> Iterator[str]:
    """Yield what the specs have to say of their pools and of the counts of their estimates."""
    for spec in specs:
        function = load(spec)[0]
        if takes_pool(spec) and hasattr(function, "notice"):
            text = function.notice(pooled[own_request(spec).key], counts.get(spec, {}), **own_arguments(spec))
            yield f"{spec}: {text}"


def in_loss(spec: Spec, batch: GroupBatch) -> Tensor:
    """Tell which rollouts (n_rollouts,) a spec or its base keeps in the loss; all, unless the method filters groups."""
    function, spec = load(spec)
    if hasattr(function, "in_loss"):
        return function.in_loss(batch, **own_arguments(spec))
    kept = torch.ones(batch.n_rollouts, dtype=torch.bool, device=batch.offsets.device)
    for base in bases(spec):
        kept &= in_loss(base, batch)
    return kept


def check_parameters(spec: str | Spec, eos_ids: tuple[int, ...] = ()) -> None:
    """Run a spec on two rollouts of one token: parameters that cannot be are refused before anything is scored."""
    spec = resolve_spec(spec)
    zeros = torch.zeros(2)
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    parts = {f"part {i}": rewards for i in range(_most_numbers(spec))}
    estimate(
        spec,
        GroupBatch(
            torch.zeros(2, dtype=torch.int32), torch.arange(3), rewards,
            torch.tensor([1, 0], dtype=torch.int8), torch.zeros(2, dtype=torch.int64), eos_ids=eos_ids,
            text_marks=torch.zeros(2, dtype=torch.uint8), before_outcome=torch.ones(2, dtype=torch.bool),
            rewards_by_name=parts,
            **dict.fromkeys(TOKEN_COLUMNS, zeros),
        ),
    )  # fmt: skip


def _most_numbers(spec: Spec) -> int:
    """Return the length of the longest list in a spec or in its bases, at least 1: as many parts may a reward have."""
    own = [len(value) for _, value in spec.arguments if isinstance(value, tuple)]
    return max([1, *own, *map(_most_numbers, bases(spec))])


def check_needs(spec: Spec, available: set[str]) -> None:
    """Raise `MissingColumnError` that names the columns which the spec needs and the input lacks."""
    missing = missing_needs(spec, available)
    if missing:
        raise MissingColumnError(f"{spec} needs {', '.join(missing)}, which the input does not have; {remedy(missing)}")


def remedy(missing: list[str]) -> str:
    """Say what supplies missing columns: readers, `--map`, a tokenizer for text."""
    name = missing[0]
    readers = sorted(set.intersection(*(set(readers_of(column)) for column in missing)))
    stand_in = f" (or {STAND_INS[name]})" if name in STAND_INS else ""
    tokenizer = "give --tokenizer PATH, " if name in ("response", "response_tokens") else ""
    return (
        f"{name}{stand_in}: {BY_NAME[name].meaning}; {tokenizer}name a column with --map {name}=COLUMN, or choose "
        f"another estimator (readers that can supply it: {', '.join(readers) or 'none'})"
    )


def _has(batch: GroupBatch, name: str) -> bool:
    return getattr(batch, BATCH_FIELDS.get(name, name), None) is not None


def old_log_probs(batch: GroupBatch) -> Tensor:
    """Return the log-probabilities of the policy that sampled: the trainer's, else the engine's."""
    return batch.rollout_log_probs if batch.old_log_probs is None else batch.old_log_probs


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
