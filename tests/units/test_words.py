"""Words of the decoded text: literals, and a slow version over random byte pieces and real rollouts."""

import unicodedata
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from ktae_cli.errors import MissingColumnError
from ktae_cli.token_text import BytesDecoder, IdDecoder, StoredDecoder, WindowDecoder
from ktae_cli.units import base
from ktae_cli.units.choice import units_of
from tests.helpers import SHARED
from tests.units.texts import batch_of, decoder_of, named, qwen, texts_batch

PIECES = [
    "Wait", " wait", ",", " 12", "3", ".", "5 ab", "don't", "_x", "\n\n", " ", "", "é", b"\xc3", b"\xa9", b"\xe5",
    b"\x8d", b"\x95", "位", "ひら", "カナ", "a\u0301", "\u0301", b"\xf0\x9f\x90", b"\x95x", "½²", "𝟙", "\x1b[0m",
    "\u200d", "٣", "\x1a", b"\xff", "–", "﷽",
]  # fmt: skip
SPECIALS = ["<|end|>", "[X Y]"]
DECODER = decoder_of(PIECES, SPECIALS)


def words_slowly(ids: list[int], decoder: BytesDecoder) -> list[tuple[str, int]]:
    """Return (word, position) of one run, one character at a time."""
    characters = []  # (character or special token, position, is special)
    waiting = b""
    at = []

    def flush(final: bool) -> None:
        nonlocal waiting
        while waiting:
            size = next((n for n in range(1, 5) if is_character(waiting[:n])), 0)
            if not size and not final and may_go_on(waiting):
                return
            size, text = (size, waiting[:size].decode()) if size else (1, "\x1a")
            characters.append((text, at[0], False))
            del at[:size]
            waiting = waiting[size:]

    for position, token_id in enumerate(ids):
        token = decoder.token(token_id)
        if token.kind != "text":
            flush(True)
            characters.append((token.text, position, True))
            continue
        waiting += token.data
        at += [position] * len(token.data)
        flush(False)
    flush(True)
    words: list[tuple[str, int]] = []
    open_word = False
    for text, position, special in characters:
        kind = "sign" if special else kind_of(text)
        if kind == "letter" and open_word:
            words[-1] = (words[-1][0] + text, words[-1][1])
        elif kind:
            words.append((text, position))
        open_word = kind == "letter"
    return [(word.replace("\x1a", "�"), position) for word, position in words]


@cache
def kind_of(character: str) -> str:
    category = unicodedata.category(character)[0]
    if category == "L" and any(script in unicodedata.name(character, "") for script in ("CJK UNI", "HIRAGANA")):
        return "sign"
    if category in "LNM":
        return "letter"
    return "sign" if category in "PS" or character == "\x1a" else ""


