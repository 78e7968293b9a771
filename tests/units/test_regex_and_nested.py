"""What patterns find, and n-grams that are one event."""

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.token_text import BytesDecoder
from ktae_cli.units.choice import units_of
from ktae_cli.units.nested import drop_nested
from ktae_cli.units.regex import has_group
from tests.units.test_words import DECODER, PIECES, runs_slowly
from tests.units.texts import batch_of, named, texts_batch


def read(pattern, rows, **fields):
    batch, decoder = texts_batch(rows, **fields)
    reader = units_of(f"regex:{pattern}", decoder)
    return named(reader, reader.read(batch))


def test_a_match_is_a_unit_at_its_first_token():
    rows = [["x = 1", "2", ", y = ", "3"], ["12", " or", " 12"]]
    assert read("[0-9]+", rows) == [("12", 0, 0), ("3", 0, 3), ("12", 1, 0), ("12", 1, 2)]


def test_the_first_group_is_the_unit_and_the_match_the_place():
    rows = [["The ans", "wer is ", "4", "2."]]
    assert read("answer is ([0-9]+)", rows) == [("42", 0, 0)]
    assert read("answer is (?:[0-9]+)", rows) == [("answer is 42", 0, 0)]
    assert read("(x)?[0-9]", rows) == []


def test_matches_end_at_masked_tokens_and_rows():
    rows = [["a", "b", "a"], ["b"]]
    assert read("[ab]+", rows, mask=[[True, False, True], [True]]) == [("a", 0, 0), ("a", 0, 2), ("b", 1, 0)]
    assert read(r"(?s).+", [["a"], ["\n", "b"]]) == [("a", 0, 0), ("\nb", 1, 0)]
    assert read(r"\n", [["a"], ["b"], ["c\n"]]) == [("\n", 2, 0)]
    assert read("^b", [["a", "b"], ["b", "b"]]) == [("b", 1, 0)]


def test_control_characters_and_broken_bytes_do_not_shift_places():
    assert read("b", [["\x01\x02", "\x03a", b"\xff", "é", "b"]]) == [("b", 0, 4)]
    assert read(r"\x1a", [["a", b"\xff", "\x01"]]) == [("�", 0, 1), ("�", 0, 2)]


def test_a_pattern_that_backtracks_does_not_hang():
    start = time.process_time()
    assert read(r"(?:a+)+\$", [["a" * 5000] * 20]) == []
    assert time.process_time() - start < 5


def test_groups_are_those_of_the_pattern():
    assert has_group("(a)|b")
    assert has_group("(?P<name>a)")
    assert not has_group(r"(?:a)|\(b\)")


def test_the_blanks_that_a_tokenizer_drops_are_not_searched():
    batch, plain = texts_batch([[" The", " The"]])
    stripping = BytesDecoder(plain.tokenizer, plain.to_bytes, strip=1)
    for decoder, expected in ((plain, [" The The"]), (stripping, ["The The"])):
        reader = units_of("regex:^.*", decoder)
        assert [text for text, _, _ in named(reader, reader.read(batch))] == expected


PATTERNS = ["[a-z]+", "(?i)wait,? (.)", "[0-9](.)?", r"(?s).", "é|位", r"\n+", "(a|b|d)|x", "[^ ]+ ?"]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, len(PIECES) - 1), max_size=14), max_size=4),
    st.sampled_from(PATTERNS),
    st.integers(0, 2**32),
)
def test_matches_are_those_of_python_on_each_run(rows, pattern, seed):
    random = np.random.default_rng(seed)
    masks = [(random.random(len(row)) < 0.8).tolist() for row in rows]
    expected = []
    for number, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        for start, run in runs_slowly(row, mask):
            data = [DECODER.token(token_id).data for token_id in run]
            text = b"".join(data).decode("utf-8", "surrogateescape")
            text = "".join("\x1a" if "\udc80" <= c <= "\udcff" else c for c in text)
            widths = np.cumsum([0, *(1 if c == "\x1a" else len(c.encode()) for c in text)])
            token_ends = np.cumsum([len(part) for part in data])
            for match in re.finditer(pattern, text):
                unit = match[match.re.groups]
                if unit:
                    token = int(np.searchsorted(token_ends, widths[match.start()], "right"))
                    expected.append((unit.replace("\x1a", "�"), number, start + token))
    reader = units_of(f"regex:{pattern}", DECODER)
    assert named(reader, reader.read(batch_of(rows, masks))) == expected


