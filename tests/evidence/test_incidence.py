"""Which rollouts tell something and which units they hold, against dictionaries filled row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.evidence.incidence import (
    Pairs,
    informative_rollouts,
    only_informative,
    only_rollouts,
    only_units,
    rollouts_of_prompts,
)
from ktae_cli.evidence.labels import Labels

KEYS = ["b", "a", "d", "c"]
PROMPT_OF = np.array([7, 7, 3, 9])


def labels_of(rows: list[tuple[int, int, int]]) -> Labels:
    """Return the labels of rows (group, rollout of the group, verdict)."""
    group, rollout, correct = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    first: dict[tuple[int, int], int] = {}
    trajectory = [
        first.setdefault(key, at) for at, key in enumerate(zip(group.tolist(), rollout.tolist(), strict=True))
    ]
    prompt = np.where(group >= 0, PROMPT_OF[group], -5)
    outcome = np.where(correct >= 0, correct, np.nan)
    return Labels(group, correct.astype(np.int8), outcome, rollout == 1, prompt, np.array(trajectory))


rows = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 4), st.integers(-1, 1)), min_size=1, max_size=30
)  # group, rollout, verdict


def verdicts_of(rows: list[tuple[int, int, int]]) -> dict[int, dict[int, int]]:
    """Return group -> rollout -> the first known verdict, row by row."""
    found: dict[int, dict[int, int]] = {}
    for group, rollout, correct in rows:
        if group >= 0 and correct >= 0:
            found.setdefault(group, {}).setdefault(rollout, correct)
    return found


@settings(max_examples=60, deadline=None)
@given(rows)
def test_informative_rollouts_are_those_of_mixed_groups(rows):
    found = informative_rollouts(labels_of(rows), KEYS)
    mixed = {group: v for group, v in verdicts_of(rows).items() if len(set(v.values())) == 2}
    order = sorted(mixed, key=lambda group: (PROMPT_OF[group], KEYS[group]))
    assert found.group_code.tolist() == order
    assert found.prompt.tolist() == [PROMPT_OF[group] for group in order]
    assert found.strata.sizes.tolist() == [len(mixed[group]) for group in order]
    assert found.strata.n_right.tolist() == [sum(mixed[group].values()) for group in order]
    assert len(found) == sum(map(len, mixed.values()))
    for at, (group, rollout, _) in enumerate(rows):
        number = found.of_row[at]
        if rollout in mixed.get(group, {}):
            assert found.group_code[found.strata.group[number]] == group
            assert found.right[number] == mixed[group][rollout]
        else:
            assert number == -1
    for group in order:
        numbers = {found.of_row[at] for at, row in enumerate(rows) if row[0] == group and row[1] in mixed[group]}
        assert len(numbers) == len(mixed[group])


@settings(max_examples=40, deadline=None)
@given(rows)
def test_rollouts_of_prompts_keeps_groups_of_one_verdict(rows):
    found = rollouts_of_prompts(labels_of(rows), KEYS, np.array([7]))
    known = {group: v for group, v in verdicts_of(rows).items() if PROMPT_OF[group] == 7}
    assert dict(zip(found.group_code.tolist(), found.strata.sizes.tolist(), strict=True)) == {
        group: len(v) for group, v in known.items()
    }


def test_a_numeric_outcome_keeps_the_groups_in_which_it_differs():
    labels = Labels(
        np.array([0, 0, 1, 1, 2, 2]), np.array([1, 1, 1, 0, -1, -1], np.int8),
        np.array([0.5, 0.7, 1.0, 1.0, np.nan, 2.0]), np.zeros(6, bool), np.arange(6) // 2, np.arange(6),
    )  # fmt: skip
    assert informative_rollouts(labels, KEYS, by_outcome=True).group_code.tolist() == [0]
    assert informative_rollouts(labels, KEYS).group_code.tolist() == [1]


MIXED = [(0, 0, 1), (0, 1, 0), (0, 2, 0), (2, 0, 1), (2, 1, 0), (2, 1, 0), (3, 0, 1), (3, 1, 0)]
occurrences = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, len(MIXED) - 1), st.integers(-8, 8)), max_size=60
)  # unit, row, weight


def gathered(occurrences, parts: int = 3):
    """Return the incidence of occurrences, handed in a few at a time, and a dictionary of the same."""
    rollouts = informative_rollouts(labels_of(MIXED), KEYS)
    pairs = Pairs(rollouts)
    slow: dict[tuple[int, int], list[int]] = {}
    for part in range(parts):
        unit, row, weight = (np.array([o[i] for o in occurrences[part::parts]], np.int64) for i in range(3))
        rollout = rollouts.of_row[row] if len(row) else row
        pairs.add(unit, rollout, weight.astype(np.float32))
        pairs.add_lengths(rollout, np.full(len(rollout), 2))
        for u, r, w in zip(unit.tolist(), rollout.tolist(), weight.tolist(), strict=True):
            slow.setdefault((u, r), []).append(w)
    return pairs.incidence(), slow


def pairs_of(incidence) -> list[tuple[int, int]]:
    """Return the pairs (code, rollout) in their order."""
    return list(zip(incidence.code[incidence.unit].tolist(), incidence.rollout.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(occurrences)
def test_pairs_are_distinct_sorted_and_counted(occurrences):
    found, slow = gathered(occurrences)
    assert pairs_of(found) == sorted(slow)
    units = sorted({unit for unit, _ in slow})
    assert found.code.tolist() == units
    weights = [[w for (u, _), ws in slow.items() if u == unit for w in ws] for unit in units]
    assert found.occurrences.tolist() == [len(w) for w in weights]
    assert found.key_weight.tolist() == pytest.approx([np.mean(w) for w in weights])
    for rollout in range(7):
        assert found.length[rollout] == 2 * sum(len(ws) for (_, r), ws in slow.items() if r == rollout)


@settings(max_examples=40, deadline=None)
@given(occurrences, st.randoms(use_true_random=False))
def test_pairs_do_not_depend_on_the_order_of_rows(occurrences, random):
    first, _ = gathered(occurrences)
    second, _ = gathered(random.sample(occurrences, len(occurrences)), parts=2)
    assert pairs_of(first) == pairs_of(second)
    assert (first.occurrences == second.occurrences).all() and (first.length == second.length).all()


@settings(max_examples=60, deadline=None)
@given(occurrences, st.lists(st.booleans(), min_size=7, max_size=7))
def test_only_rollouts_is_the_incidence_of_what_is_left(occurrences, taken):
    whole, _ = gathered(occurrences)
    taken = np.array(taken)
    part = only_rollouts(whole, taken)
    old = np.flatnonzero(taken)
    assert [(unit, old[rollout]) for unit, rollout in pairs_of(part)] == [p for p in pairs_of(whole) if taken[p[1]]]
    groups = whole.rollouts.strata.group[taken]
    assert part.rollouts.group_code.tolist() == whole.rollouts.group_code[np.unique(groups)].tolist()
    assert part.rollouts.strata.sizes.tolist() == np.unique(groups, return_counts=True)[1].tolist()
    assert part.rollouts.right.tolist() == whole.rollouts.right[taken].tolist()
    assert part.rollouts.strata.n_right.sum() == whole.rollouts.right[taken].sum()
    rows = whole.rollouts.of_row
    assert [old[r] if r >= 0 else -1 for r in part.rollouts.of_row] == [r if r >= 0 and taken[r] else -1 for r in rows]
    mixed = only_informative(part).rollouts.strata
    assert ((mixed.n_right > 0) & (mixed.n_right < mixed.sizes)).all()


@settings(max_examples=40, deadline=None)
@given(occurrences, st.sets(st.integers(0, 5)))
def test_only_units_keeps_their_pairs(occurrences, units):
    whole, _ = gathered(occurrences)
    part = only_units(whole, np.isin(whole.code, sorted(units)))
    assert pairs_of(part) == [pair for pair in pairs_of(whole) if pair[0] in units]
    assert part.occurrences.tolist() == [
        n for unit, n in zip(whole.code.tolist(), whole.occurrences.tolist(), strict=True) if unit in units
    ]
