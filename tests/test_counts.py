"""Counts of tokens per group: a case worked by hand, a slow obvious version, chunks, threads, and bounded tables."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.stats import counts as counts_module
from ktae_cli.stats.counts import Counts, count_tokens

NUMBERS = ("correct_with", "incorrect_with", "correct_count", "incorrect_count")
LARGEST = 2**31 - 1

# a rollout: verdict and positions (token id, counted or not)
ROLLOUT = st.tuples(
    st.sampled_from([1, 0, -1]),
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 7, 151_935, LARGEST]), st.booleans()), max_size=8),
)
GROUPS = st.lists(st.lists(ROLLOUT, min_size=1, max_size=6), max_size=5)


@pytest.fixture(params=["dense", "renumbered ids", "sorted pairs", "cut presence"])
def route(request, monkeypatch):
    """Take each way through the tables by its limits, so that the input need not be large."""
    if request.param == "renumbered ids":
        monkeypatch.setattr(counts_module, "_SLOT_LIMIT", 3700)  # too few for all ids, enough for those that occur
        monkeypatch.setattr(counts_module, "_SLOTS_PER_TOKEN", 0)
    elif request.param == "sorted pairs":
        monkeypatch.setattr(counts_module, "_SLOT_LIMIT", 0)
        monkeypatch.setattr(counts_module, "_SLOTS_PER_TOKEN", 0)
    elif request.param == "cut presence":
        monkeypatch.setattr(counts_module, "_CELL_LIMIT", 1)
        monkeypatch.setattr(counts_module, "_CELLS_PER_TOKEN", 0)


def count_groups(groups, dtype=torch.int64, masked=True) -> Counts:
    """Count groups of rollouts (verdict, [(token id, counted), ...])."""
    rollouts = [rollout for group in groups for rollout in group]
    positions = [position for _, positions in rollouts for position in positions]
    lengths = torch.tensor([len(positions) for _, positions in rollouts], dtype=torch.int64)
    return count_tokens(
        torch.tensor([token for token, _ in positions], dtype=dtype),
        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        torch.tensor([g for g, group in enumerate(groups) for _ in group], dtype=torch.int64),
        torch.tensor([verdict for verdict, _ in rollouts], dtype=torch.int8),
        counted=torch.tensor([counted for _, counted in positions], dtype=torch.bool) if masked else None,
    )


def count_with_dicts(groups, masked=True):
    """Return {(group, id): numbers} and the pair of each position, None where it is not counted."""
    entries, pairs = {}, []
    for g, group in enumerate(groups):
        mixed = {1, 0} <= {verdict for verdict, _ in group}
        for verdict, positions in group:
            seen = set()
            for token, counted in positions:
                if verdict < 0 or not mixed or (masked and not counted):
                    pairs.append(None)
                    continue
                numbers = entries.setdefault((g, token), dict.fromkeys(NUMBERS, 0))
                side = "correct" if verdict else "incorrect"
                numbers[f"{side}_with"] += token not in seen
                numbers[f"{side}_count"] += 1
                seen.add(token)
                pairs.append((g, token))
    return entries, pairs


def as_dicts(counts: Counts):
    """Return the same of a Counts, and check that no pair has two entries."""
    keys = list(zip(counts.group.tolist(), counts.token_id.tolist(), strict=True))
    assert len(set(keys)) == len(keys)
    numbers = zip(*(getattr(counts, name).tolist() for name in NUMBERS), strict=True)
    entries = {key: dict(zip(NUMBERS, row, strict=True)) for key, row in zip(keys, numbers, strict=True)}
    return entries, [(*keys, None)[entry] for entry in counts.entry_index.tolist()]


def plain(*responses):
    """Make a group of (verdict, ids) with all positions counted."""
    return [(verdict, [(token, True) for token in ids]) for verdict, ids in responses]


def make_large(seed: int, n_groups: int = 12, group_size: int = 10):
    """Draw groups of uneven size with unknown verdicts, masks with holes, and empty rollouts."""
    random = torch.Generator().manual_seed(seed)

    def draw(high: int, n: int) -> list[int]:
        return torch.randint(high, (n,), generator=random).tolist()

    def draw_rollout(verdict: int):
        n = draw(40, 1)[0]
        return verdict, [(4 * token // 3, hole > 0) for token, hole in zip(draw(300, n), draw(8, n), strict=True)]

    return [[draw_rollout(v % 3 - 1) for v in draw(5, 1 + draw(group_size, 1)[0])] for _ in range(n_groups)]


def test_count_tokens_of_the_worked_example():
    group = plain((1, [5, 7, 9]), (1, [5, 7, 8]), (0, [5, 6, 9]), (0, [5, 6, 6, 9]))
    counts = count_groups([group], masked=False)
    rows = {
        token: numbers
        for token, *numbers in zip(
            counts.token_id.tolist(), *(getattr(counts, name).tolist() for name in NUMBERS), strict=True
        )
    }
    assert rows == {5: [2, 2, 2, 2], 6: [0, 2, 0, 3], 7: [2, 0, 2, 0], 8: [1, 0, 1, 0], 9: [1, 2, 1, 2]}
    assert counts.token_id[counts.entry_index.long()].tolist() == [5, 7, 9, 5, 7, 8, 5, 6, 9, 5, 6, 6, 9]
    assert counts.group.tolist() == [0] * 5


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.booleans())
def test_count_tokens_equals_the_slow_version(groups, masked):
    counts = count_groups(groups, masked=masked)
    assert as_dicts(counts) == count_with_dicts(groups, masked)
    assert counts.group.tolist() == sorted(counts.group.tolist())


@pytest.mark.parametrize("seed", range(4))
def test_count_tokens_is_the_same_on_every_route(route, seed):
    groups = make_large(seed)
    assert as_dicts(count_groups(groups)) == count_with_dicts(groups)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_count_tokens_takes_the_largest_id(dtype):
    counts = count_groups([plain((1, [LARGEST, 0]), (0, [LARGEST])), plain((0, [0]), (1, [LARGEST]))], dtype)
    pairs = list(zip(counts.group.tolist(), counts.token_id.tolist(), strict=True))
    assert sorted(pairs) == [(0, 0), (0, LARGEST), (1, 0), (1, LARGEST)]
    assert all(getattr(counts, field.name).dtype == torch.int64 for field in fields(counts)[:-1])


def test_count_tokens_leaves_out_one_class_groups_and_unknown_rollouts():
    groups = [
        plain((1, [1]), (1, [2])),
        plain((0, [1])),
        plain((1, [3]), (-1, [3]), (0, [4])),
        plain((-1, [1]), (0, [1])),
    ]
    entries, pairs = as_dicts(count_groups(groups))
    assert set(entries) == {(2, 3), (2, 4)}
    assert pairs == [None, None, None, (2, 3), None, (2, 4), None, None]


@pytest.mark.parametrize(
    "groups", [[], [plain((1, []), (0, []))], [plain((1, [1]))]], ids=["none", "empty", "one class"]
)
def test_count_tokens_without_entries_points_past_the_last(groups):
    counts = count_groups(groups)
    assert len(counts.token_id) == 0
    assert counts.entry_index.tolist() == [0] * len(counts.entry_index)


def test_count_tokens_of_a_group_larger_than_one_table():
    group = plain(*((r % 2, [1, 2 + r % 3]) for r in range(900)))
    entries, pairs = count_with_dicts([group])
    assert as_dicts(count_groups([group])) == (entries, pairs)
    assert entries[0, 1] == {"correct_with": 450, "incorrect_with": 450, "correct_count": 450, "incorrect_count": 450}


def test_count_tokens_does_not_depend_on_the_chunks():
    groups = make_large(seed=9)
    whole = as_dicts(count_groups(groups))
    entries, pairs = {}, []
    for first in range(0, len(groups), 5):
        part_entries, part_pairs = as_dicts(count_groups(groups[first : first + 5]))
        entries |= {(g + first, token): numbers for (g, token), numbers in part_entries.items()}
        pairs += [pair and (pair[0] + first, pair[1]) for pair in part_pairs]
    assert (entries, pairs) == whole


def test_count_tokens_gives_the_same_entries_from_eight_threads():
    inputs = [make_large(seed) for seed in range(8)]
    expected = [count_groups(groups) for groups in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for counts, wanted in zip(pool.map(count_groups, inputs), expected, strict=True):
                for field in fields(counts):
                    assert torch.equal(getattr(counts, field.name), getattr(wanted, field.name)), field.name


def test_sort_entries_undoes_the_order_of_racing_writes():
    entry_index, last = torch.tensor([1, 0, 2, 1, 3], dtype=torch.int32), torch.tensor([1, 3, 2])
    entry_index, last = counts_module._sort_entries(entry_index, last)
    assert last.tolist() == [1, 2, 3]
    assert entry_index.tolist() == [2, 0, 1, 2, 3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_count_tokens_gives_the_same_entries_on_cuda():
    groups = make_large(seed=3)
    expected = count_groups(groups)
    with torch.device("cuda"):
        counts = count_groups(groups)
    for field in fields(counts):
        assert torch.equal(getattr(counts, field.name).cpu(), getattr(expected, field.name)), field.name