def nested(grams, rollouts, p_value, share=0.9):
    unit = np.concatenate([np.full(len(r), u) for u, r in enumerate(rollouts)])
    keep = drop_nested(grams, unit, np.concatenate([np.array(r, int) for r in rollouts]), np.array(p_value), share)
    return [gram for gram, kept in zip(grams, keep, strict=True) if kept]


def test_of_nested_ngrams_the_smallest_p_stays_then_the_longest():
    grams = [(1, 2), (1, 2, 3), (2, 3), (7, 8)]
    same = [[0, 1, 2]] * 4
    assert nested(grams, same, [0.1, 0.1, 0.1, 0.1]) == [(1, 2, 3), (7, 8)]
    assert nested(grams, same, [0.1, 0.2, 0.3, 0.1]) == [(1, 2), (7, 8)]
    assert nested(grams, same, [0.1, np.nan, 0.1, np.nan]) == [(1, 2), (7, 8)]


def test_ngrams_of_other_rollouts_stay():
    grams = [(1, 2), (1, 2, 3)]
    ten = list(range(10))
    assert nested(grams, [ten, ten[:9]], [0.1, 0.2]) == [(1, 2)]
    assert nested(grams, [ten, ten[:8]], [0.1, 0.2]) == grams
    assert nested(grams, [ten, ten[:8]], [0.2, 0.1], share=0.8) == [(1, 2, 3)]
    assert nested(grams, [[5], []], [0.1, 0.2]) == grams


def test_a_nest_that_drifts_keeps_what_its_best_does_not_cover():
    ten = list(range(100))
    grams = [(1, 2), (1, 2, 3), (1, 2, 3, 4)]
    assert nested(grams, [ten, ten[:91], ten[:83]], [0.1, 0.2, 0.3]) == [(1, 2), (1, 2, 3, 4)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_drop_nested_is_the_slow_version(data):
    grams = data.draw(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), unique=True, max_size=12)
    )
    rollouts = [data.draw(st.sets(st.integers(0, 3), max_size=4)) for _ in grams]
    p_value = [data.draw(st.sampled_from([0.1, 0.2, 0.3])) for _ in grams]
    share = data.draw(st.sampled_from([0.5, 0.75, 1.0]))

    def linked(one, other):
        short, long = sorted((grams[one], grams[other]), key=len)
        inside = len(short) < len(long) and any(long[at : at + len(short)] == short for at in range(len(long)))
        few, many = sorted((len(rollouts[one]), len(rollouts[other])))
        return one == other or (inside and few > 0 and few >= share * many)

    left, kept = set(range(len(grams))), set()
    nests = []
    while left:
        nest, grown = {min(left)}, set()
        while nest != grown:
            grown = set(nest)
            nest = {b for a in grown for b in range(len(grams)) if linked(a, b)}
        nests.append(nest)
        left -= nest
    for nest in nests:
        waiting = sorted(nest, key=lambda at: (p_value[at], -len(grams[at]), grams[at]))
        while waiting:
            best = waiting.pop(0)
            kept.add(best)
            waiting = [
                at for at in waiting if len(rollouts[at] & rollouts[best]) < share * len(rollouts[at] | rollouts[best])
            ]
    unit = np.array([u for u, r in enumerate(rollouts) for _ in r], np.int64)
    rollout = np.array([i for r in rollouts for i in r], np.int64)
    assert set(np.flatnonzero(drop_nested(grams, unit, rollout, np.array(p_value), share)).tolist()) == kept


def test_drop_nested_of_nothing_is_nothing():
    empty = np.zeros(0, np.int64)
    assert drop_nested([], empty, empty, np.zeros(0)).tolist() == []


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 4, 2]])
def test_drop_nested_does_not_depend_on_the_order_of_the_pairs(order):
    unit, rollout = np.array([0, 0, 1, 1, 2, 2])[order], np.array([8, 9, 8, 9, 3, 4])[order]
    assert drop_nested([(1, 2), (1,), (2,)], unit, rollout, np.array([0.1, 0.1, 0.1])).tolist() == [True, False, True]
