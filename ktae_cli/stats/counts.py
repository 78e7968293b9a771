"""Count, per group and token id, the right and wrong rollouts that hold the token and its occurrences in them.

Every position writes its number into the slot of its (group, token id) pair; the one that stays stands for the pair.
Nothing is sorted unless ids and groups are too many for a table of slots. All operations are torch's, on whole arrays,
the same on CPU and CUDA.
"""

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

# The claim table has at most this many slots; ids are renumbered where it would need more. 64 MB a thread are kept.
_SLOT_LIMIT, _SLOTS_PER_TOKEN = 1 << 24, 16
# The presence tables have at most this many cells of one byte; where they would need more, they are made in parts.
_CELL_LIMIT, _CELLS_PER_TOKEN = 1 << 25, 64
_SCRATCH = threading.local()

# glibc keeps freed memory up to twice the largest block that was freed, at most 64 MB. Freeing this one, which is never
# touched, spares every later call the page faults of its temporaries, half of its time at 128k tokens.
torch.empty(8 << 20, dtype=torch.uint8)


@dataclass(frozen=True)
class Counts:
    """Hold one entry per distinct (group, token id) pair among the counted positions; int64 but for entry_index.

    Entries stand in the order of their last counted position, so that groups ascend.
    """

    group: Tensor  # (n_entries,)
    token_id: Tensor  # (n_entries,)
    correct_with: Tensor  # (n_entries,) right rollouts of the group that contain the token
    incorrect_with: Tensor  # (n_entries,) wrong rollouts of the group that contain the token
    correct_count: Tensor  # (n_entries,) occurrences in right rollouts
    incorrect_count: Tensor  # (n_entries,) occurrences in wrong rollouts
    entry_index: Tensor  # (n_tokens,) int32, the entry of each position; n_entries where it is not counted


def count_tokens(
    token_ids: Tensor, offsets: Tensor, group_index: Tensor, correct: Tensor, *, counted: Tensor | None = None
) -> Counts:
    """Count the tokens of whole groups, fewer than 2**29 tokens in all; a CPU does best with some 128k in a call.

    token_ids (n_tokens,) int32 or int64 in 0..2**31-1; offsets (n_rollouts + 1,) int64 from 0 to n_tokens; group_index
    (n_rollouts,) int64, dense and sorted; correct (n_rollouts,) int8, 1 right, 0 wrong, -1 unknown; counted (n_tokens,)
    bool, all where absent. Unknown rollouts and groups without a right or without a wrong rollout are not counted.
    """
    n_groups = int(group_index[-1]) + 1 if len(group_index) else 0
    verdicts = torch.bincount(group_index * 3 + correct + 1, minlength=3 * n_groups).view(-1, 3) > 0
    live = (verdicts[:, 1] & verdicts[:, 2])[group_index] & (correct >= 0)
    # int32 halves the traffic of everything per position; only scatter indices have to be int64
    rollout = torch.repeat_interleave(offsets[1:] - offsets[:-1], output_size=len(token_ids)).int()
    key, sink = _make_keys(token_ids, rollout, group_index.masked_fill(~live, n_groups), n_groups, counted)
    entry_index, last = _claim_entries(key, sink)
    n_entries = len(last)
    # rollouts that are not live reach column n_entries alone, so neither their verdict nor their row matters
    right = correct == 1
    cell = torch.add(right.int().index_select(0, rollout), entry_index, alpha=2)
    incorrect_count, correct_count = torch.bincount(cell, minlength=2 * n_entries + 2).view(-1, 2)[:n_entries].unbind(1)
    row = _rank_rollouts(group_index, right).masked_fill_(~live, 0)
    correct_with, incorrect_with = _count_presence(entry_index, n_entries, rollout, row, right)
    return Counts(
        group=group_index.index_select(0, rollout.index_select(0, last)),
        token_id=token_ids.index_select(0, last).long(),
        correct_with=correct_with,
        incorrect_with=incorrect_with,
        correct_count=correct_count,
        incorrect_count=incorrect_count,
        entry_index=entry_index,
    )


