"""Which rollouts hold which token ids, over the whole input: what evidence from other prompts is computed from."""

import threading
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators._before import written_before
from ktae_cli.estimators._ktae_family import class_totals, counts_of, pairs_of, verdicts_of
from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.cross_fitted import FOLDS, Presences, UnitEvidence, cross_fitted, fold_of

_SOLVING = threading.Lock()


class _Part(NamedTuple):
    """Mixed groups of a part of the input, with their rollouts of known verdict.

    prompt (n_groups,) int64; content (n_groups,) uint64, a digest of all that counts; size (n_groups,) int64;
    length, right, truncated, digest (n_rollouts,) group by group; token, rollout (n_pairs,) int32: 8 bytes a pair.
    """

    prompt: np.ndarray
    content: np.ndarray
    size: np.ndarray
    length: np.ndarray
    right: np.ndarray
    truncated: np.ndarray
    digest: np.ndarray
    token: np.ndarray
    rollout: np.ndarray


class PresencePool:
    """Distinct (token id, rollout) of mixed groups; what is computed from it does not depend on cuts and orders."""

    complete = True

    def __init__(self, batch: GroupBatch, before: str = "none"):
        self.before = before
        part = _part(batch, before)
        mixed = _mixed(written_before(batch, before))
        self.parts = [part._replace(prompt=group_prompts(batch, before)[mixed].cpu().numpy())]
        self.known: dict[bool, UnitEvidence] = {}

    def merge(self, other: Self) -> Self:
        """Return the presences of both."""
        self.parts += other.parts
        return self

    def evidence(self, given_length: bool) -> UnitEvidence:
        """Return the evidence on the token ids, computed once for all specs, chunks and threads."""
        with _SOLVING:
            if given_length not in self.known:
                self.known[given_length] = cross_fitted(_in_order(self.parts), given_length)
            return self.known[given_length]

    def folds(self, batch: GroupBatch) -> Tensor:
        """Return the fold of each group (n_groups,) int64."""
        return fold_of(group_prompts(batch, self.before), FOLDS)


def group_prompts(batch: GroupBatch, before: str = "none") -> Tensor:
    """Return the prompt of each group (n_groups,) int64, the smallest number of its rollouts.

    Without prompt numbers each mixed group is a prompt of its own, numbered by what it holds.
    """
    found = torch.zeros(batch.n_groups, dtype=torch.int64, device=batch.offsets.device)
    if batch.prompt is not None:
        return found.scatter_reduce(0, batch.group_index, batch.prompt, "amin", include_self=False)
    found[_mixed(written_before(batch, before))] = torch.from_numpy(_part(batch, before).prompt).to(found.device)
    return found


def _mixed(batch: GroupBatch) -> Tensor:
    totals = class_totals(batch)
    return (totals.n_correct > 0) & (totals.n_incorrect > 0)


def _part(batch: GroupBatch, before: str) -> _Part:
    """Return the mixed groups of a batch; the prompt of each is a number of its content."""
    key = ("presences", before)
    if key not in batch.memo:
        batch.memo[key] = _gathered(batch, written_before(batch, before))
    return batch.memo[key]


def _gathered(batch: GroupBatch, counted: GroupBatch) -> _Part:
    """Gather what stands where `counted` counts, beside the lengths of the whole responses."""
    live = _mixed(counted)[batch.group_index] & (verdicts_of(counted) >= 0)
    counts = counts_of(counted)
    entry, rollout, _, _ = pairs_of(counted, counts)
    token = counts.token_id[entry].to(torch.int32).cpu().numpy()
    place = (torch.cumsum(live, 0) - 1)[rollout].to(torch.int32).cpu().numpy()
    truncated = torch.zeros_like(live) if batch.truncated is None else batch.truncated
    columns = (batch.counted_lengths, batch.correct == 1, truncated)
    length, right, cut = (column[live].cpu().numpy() for column in columns)
    size = torch.bincount(batch.group_index[live], minlength=batch.n_groups)
    size = size[size > 0].cpu().numpy()
    digest = np.zeros(len(length), np.uint64)
    np.add.at(digest, place, _mix(token.astype(np.uint64)))
    first = np.cumsum(size) - size
    rollouts = _mix(digest ^ _mix(_facts(length, right, cut)))
    content = np.add.reduceat(rollouts, first) if len(first) else digest
    prompt = (content >> np.uint64(1)).astype(np.int64)
    return _Part(prompt, content, size, length, right, cut, digest, token, place)


def _facts(length: np.ndarray, right: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """Put what is known of a rollout beside its tokens into one number (n_rollouts,) uint64."""
    return length.astype(np.uint64) * np.uint64(4) + right * np.uint64(2) + truncated


def _mix(x: np.ndarray) -> np.ndarray:
    """Return well mixed 64 bits of each value (splitmix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _in_order(parts: list[_Part]) -> Presences:
    """Join parts in an order that depends on nothing but what they hold.

    Groups by prompt and content, rollouts by length, verdict, truncation and digest; what is equal in all of it is the
    same to every statistic.
    """
    joined = _Part(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    n_rollouts = np.array([len(part.length) for part in parts])
    rollout = joined.rollout + np.repeat(np.cumsum(n_rollouts) - n_rollouts, [len(part.token) for part in parts])
    group = np.repeat(np.arange(len(joined.size)), joined.size)
    facts = _facts(joined.length, joined.right, joined.truncated)
    order = np.lexsort((joined.digest, facts, group, joined.content[group], joined.prompt[group]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    new = np.flatnonzero(np.diff(group[order], prepend=-1) != 0)
    right = joined.right[order].astype(np.uint8)
    sizes = np.diff(np.append(new, len(order)))
    n_right = np.add.reduceat(right.astype(np.int64), new) if len(new) else sizes
    pair = np.sort(joined.token.astype(np.int64) << 32 | rank[rollout])
    return Presences(
        Strata(sizes, n_right), joined.prompt[group[order][new]], right, joined.length[order],
        joined.truncated[order], pair >> 32, pair & 0xFFFFFFFF,
    )  # fmt: skip
