"""Score one partition of whole groups: rows in, columns out. The whole story of what `score` computes."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import columns as columns_of
from ktae_cli.catalogue import resolve_spec
from ktae_cli.errors import InputError
from ktae_cli.estimators.base import PoolRequest, estimate, moments_of
from ktae_cli.names import Spec
from ktae_cli.rollouts import Rollouts
from ktae_cli.stats.pooled import Pool


@dataclass(frozen=True)
class ScoredRows:
    """Results in the order of the rows: unscored rows have length 0 and scored False."""

    scored: np.ndarray
    lengths: np.ndarray
    columns: dict[str, np.ndarray]
    tokens: list[tuple[Spec, dict[str, np.ndarray]]]
    counts: dict[str, int]
    spec_counts: dict[Spec, dict[str, int]]


def column_plan(specs: list[Spec]) -> dict[str, tuple[Spec, str]]:
    """Return output column -> (spec, result name), in the order of writing.

    `advantages` and the plain `key_weight` are those of the first estimator that has them; with several estimators
    each also has `adv_<slug>`, and `key_weight_<slug>` where it computes one.
    """
    extras = {spec: columns_of(spec) for spec in specs}
    plan: dict[str, tuple[Spec, str]] = {"advantages": (specs[0], "advantages")}
    for spec in specs:
        if "key_weight" in extras[spec]:
            plan.setdefault("key_weight", (spec, "key_weight"))
    for spec in specs:
        if len(specs) > 1:
            plan[f"adv_{spec.slug}"] = (spec, "advantages")
        for name in extras[spec]:
            if name != "key_weight" or len(specs) > 1:
                plan[f"{name}_{spec.slug}"] = (spec, name)
    return plan


def score_rows(
    rows: Rollouts,
    specs: list[Spec],
    plan: dict[str, tuple[Spec, str]],
    device: str = "cpu",
    eos_ids: tuple[int, ...] = (),
    want_tokens: bool = True,
    pooled: dict[str, Pool] | None = None,
) -> ScoredRows:
    """Score rows of whole groups; the rows of a group may stand in any order.

    pooled: the statistics of the whole input that the specs ask for; None when these rows are the whole.
    """
    rows = share_rewards(rows)
    layout = lay_out(rows)
    batch = to_batch(rows, layout, device, eos_ids, pooled)
    estimates = {spec: estimate(spec, batch) for spec in specs}
    columns = {}
    for name, (spec, result) in plan.items():
        found = estimates[spec]
        values = found.advantages if result == "advantages" else found.columns[result]
        flat = values.cpu().numpy()
        if flat.dtype != bool and not np.isfinite(flat).all():
            raise InputError(f"{spec} gives values that are not finite: its parameters or the rewards are too large")
        columns[name] = layout.to_rows(flat)
    tokens = []
    if want_tokens:
        group_of = rows.group[layout.order[layout.first_row]]
        group_codes = group_of[np.flatnonzero(np.diff(layout.group_index, prepend=-1))]
        tokens = [(s, _token_rows(e.tokens(), group_codes)) for s, e in estimates.items() if e.tokens is not None]
    lengths = np.where(rows.scored, rows.lengths, 0)
    spec_counts = {spec: found.counts for spec, found in estimates.items() if found.counts}
    return ScoredRows(rows.scored, lengths, columns, tokens, _count(rows, batch), spec_counts)


def gather_pools(
    rows: Rollouts, requests: list[PoolRequest], known: dict[str, Pool], device: str = "cpu"
) -> dict[str, Pool]:
    """Gather what a part of the input, rows of whole groups, adds to the statistics of the whole."""
    rows = share_rewards(rows)
    batch = to_batch(rows, lay_out(rows), device, (), known)
    return {request.key: request.gather(batch, known.get(request.key)) for request in requests}


@dataclass(frozen=True)
class Layout:
    """How rows become rollouts: `order` (n_scored,) the scored rows group by group, the parts of a trajectory together.

    first_row (n_rollouts,) indexes `order` at the first part of each rollout; group_index (n_rollouts,).
    gather (n_tokens,) takes flat row tokens to batch order, None where that is the same.
    """

    order: np.ndarray
    first_row: np.ndarray
    group_index: np.ndarray
    gather: np.ndarray | None
    kept: np.ndarray | None

    def to_rows(self, values: np.ndarray) -> np.ndarray:
        """Return per-token results in the order of the scored rows."""
        if self.gather is None:
            return values
        out = np.zeros(len(self.kept), values.dtype)
        out[self.gather] = values
        return out[self.kept]


def lay_out(rows: Rollouts) -> Layout:
    """Order the scored rows by group, join the parts of trajectories, and check that the parts agree."""
    scored = np.flatnonzero(rows.scored)
    part_of = _trajectories(rows, scored)
    order = scored
    if part_of is not None or np.any(np.diff(rows.group[scored]) < 0):
        keys = [scored, rows.group[scored]] if part_of is None else [scored, part_of, rows.group[scored]]
        order = scored[np.lexsort(keys)]
        part_of = None if part_of is None else part_of[np.lexsort(keys)]
    first_row = np.arange(len(order))
    if part_of is not None:
        new = (np.diff(part_of, prepend=-1) != 0) | (np.diff(rows.group[order], prepend=-1) != 0)
        first_row = np.flatnonzero(new)
        _check_parts(rows, order, np.cumsum(new) - 1, first_row)
    group_index = np.cumsum(np.diff(rows.group[order[first_row]], prepend=-1) != 0) - 1
    if len(order) == len(rows) and np.all(np.diff(order) == 1):
        return Layout(order, first_row, group_index, None, None)
    starts = np.cumsum(rows.lengths) - rows.lengths
    sizes = rows.lengths[order]
    gather = np.repeat(starts[order] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    return Layout(order, first_row, group_index, gather, np.repeat(rows.scored, rows.lengths))


def share_rewards(rows: Rollouts) -> Rollouts:
    """Give parts of a trajectory without a reward the reward and verdict of its first part that has one."""
    if rows.trajectory is None or rows.scored.all():
        return rows
    reward, correct, scored = rows.reward.copy(), rows.correct.copy(), rows.scored.copy()
    first: dict[tuple, int] = {}
    names = list(zip(rows.group.tolist(), rows.trajectory.tolist(), strict=True))
    for row in np.flatnonzero(rows.scored).tolist():
        first.setdefault(names[row], row)
    for row in np.flatnonzero(np.isnan(rows.reward)).tolist():
        if names[row] in first and names[row][1] is not None:
            source = first[names[row]]
            reward[row], correct[row], scored[row] = reward[source], correct[source], True
    return replace(rows, reward=reward, correct=correct, scored=scored)


def _trajectories(rows: Rollouts, scored: np.ndarray) -> np.ndarray | None:
    """Number the trajectories by first appearance; None when no rollout_id repeats inside a group."""
    if rows.trajectory is None:
        return None
    seen: dict[tuple, int] = {}
    pairs = zip(rows.group[scored].tolist(), rows.trajectory[scored].tolist(), strict=True)
    numbers = [
        seen.setdefault((group, name if name is not None else i), len(seen)) for i, (group, name) in enumerate(pairs)
    ]
    return np.array(numbers, np.int64) if len(seen) < len(numbers) else None


def _check_parts(rows: Rollouts, order: np.ndarray, rollout: np.ndarray, first_row: np.ndarray) -> None:
    for name, values in (("reward", rows.reward), ("verdict", rows.correct)):
        first = values[order[first_row]][rollout]
        different = np.flatnonzero(values[order] != first)
        if len(different):
            i = different[0]
            row = order[i]
            raise InputError(
                f"rollout_id {rows.trajectory[row]!r} stands in several rows of one group with different {name}s "
                f"({first[i]:g} and {values[row]:g}): parts of one trajectory share one; correct the rows or the ids"
            )


def to_batch(
    rows: Rollouts, layout: Layout, device: str, eos_ids: tuple[int, ...], pooled: dict[str, Pool] | None = None
) -> GroupBatch:
    """Build the GroupBatch of the laid-out rows on a device."""

    def tokens(values: np.ndarray | None):
        if values is None:
            return None
        flat = values if layout.gather is None else values[layout.gather]
        return _tensor(flat).to(device)

    first = layout.order[layout.first_row]
    ends = np.append(
        np.cumsum(rows.lengths[layout.order]) - rows.lengths[layout.order], rows.lengths[layout.order].sum()
    )
    offsets = ends[np.append(layout.first_row, len(layout.order))]
    return GroupBatch(
        token_ids=tokens(rows.token_ids),
        offsets=_tensor(offsets).to(device),
        rewards=_tensor(rows.reward[first]).to(device),
        correct=_tensor(rows.correct[first]).to(device),
        group_index=_tensor(layout.group_index).to(device),
        response_mask=tokens(rows.mask),
        step=None if rows.step is None else _tensor(rows.step[first]).to(device),
        rewards_by_name=None
        if rows.parts is None
        else {name: _tensor(values[first]).to(device) for name, values in rows.parts.items()},
        prompt=None if rows.prompt is None else _tensor(rows.prompt[first]).to(device),
        truncated=None if rows.cut_off is None else _tensor(_any_part(rows.cut_off, layout)).to(device),
        eos_ids=eos_ids,
        pooled=pooled,
        **{name: tokens(values) for name, values in rows.tokens.items()},
    )


def _any_part(flags: np.ndarray, layout: Layout) -> np.ndarray:
    """Tell of each rollout whether a part of it has the flag (n_rollouts,) bool."""
    return np.logical_or.reduceat(flags[layout.order], layout.first_row) if len(layout.order) else flags[:0]


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _token_rows(tokens: dict[str, torch.Tensor], group_codes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the token table of one estimator as arrays, sorted by group and token id."""
    columns = {name: values.cpu().numpy() for name, values in tokens.items()}
    group, token_id = columns["group"], columns["token_id"]
    order = np.argsort(group * (int(token_id.max(initial=0)) + 1) + token_id)
    columns = {name: values[order] for name, values in columns.items()}
    return columns | {"group": group_codes[columns["group"]] if len(group_codes) else columns["group"]}