def _make_keys(
    token_ids: Tensor, rollout: Tensor, group: Tensor, n_groups: int, counted: Tensor | None
) -> tuple[Tensor, int]:
    """Number the (group, token id) pairs: keys (n_tokens,) int64 below `sink`, and `sink` where not counted.

    group (n_rollouts,) holds n_groups for rollouts that do not count.
    """
    ids = token_ids.int()
    n_ids = int(ids.max()) + 1 if len(ids) else 0
    limit = min(max(_SLOT_LIMIT, _SLOTS_PER_TOKEN * len(ids)), 1 << 30)
    if n_groups * n_ids > limit >= n_ids:
        ids, last = _claim_entries(ids.long(), n_ids)  # number the ids that occur
        n_ids = len(last)
    sink = n_groups * n_ids
    if sink <= limit:
        # the groups of one id lie side by side: groups share their frequent ids, and so cache lines
        first = torch.where(group < n_groups, group, sink).int()
        key = first.index_select(0, rollout).add_(ids, alpha=n_groups).clamp_max_(sink)
    else:
        distinct, key = torch.unique(group.index_select(0, rollout) * n_ids + ids, return_inverse=True)
        sink = int(torch.searchsorted(distinct, sink))  # the pairs of group n_groups come last
        key = key.clamp_max_(sink)
    if counted is not None:
        key = torch.where(counted, key, sink)
    return key.long(), sink


def _claim_entries(key: Tensor, sink: int) -> tuple[Tensor, Tensor]:
    """Give the entry of each position, (n_tokens,) int32, and the last position of each entry, (n_entries,) int64."""
    n_tokens = len(key)
    position = torch.arange(n_tokens, dtype=torch.int32, device=key.device)
    slot = _take_slots(sink + 1, key.device).scatter_(0, key, position)
    slot[sink] = n_tokens  # stands for no position, so that the sink is no entry
    holder = slot.index_select(0, key)
    # before[i] holders precede position i: the number of a holder, and for n_tokens that of all holders
    before = torch.zeros(n_tokens + 1, dtype=torch.int32, device=key.device)
    torch.cumsum(holder == position, 0, dtype=torch.int32, out=before[1:])
    n_entries = int(before[-1])
    entry_index = before.index_select(0, holder)
    # written in order on a CPU, so that the last position stays; where writes race (CUDA) some position of the entry
    last = torch.zeros(n_entries + 1, dtype=torch.int32, device=key.device)
    last = last.scatter_(0, entry_index.long(), position)[:n_entries].long()
    return _sort_entries(entry_index, last)


def _sort_entries(entry_index: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Order entries by their last position, for where writes race (CUDA) any position may hold the slot.

    Writes in order (CPU) leave the last position, and the entries are in order already.
    """
    if bool((last[1:] > last[:-1]).all()):
        return entry_index, last
    last, order = last.sort()
    number = torch.full((len(last) + 1,), len(last), dtype=torch.int32, device=last.device)
    number[order] = torch.arange(len(last), dtype=torch.int32, device=last.device)
    return number.index_select(0, entry_index), last


def _take_slots(size: int, device: torch.device) -> Tensor:
    """Return this thread's claim table, (size,) int32 of any content: a slot is written before it is read."""
    slot = getattr(_SCRATCH, "slot", None)
    if slot is None or len(slot) < size or slot.device != device:
        slot = torch.empty(1 << (size - 1).bit_length(), dtype=torch.int32, device=device)
        if size <= _SLOT_LIMIT:
            _SCRATCH.slot = slot
    return slot[:size]


def _count_presence(
    entry_index: Tensor, n_entries: int, rollout: Tensor, row: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Count per entry the right and the wrong rollouts that contain it, each (n_entries,) int64.

    Each verdict has a table of 0 and 1 with a row per rollout of a group (`row`, (n_rollouts,), numbers the right and
    the wrong ones of a group apart) and a column per entry. Tables are cut to 127 rows, the most that an int8 sum can
    hold, and to a bounded size.
    """
    width = n_entries + 1
    n_rows = int(row.max()) + 1 if len(row) else 0
    limit = min(max(_CELL_LIMIT, _CELLS_PER_TOKEN * len(entry_index)), 1 << 30)
    height = max(1, min(n_rows, 127, limit // (2 * width)))
    one = torch.ones(1, dtype=torch.int8, device=row.device).expand(len(entry_index))
    counts = torch.zeros((2, n_entries), dtype=torch.int64, device=row.device)
    for top in range(0, n_rows, height):
        inside = (row >= top) & (row < top + height)
        start = torch.where(inside, row - top, height).add_(right, alpha=height + 1) * width  # others: a spare row
        cell = start.int().index_select(0, rollout).add_(entry_index).long()
        table = torch.zeros(2 * (height + 1) * width, dtype=torch.int8, device=row.device).scatter_(0, cell, one)
        counts += table.view(2, -1, width)[:, :height, :n_entries].sum(1, dtype=torch.int8)
    return counts[1], counts[0]


def _rank_rollouts(group_index: Tensor, right: Tensor) -> Tensor:
    """Number the right rollouts of each group from 0, and so the others (n_rollouts,) int64."""
    first = torch.searchsorted(group_index, group_index)
    rights = right.cumsum(0) - right.long()  # before each rollout, over all groups
    rights -= rights[first]
    place = torch.arange(len(right), device=right.device) - first
    return torch.where(right, rights, place - rights)
