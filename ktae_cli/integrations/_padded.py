"""From the padded matrices of a trainer to a GroupBatch and back, for every estimator."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import resolve_spec, scope
from ktae_cli.estimators._fixed_gate import FixedGate, gated_estimate
from ktae_cli.estimators.base import estimate
from ktae_cli.names import Spec

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_TOKENS = 1 << 17
"""Whole groups of about so many tokens are scored at once: their tables stay in the cache."""


@dataclass(frozen=True)
class PaddedRollouts:
    """Rollouts as a trainer holds them, one row each; T is the length of the longest response.

    responses (n, T) integers. inside (n, T) bool: false where a response is padded. mask (n, T) bool: true where the
    policy sampled, None = all of `inside`. rewards (n,) float64, NaN unknown. correct (n,) int8: 1 right, 0 wrong,
    -1 unknown. groups (n,) int64: any numbers, in any order. trajectories (n,) int64: rows of a group that share one
    are parts of one rollout, which counts once, with the reward and verdict of its first row; None = each row is one.
    columns: further canonical columns, each (n, T).
    """

    responses: "Tensor"
    inside: "Tensor"
    mask: "Tensor | None"
    rewards: "Tensor"
    correct: "Tensor"
    groups: np.ndarray
    trajectories: np.ndarray | None = None
    columns: "dict[str, Tensor]" = field(default_factory=dict)


def padded_advantages(
    spec: str | Spec, rows: PaddedRollouts, gate: FixedGate | None = None, chunk_tokens: int = CHUNK_TOKENS
) -> "Tensor":
    """Return the advantages of a spec (n, T) float32, 0 at padding, off the mask and where the reward is unknown.

    They are those of `ktae score` on the same rollouts. Estimators that pool over the batch take these rows as the
    whole batch of a step; gate: the evidence of a spec such as ktae(gate=0.05), instead of that of these rows.
    """
    import torch

    spec = resolve_spec(spec)
    whole = scope(spec) == "batch"
    out = torch.zeros(rows.responses.shape, dtype=torch.float32, device=rows.responses.device)
    lengths = rows.inside.sum(1).cpu().numpy()
    for part in _whole_groups(rows, lengths, rows.inside.numel() if whole else chunk_tokens):
        taken = _rows_at(part)
        batch = _batch(rows, part, lengths[part])
        found = gated_estimate(spec, batch, gate) if gate else estimate(spec, batch)
        out[taken] = out[taken].masked_scatter_(rows.inside[taken], found.advantages)
    return out


def _whole_groups(rows: PaddedRollouts, lengths: np.ndarray, chunk_tokens: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the rows with a reward, whole groups at a time, the parts of a trajectory together."""
    known = np.flatnonzero(~rows.rewards.isnan().cpu().numpy())
    keys = [rows.groups[known]] if rows.trajectories is None else [rows.trajectories[known], rows.groups[known]]
    order = known[np.lexsort(keys)]
    if not len(order):
        return
    before = np.concatenate([[0], np.cumsum(lengths[order])])
    start = 0
    for stop in [*(np.flatnonzero(np.diff(rows.groups[order])) + 1).tolist(), len(order)]:
        if before[stop] - before[start] >= chunk_tokens or stop == len(order):
            yield order[start:stop]
            start = stop


def _rows_at(part: np.ndarray) -> "slice | Tensor":
    """Return a slice where the rows stand together, as trainers hold them: a view instead of a copy."""
    import torch

    if part[-1] - part[0] + 1 == len(part) and (np.diff(part) == 1).all():
        return slice(int(part[0]), int(part[-1]) + 1)
    return torch.from_numpy(part)


def _batch(rows: PaddedRollouts, part: np.ndarray, lengths: np.ndarray) -> GroupBatch:
    import torch

    device, taken = rows.responses.device, _rows_at(part)
    inside = rows.inside[taken]
    groups = rows.groups[part]
    new = np.diff(groups, prepend=groups[0] - 1) != 0
    index = np.cumsum(new) - 1
    if rows.trajectories is not None:
        new |= np.diff(rows.trajectories[part], prepend=-1) != 0
        first = np.flatnonzero(new)
    else:
        first = np.arange(len(part))
    ends = np.concatenate([[0], np.cumsum(lengths)])

    def flat(matrix: "Tensor") -> "Tensor":
        if device.type != "cpu":
            return matrix[taken][inside]
        return torch.from_numpy(matrix[taken].numpy()[inside.numpy()])  # a twentieth of torch's time

    def of_rollouts(values: "Tensor") -> "Tensor":
        return values[torch.from_numpy(part[first]).to(values.device)].to(device)

    return GroupBatch(
        token_ids=flat(rows.responses),
        offsets=torch.from_numpy(ends[np.append(first, len(part))]).to(device),
        rewards=of_rollouts(rows.rewards),
        correct=of_rollouts(rows.correct),
        group_index=torch.from_numpy(index[first]).to(device),
        response_mask=None if rows.mask is None else flat(rows.mask),
        **{name: flat(matrix.float()) for name, matrix in rows.columns.items()},
    )