@cache
def is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def may_go_on(data: bytes) -> bool:
    """Tell whether bytes at the end may still become a character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start == 0
    return True


def runs_slowly(row: list[int], mask: list[bool]) -> list[tuple[int, list[int]]]:
    runs: list[tuple[int, list[int]]] = []
    for position, (token_id, kept) in enumerate(zip(row, mask, strict=True)):
        if kept and position and mask[position - 1]:
            runs[-1][1].append(token_id)
        elif kept:
            runs.append((position, [token_id]))
    return runs


def expected(rows, masks, decoder) -> list[tuple[str, int, int]]:
    return [
        (word, number, start + position)
        for number, (row, mask) in enumerate(zip(rows, masks, strict=True))
        for start, run in runs_slowly(row, mask)
        for word, position in words_slowly(run, decoder)
    ]


def test_words_are_runs_of_letters_and_single_signs():
    batch, decoder = texts_batch([["So", " don't", "_", "x", "2", ", 3.5"], [], ["Wait", "Wait!"]])
    reader = units_of("word", decoder)
    assert named(reader, reader.read(batch)) == [
        ("So", 0, 0), ("don", 0, 1), ("'", 0, 1), ("t", 0, 1), ("_", 0, 2), ("x2", 0, 3), (",", 0, 5), ("3", 0, 5),
        (".", 0, 5), ("5", 0, 5), ("WaitWait", 2, 0), ("!", 2, 1),
    ]  # fmt: skip


def test_words_put_split_characters_together_and_stand_where_their_first_byte_does():
    dog = "🐕".encode()
    batch, decoder = texts_batch([["na", b"\xc3", b"\xafve", " ", dog[:2], dog[2:], b"\xe5", "b"]])
    reader = units_of("word", decoder)
    assert named(reader, reader.read(batch)) == [("naïve", 0, 0), ("🐕", 0, 4), ("�", 0, 6), ("b", 0, 7)]


def test_words_write_han_and_hiragana_one_by_one():
    batch, decoder = texts_batch([["但是", "カナ", "ひと"]])
    reader = units_of("word", decoder)
    assert [word for word, _, _ in named(reader, reader.read(batch))] == ["但", "是", "カナ", "ひ", "と"]


def test_words_end_at_masked_tokens_rows_and_special_tokens():
    decoder = decoder_of(["ab", "cd"], ["<|end|>"])
    batch = batch_of([[0, 1, 0], [1, 2, 1, 2]], [[True, False, True], [True] * 4])
    reader = units_of("word", decoder)
    assert named(reader, reader.read(batch)) == [
        ("ab", 0, 0), ("ab", 0, 2), ("cd", 1, 0), ("<|end|>", 1, 1), ("cd", 1, 2), ("<|end|>", 1, 3),
    ]  # fmt: skip


def test_a_character_split_by_a_masked_token_is_no_character():
    batch, decoder = texts_batch([[b"\xc3", "x", b"\xa9"]], mask=[[True, False, True]])
    reader = units_of("word", decoder)
    assert named(reader, reader.read(batch)) == [("�", 0, 0), ("�", 0, 2)]


def test_words_keep_their_codes_over_batches_and_pruning():
    batch, decoder = texts_batch([["to", " be"], [" or", " to", " be"]])
    reader = units_of("word", decoder)
    first, second = reader.read(batch.slice(0, 1)), reader.read(batch.slice(1, 2))
    assert first.unit.tolist() == [0, 1]
    assert second.unit.tolist() == [2, 0, 1]
    reader.vocabulary.prune(np.array([1, 2]))
    assert reader.read(batch).unit.tolist() == [3, 1, 2, 3, 1]


def test_words_of_stored_texts():
    stored = pa.array(["ĠWait", "ing", "Ċ", None, "<|im_end|>", "Ã", "©"])
    batch = batch_of([[1, 2, 3, 4, 5, 6, 7]], stored=stored)
    reader = units_of("word", StoredDecoder())
    assert named(reader, reader.read(batch)) == [("Waiting", 0, 0), ("�", 0, 3), ("<|im_end|>", 0, 4), ("é", 0, 5)]


def test_words_through_a_tokenizer_that_only_decodes_whole_texts():
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "##s": 1, "world": 2, "!": 3}, "!"))
    tokenizer.decoder = decoders.WordPiece()
    decoder = WindowDecoder(tokenizer)
    reader = units_of("word", decoder)
    found = reader.read(batch_of([[0, 1, 2, 3], [2, 0]]))
    assert named(reader, found) == [("hellos", 0, 0), ("world", 0, 2), ("!", 0, 3), ("world", 1, 0), ("hello", 1, 1)]


def test_stored_texts_that_are_no_text_are_read_as_broken():
    offsets, data = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")
    stored = pa.StringArray.from_buffers(2, offsets, data)
    reader = units_of("word", StoredDecoder())
    assert named(reader, reader.read(batch_of([[1, 2]], stored=stored))) == [("a", 0, 0), ("�", 0, 1)]


def test_words_need_text():
    with pytest.raises(MissingColumnError, match="--unit word needs the text of tokens: give --tokenizer"):
        units_of("word", IdDecoder())
    with pytest.raises(MissingColumnError, match="response_tokens"):
        units_of("word", StoredDecoder()).read(batch_of([[1]]))


rows_of_ids = st.lists(st.lists(st.integers(0, len(PIECES) + 1), max_size=14), max_size=5)


@settings(max_examples=100, deadline=None)
@given(rows_of_ids, st.integers(0, 2**32), st.integers(1, 20))
def test_words_are_those_of_the_slow_version(rows, seed, chunk):
    random = np.random.default_rng(seed)
    masks = [(random.random(len(row)) < 0.8).tolist() for row in rows]
    reader = units_of("word", DECODER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.chunks, "__defaults__", (chunk,))
        found = reader.read(batch_of(rows, masks))
    assert named(reader, found) == expected(rows, masks, DECODER)
    assert found.unit.dtype == found.rollout.dtype == found.position.dtype == np.int64


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data beside the project")
@pytest.mark.parametrize("name", ["rg_llama3b_amc_aime_50x", "math500_joined_models"])
def test_words_of_real_rollouts_are_those_of_the_slow_version(name):
    decoder = qwen()
    rows = pq.read_table(SHARED / f"data/{name}.parquet", columns=["response_ids"])["response_ids"]
    rows = rows[:: len(rows) // 100].to_pylist()[:100]
    reader = units_of("word", decoder)
    found = named(reader, reader.read(batch_of(rows)))
    assert found == expected(rows, [[True] * len(row) for row in rows], decoder)
    assert len(found) > 20_000
