"""Places of a response: what counts, and units told apart by where they stand."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import KtaeError, MissingColumnError
from ktae_cli.token_text import IdDecoder, StoredDecoder
from ktae_cli.units.choice import units_of
from ktae_cli.units.places import place_codes
from tests.units.texts import batch_of, decoder_of, named, texts_batch

NOTHING = IdDecoder()


def counts(batch, within, decoder=NOTHING):
    return place_codes(batch, within, decoder).keep.tolist()


def places(batch, within, decoder=NOTHING):
    return place_codes(batch, within, decoder).place.tolist()


def test_first_and_last_count_unmasked_tokens():
    batch = batch_of([[1, 2, 3, 4], [], [5]], [[False, True, True, True], [], [True]])
    assert counts(batch, "first:2") == [False, True, True, False, True]
    assert counts(batch, "last:2") == [False, False, True, True, True]
    assert place_codes(batch, "first:2", NOTHING).place is None


def test_deciles_are_those_of_the_counted_length():
    batch = batch_of([list(range(21)), [1, 2]], [[True] * 20 + [False], [True] * 2])
    expected = [tenth for tenth in range(1, 11) for _ in range(2)]
    assert places(batch, "decile") == [*expected, 0, 1, 6]


def test_sentences_and_paragraphs_are_numbered_from_one():
    rows = [["It is 3", ".", "5.", " So", " on", ".\n\n", "Then", "!", " ", "Wait"], ["x", ". ", "y"]]
    batch, decoder = texts_batch(rows)
    assert places(batch, "sentence", decoder) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 1, 1, 2]
    assert places(batch, "paragraph", decoder) == [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1]


def test_sentences_end_where_tokens_are_masked():
    batch, decoder = texts_batch([["a", "b", "c"]], mask=[[True, False, True]])
    assert places(batch, "sentence", decoder) == [1, 0, 2]


def test_sentences_of_stored_texts():
    batch = batch_of([[1, 2, 3]], stored=pa.array(["Yes.", "ĠNo", "."]))
    assert places(batch, "sentence", StoredDecoder()) == [1, 2, 2]


def test_turns_are_numbered_as_they_come():
    turns = np.array([4, 4, 5, 6, 6, 9, 0])
    batch = batch_of([[1, 2, 3, 4, 5], [6, 7]], [[True, True, False, True, True], [True, True]], turn_ids=turns)
    assert places(batch, "turn") == [1, 1, 0, 2, 2, 1, 2]
    with pytest.raises(MissingColumnError, match="--within turn needs turn_ids"):
        places(batch_of([[1]]), "turn")


def test_numbers_above_twenty_are_one_place():
    turns = np.arange(23)
    found = place_codes(batch_of([[7] * 23], turn_ids=turns), "turn", NOTHING)
    assert found.place.tolist() == [*range(1, 21), 21, 21, 21]
    assert [found.place_name(code) for code in (1, 20, 21)] == ["1", "20", "20+"]


@pytest.mark.parametrize(
    ("row", "thinks"),
    [
        (["<think>", "So", "</", "think", ">\n", "4"], [True, True, True, True, True, False]),
        (["So", "</think>", "4", "</think>"], [True, True, False, False]),
        (["So", "<|end_of_thought|>", "4"], [True, True, False]),
        (["So", " 4"], [False, False]),
        (["<think>", "So", " 4"], [True, True, True]),
    ],
)
def test_a_thought_reaches_to_its_first_closing_tag(row, thinks):
    batch, decoder = texts_batch([["x"], row])
    assert counts(batch, "think", decoder) == [False, *thinks]
    assert counts(batch, "answer", decoder) == [True, *(not t for t in thinks)]
    assert places(batch, "part", decoder) == [0, *map(int, thinks)]


def test_a_thought_is_looked_for_among_counted_tokens():
    batch, decoder = texts_batch([["</think>", "a", "</think>", "b"]], mask=[[False, True, True, True]])
    assert counts(batch, "think", decoder) == [False, True, True, False]


def test_parts_without_text_of_tokens_are_cut_in_proportion():
    batch = batch_of([[1] * 10, [2] * 4], texts=["0123456</think>01234", None])
    assert counts(batch, "think") == [True] * 8 + [False] * 2 + [False] * 4
    with pytest.raises(
        MissingColumnError, match="needs text: give --tokenizer PATH, or a dump with response_tokens or"
    ):
        counts(batch_of([[1]]), "answer")


def test_units_at_places_are_units_of_their_own():
    batch, decoder = texts_batch([["Wait", "\n\n", "Wait", " so"], ["Wait"]])
    reader = units_of("token", decoder, within="paragraph")
    found = reader.read(batch)
    names = [reader.vocabulary.name(code) for code in found.unit.tolist()]
    assert names == [
        "Wait @ paragraph 1", "⏎⏎ @ paragraph 1", "Wait @ paragraph 2", "·so @ paragraph 2", "Wait @ paragraph 1",
    ]  # fmt: skip
    assert found.unit[0] == found.unit[4] != found.unit[2]
    assert reader.vocabulary.token_id(int(found.unit[2])) == 0
    assert reader.vocabulary.text(int(found.unit[2])) == "Wait"


def test_parts_are_named_by_themselves():
    batch, decoder = texts_batch([["Wait", "</think>", "Wait"]])
    reader = units_of("token", decoder, within="part")
    assert [reader.vocabulary.name(code) for code in reader.read(batch).unit[[0, 2]]] == [
        "Wait @ think",
        "Wait @ answer",
    ]


def test_no_unit_crosses_the_border_of_a_place():
    batch, decoder = texts_batch([["ab", "cd", "ef", "gh"]])
    assert len(units_of("ngram:2", decoder, within="decile").read(batch).unit) == 0
    words = units_of("word", decoder, within="first:3")
    assert named(words, words.read(batch)) == [("abcdef", 0, 0)]
    last = units_of("regex:[a-z]+", decoder, within="last:1")
    assert named(last, last.read(batch)) == [("gh", 0, 3)]


def test_units_at_places_are_pruned_by_unit():
    batch, decoder = texts_batch([["a ", "b\n\n", "a "]])
    reader = units_of("word", decoder, within="paragraph")
    first = reader.read(batch).unit
    reader.vocabulary.prune(first[2:])
    again = reader.read(batch).unit
    assert again[[0, 2]].tolist() == first[[0, 2]].tolist()
    assert again[1] != first[1]


@pytest.mark.parametrize(
    ("within", "message"),
    [
        ("paragraf", "unknown --within 'paragraf' (nearest: paragraph); known: first:N, last:N, sentence"),
        ("first", "--within 'first': first takes a number of tokens, as in first:100"),
        ("last:0", "last takes a number of tokens"),
        ("think:3", "unknown --within 'think:3' (nearest: think)"),
    ],
)
def test_a_place_that_is_none_is_one_line(within, message):
    with pytest.raises(KtaeError) as caught:
        units_of("token", NOTHING, within=within)
    assert message in str(caught.value)


def test_sentences_need_text():
    with pytest.raises(MissingColumnError, match="--within sentence needs the text of tokens"):
        places(batch_of([[1]]), "sentence")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30), max_size=4), st.integers(1, 9))
def test_counting_places_are_the_slow_version(rows, number):
    decoder = decoder_of(["a", " ", ".\n\n", "b"])
    batch = batch_of([[i for i, _ in row] for row in rows], [[kept for _, kept in row] for row in rows])
    first, last, decile = [], [], []
    for row in rows:
        kept = [at for at, (_, counted) in enumerate(row) if counted]
        first += [at in kept[:number] for at in range(len(row))]
        last += [at in kept[-number:] for at in range(len(row))]
        decile += [kept.index(at) * 10 // len(kept) + 1 if at in kept else 0 for at in range(len(row))]
    assert counts(batch, f"first:{number}", decoder) == first
    assert counts(batch, f"last:{number}", decoder) == last
    assert places(batch, "decile", decoder) == decile
    paragraph = []
    for row in rows:
        now, ended = 1, False
        for at, (token, counted) in enumerate(row):
            started = any(kept for _, kept in row[:at])
            if counted and started and (not row[at - 1][1] or (ended and token != 1)):
                now, ended = now + 1, False
            ended = (ended or token == 2) if counted else False
            paragraph.append(now if counted else 0)
    assert places(batch, "paragraph", decoder) == paragraph
