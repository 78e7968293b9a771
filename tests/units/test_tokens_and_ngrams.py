"""Units that are ids: tokens and n-grams, their codes, names and pruning."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import KtaeError, UnknownNameError
from ktae_cli.token_text import IdDecoder, StoredDecoder
from ktae_cli.units.base import MAX_CODE
from ktae_cli.units.choice import units_of
from ktae_cli.units.ngram import NgramReader
from tests.units.texts import batch_of, decoder_of, named, texts_batch


def test_tokens_are_the_counted_ids():
    decoder = decoder_of(["Wait", ",", " but"], ["<|end|>"])
    reader = units_of("token", decoder)
    found = reader.read(batch_of([[2, 0], [], [0, 3, 2]], [[True, True], [], [True, False, True]]))
    assert found.unit.tolist() == [2, 0, 0, 2]
    assert found.rollout.tolist() == [0, 0, 2, 2]
    assert found.position.tolist() == [0, 1, 0, 2]
    assert found.unit.dtype == np.int64
    vocabulary = reader.vocabulary
    assert [vocabulary.name(code) for code in (2, 3, 99)] == ["·but", "<|end|>", "⟨99⟩"]
    assert [vocabulary.is_special(code) for code in (2, 3, 99)] == [False, True, False]
    assert [vocabulary.text(2), vocabulary.token_id(2)] == [" but", 2]
    assert units_of("token", decoder).read(batch_of([[2, 0], [1]])).position.tolist() == [0, 1, 0]


def test_tokens_without_a_tokenizer_are_named_by_stored_text_or_id():
    reader = units_of("token", StoredDecoder())
    reader.read(batch_of([[7, 7, 4, 9]], stored=pa.array(["Ġso", "Ġso", "Ċ", None])))
    assert [reader.vocabulary.name(code) for code in (7, 4, 5)] == ["·so", "⏎", "⟨5⟩"]
    reader.vocabulary.prune(np.array([4]))
    assert [reader.vocabulary.text(code) for code in (7, 4)] == ["⟨7⟩", "\n"]
    assert units_of("token", IdDecoder()).vocabulary.name(3) == "⟨3⟩"


def test_ngrams_are_runs_of_ids_within_rows_and_masks():
    batch, decoder = texts_batch([["a", "b", "c"], ["b", "c", "a", "b"]], mask=[[True] * 3, [True, True, False, True]])
    reader = units_of("ngram:2..3", decoder)
    found = reader.read(batch)
    assert named(reader, found) == [("ab", 0, 0), ("abc", 0, 0), ("bc", 0, 1), ("bc", 1, 0)]
    assert found.unit[2] == found.unit[3]
    assert [reader.vocabulary.ids(code) for code in found.unit[:2]] == [(0, 1), (0, 1, 2)]
    assert reader.vocabulary.token_id(int(found.unit[0])) is None


def test_ngrams_are_named_as_one_text():
    dog = "🐕".encode()
    batch, decoder = texts_batch([[" ", dog[:2], dog[2:]]])
    reader = units_of("ngram:3", decoder)
    assert [reader.vocabulary.name(code) for code in reader.read(batch).unit] == ["·🐕"]
    stored = units_of("ngram:2", StoredDecoder())
    found = stored.read(batch_of([[5, 6]], stored=pa.array(["Ġlet", "Ġme"])))
    assert stored.vocabulary.name(int(found.unit[0])) == "·let·me"


def test_ngrams_keep_their_codes_over_batches_and_pruning():
    decoder = decoder_of([str(n) for n in range(10)])
    reader = units_of("ngram:2", decoder)
    whole = reader.read(batch_of([[1, 2, 3, 1, 2]])).unit
    reader.vocabulary.prune(whole[:1])
    assert reader.vocabulary.codes[2].tolist() == whole[:1].tolist()
    assert reader.read(batch_of([[3, 1], [2, 3]])).unit.tolist() == [whole[2], whole[1]]
    assert reader.vocabulary.text(int(whole[0])) == "12"


rows_of_ids = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows_of_ids, max_size=3), st.integers(1, 3), st.integers(0, 2), st.sampled_from([0, 2, 54]), st.data())
def test_ngrams_are_told_apart_exactly_whatever_the_hash(batches, shortest, more, hash_bits, data):
    decoder = decoder_of(["a", "b", "c", "d"])
    reader = NgramReader(shortest, shortest + more, decoder, hash_bits) if hash_bits else _colliding(shortest, more)
    seen: dict[int, tuple[int, ...]] = {}
    for rows in batches:
        masks = [[data.draw(st.booleans()) for _ in row] for row in rows]
        found = reader.read(batch_of(rows, masks))
        grams = [
            (tuple(row[at : at + size]), number, at)
            for number, (row, mask) in enumerate(zip(rows, masks, strict=True))
            for at in range(len(row))
            for size in range(shortest, shortest + more + 1)
            if at + size <= len(row) and all(mask[at : at + size])
        ]
        assert list(zip(found.rollout.tolist(), found.position.tolist(), strict=True)) == [gram[1:] for gram in grams]
        for code, gram in zip(found.unit.tolist(), grams, strict=True):
            assert 0 <= code < MAX_CODE
            assert seen.setdefault(code, gram[0]) == gram[0]
            assert reader.vocabulary.ids(code) == gram[0]
    assert len(set(seen.values())) == len(seen)


def _colliding(shortest: int, more: int) -> NgramReader:
    """Return a reader all of whose n-grams of one length share a hash."""
    return NgramReader(shortest, shortest + more, decoder_of(["a", "b", "c", "d"]), 1)


def test_ngrams_that_share_a_hash_keep_their_codes_when_pruned():
    reader = NgramReader(2, 2, decoder_of(["a", "b", "c"]), 1)
    rows = [[0, 1, 2, 0, 0, 2, 1]]
    found = reader.read(batch_of(rows)).unit
    assert len(set(found.tolist())) == 6
    reader.vocabulary.prune(found[-1:])
    assert reader.read(batch_of(rows)).unit[-1] == found[-1]


@pytest.mark.parametrize(
    ("unit", "error", "message"),
    [
        ("wrod", UnknownNameError, "unknown --unit 'wrod' (nearest: word); known: token, word, ngram:2..5, regex:"),
        ("regex:", UnknownNameError, "unknown --unit 'regex:' (nearest: regex:PATTERN)"),
        ("ngram:x", KtaeError, "--unit 'ngram:x': expected ngram:3, or ngram:2..5 for a range of lengths"),
        ("ngram:3..2", KtaeError, "--unit 'ngram:3..2': the lengths rise and lie between 1 and 8"),
        ("ngram:0", KtaeError, "between 1 and 8"),
        ("regex:(a", KtaeError, "--unit 'regex:(a': no regular expression (missing ): "),
        ("regex:(?=a)b", KtaeError, "invalid perl operator: (?="),
        ("regex:\ud800", KtaeError, "no regular expression"),
    ],
)
def test_a_unit_that_is_none_is_one_line(unit, error, message):
    with pytest.raises(error) as caught:
        units_of(unit, decoder_of(["a"]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_occurrences_come_in_order():
    reader = units_of("ngram:1..3", decoder_of(["a", "b"]))
    found = reader.read(batch_of([[0, 1, 0], [1], [1, 1]]))
    places = list(zip(found.rollout.tolist(), found.position.tolist(), strict=True))
    assert all(one <= other for one, other in pairwise(places))