def _count(rows: Rollouts, batch: GroupBatch) -> dict[str, int]:
    """Count groups by their verdicts; a group with unknown verdicts only, or none scored, is `groups_unknown`."""
    index, correct = batch.group_index, batch.correct.to(torch.int64)
    right = torch.bincount(index[correct == 1], minlength=batch.n_groups)
    wrong = torch.bincount(index[correct == 0], minlength=batch.n_groups)
    alone = batch.group_sizes == 1
    kinds = {
        "groups_mixed": (right > 0) & (wrong > 0),
        "groups_all_correct": ~alone & (right > 0) & (wrong == 0),
        "groups_all_wrong": ~alone & (wrong > 0) & (right == 0),
        "groups_singleton": alone,
    }
    counts = {name: int(chosen.sum()) for name, chosen in kinds.items()}
    n_groups = len(np.unique(rows.group))
    counts["groups_unknown"] = n_groups - sum(counts.values())
    counts |= {"rollouts": len(rows), "groups": n_groups, "tokens": int(rows.lengths.sum())}
    counts["unscored"] = int((~rows.scored).sum())
    counts["without_tokens"] = int((rows.scored & (_policy_tokens(rows) == 0)).sum())
    equal = moments_of(batch, batch.rewards).constant if batch.n_rollouts else torch.zeros(0, dtype=torch.bool)
    counts["groups_mixed_equal_rewards"] = int((kinds["groups_mixed"] & equal).sum())
    counts["groups_one_verdict_unequal_rewards"] = int((~kinds["groups_mixed"] & ~equal).sum())
    return counts


def _policy_tokens(rows: Rollouts) -> np.ndarray:
    """Return the unmasked tokens of each row (n_rows,)."""
    if rows.mask is None:
        return rows.lengths
    running = np.concatenate([[0], np.cumsum(rows.mask)])
    ends = np.cumsum(rows.lengths)
    return running[ends] - running[ends - rows.lengths]


def parse_specs(texts: list[str]) -> list[Spec]:
    """Resolve the estimators of one call; the same slug twice would be the same column."""
    specs = [resolve_spec(text) for text in texts]
    slugs = [spec.slug for spec in specs]
    for spec in specs:
        if slugs.count(spec.slug) > 1:
            raise InputError(f"two estimators would write the columns of {spec.slug!r}; ask for one of them at a time")
    return specs
