"""Token text: split characters, byte alphabets, special and hostile tokens."""

import json
import re
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ktae_cli.errors import PrerequisiteError
from ktae_cli.token_text import (
    IdDecoder,
    Piece,
    StoredDecoder,
    choose_decoder,
    load_tokenizer,
    visible,
    visible_token,
)

QWEN = Path(__file__).parents[2] / "shared/data/tokenizer/qwen2_tokenizer.json"
needs_qwen = pytest.mark.skipif(not QWEN.is_file(), reason="the Qwen2.5 tokenizer is not beside the project")

TEXT = "Nim-sum 单位 ♩ 🐕 √2 – naïve\n\n\tx[0,1] = [/INST] 👩‍🚀 ﷽ "


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    tokenizer.train_from_iterator(["the sum of the two numbers is the sum"] * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    path = tmp_path_factory.mktemp("byte_level") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def write_sentencepiece(path: Path, decoder) -> Path:
    entries = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁Hello", "▁world", "!", "▁▁"]
    tokenizer = Tokenizer(models.BPE({entry: at for at, entry in enumerate(entries)}, [], byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(path))
    return path


def llama_decoder():
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def joined(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def covers_all(pieces: list[Piece], count: int) -> bool:
    return [at for piece in pieces for at in range(piece.start, piece.stop)] == list(range(count))


def with_one_sign_for_broken_bytes(text: str) -> str:
    return re.sub("(<0x[0-9A-F]{2}>|�)+", "�", text)


def test_a_character_of_several_tokens_is_one_piece(byte_level):
    ids = Tokenizer.from_file(str(byte_level)).encode("a单🐕").ids
    assert len(ids) == 8
    pieces = load_tokenizer(byte_level).pieces(ids)
    assert pieces == [Piece("a", 0, 1), Piece("单", 1, 4), Piece("🐕", 4, 8)]


def test_an_incomplete_tail_is_shown_as_bytes(byte_level):
    ids = Tokenizer.from_file(str(byte_level)).encode("a单").ids
    assert load_tokenizer(byte_level).pieces(ids[:-1]) == [Piece("a", 0, 1), Piece("<0xE5><0x8D>", 1, 3, "incomplete")]


def test_a_broken_character_ends_where_the_next_one_begins(byte_level):
    tokenizer = Tokenizer.from_file(str(byte_level))
    ids = tokenizer.encode("单").ids[:1] + tokenizer.encode("é").ids + tokenizer.encode("单").ids[2:]
    assert load_tokenizer(byte_level).pieces(ids) == [
        Piece("<0xE5>", 0, 1, "incomplete"),
        Piece("é", 1, 3),
        Piece("<0x95>", 3, 4, "incomplete"),
    ]


def test_special_and_added_tokens_and_unknown_ids(byte_level):
    tokenizer = Tokenizer.from_file(str(byte_level))
    ids = [tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<tool call>"), 999999, -1, 2**40]
    assert load_tokenizer(byte_level).pieces(ids) == [
        Piece("<|end|>", 0, 1, "special"),
        Piece("<tool call>", 1, 2),
        Piece("⟨999999⟩", 2, 3, "id"),
        Piece("⟨-1⟩", 3, 4, "id"),
        Piece("⟨1099511627776⟩", 4, 5, "id"),
    ]


def test_a_special_token_inside_a_character_breaks_it(byte_level):
    tokenizer = Tokenizer.from_file(str(byte_level))
    first, *rest = tokenizer.encode("单").ids
    kinds = [
        piece.kind for piece in load_tokenizer(byte_level).pieces([first, tokenizer.token_to_id("<|end|>"), *rest])
    ]
    assert kinds == ["incomplete", "special", "incomplete", "incomplete"]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_joined_pieces_equal_the_full_decode_of_a_trained_tokenizer(byte_level, data):
    tokenizer, decoder = loaded(str(byte_level))
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40))
    pieces = decoder.pieces(ids)
    assert covers_all(pieces, len(ids))
    full = tokenizer.decode(ids, skip_special_tokens=False)
    assert with_one_sign_for_broken_bytes(joined(pieces)) == with_one_sign_for_broken_bytes(full)
    assert joined(pieces) == full or any(piece.kind == "incomplete" for piece in pieces)


@cache
def loaded(path: str):
    return Tokenizer.from_file(path), load_tokenizer(Path(path))


@needs_qwen
@settings(max_examples=300, deadline=None)
@example(ids=[126, 151669, 94])
@given(ids=st.lists(st.integers(0, 151_700), max_size=60))
def test_joined_pieces_equal_the_full_decode_of_qwen_ids(ids):
    tokenizer, decoder = loaded(str(QWEN))
    pieces = decoder.pieces(ids)
    assert covers_all(pieces, len(ids))
    known = joined([piece for piece in pieces if piece.kind != "id"])
    # an id that the vocabulary lacks stands between two texts: bytes on its two sides are no character
    runs = [list(run) for unknown, run in groupby(ids, lambda i: tokenizer.id_to_token(i) is None) if not unknown]
    full = "".join(tokenizer.decode(run, skip_special_tokens=False) for run in runs)
    assert with_one_sign_for_broken_bytes(known) == with_one_sign_for_broken_bytes(full)


@needs_qwen
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_pieces_of_encoded_text_give_the_text_back(text):
    tokenizer, decoder = loaded(str(QWEN))
    ids = tokenizer.encode(text).ids
    pieces = decoder.pieces(ids)
    assert joined(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    assert not {piece.kind for piece in pieces} & {"incomplete", "id"}


@needs_qwen
def test_qwen_pieces_of_a_mixed_text():
    tokenizer, decoder = loaded(str(QWEN))
    ids = tokenizer.encode(f"{TEXT}<|im_end|>").ids
    pieces = decoder.pieces(ids)
    assert joined(pieces) == f"{TEXT}<|im_end|>"
    assert pieces[-1].kind == "special"
    assert max(piece.stop - piece.start for piece in pieces) > 1


def test_sentencepiece_with_byte_fallback(tmp_path):
    path = write_sentencepiece(tmp_path / "tokenizer.json", llama_decoder())
    tokenizer, decoder = Tokenizer.from_file(str(path)), load_tokenizer(path)
    byte = {value: tokenizer.token_to_id(f"<0x{value:02X}>") for value in "单".encode()}
    hello, world = tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("▁world")
    ids = [hello, world, *byte.values(), 2]
    assert decoder.pieces(ids) == [
        Piece("Hello", 0, 1),
        Piece(" world", 1, 2),
        Piece("单", 2, 5),
        Piece("</s>", 5, 6, "special"),
    ]
    assert joined(decoder.pieces(ids)) == tokenizer.decode(ids, skip_special_tokens=False)
    assert decoder.pieces([world, byte[0xE5]])[1] == Piece("<0xE5>", 1, 2, "incomplete")
    assert decoder.token_text(world) == "·world"


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.sampled_from([1, 2, *range(259, 264)]), max_size=12))
@pytest.mark.parametrize(
    "decoder",
    [llama_decoder(), decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never")],
    ids=["llama", "metaspace", "metaspace_never"],
)
def test_sentencepiece_pieces_equal_the_full_decode(tmp_path_factory, decoder, ids):
    path = tmp_path_factory.getbasetemp() / f"{abs(hash(str(decoder)))}.json"
    tokenizer, mine = loaded(str(path if path.exists() else write_sentencepiece(path, decoder)))
    assert joined(mine.pieces(ids)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_any_other_tokenizer_goes_through_its_own_decode(tmp_path):
    vocabulary = {"[UNK]": 0, "un": 1, "##believ": 2, "##able": 3, "story": 4}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pieces = load_tokenizer(tmp_path / "tokenizer.json").pieces([1, 2, 3, 4, 77])
    assert [piece.text for piece in pieces] == ["un", "believ", "able", " story", "⟨77⟩"]
    assert pieces[-1].kind == "id"


def test_token_text_is_visible(byte_level):
    tokenizer, decoder = loaded(str(byte_level))
    assert decoder.token_text(tokenizer.encode(" the").ids[0]) == "·the"
    assert decoder.token_text(tokenizer.encode("\n").ids[0]) == "⏎"
    assert decoder.token_text(tokenizer.encode("\x1b").ids[0]) == "␛"
    assert decoder.token_text(10**6) == "⟨1000000⟩"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (["Ġthe", "Ċ", "åį", "ķ"], [" the", "\n", "单"]),
        (["▁the", "▁sum", "<0xE5>"], [" the", " sum", "<0xE5>"]),
        ([" the", " ĠĊ", "▁"], [" the", " ĠĊ", "▁"]),
        (["a", "[/INST]", "b"], ["a", "[/INST]", "b"]),
    ],
)
def test_stored_text_is_read_in_the_alphabet_it_is_written_in(stored, expected):
    assert [piece.text for piece in StoredDecoder().pieces(range(len(stored)), stored)] == expected


def test_stored_text_remembers_tokens_and_marks_special_ones():
    decoder = StoredDecoder()
    pieces = decoder.pieces([7, 8, 9], ["Ġso", "<|im_end|>", None])
    assert pieces == [Piece(" so", 0, 1), Piece("<|im_end|>", 1, 2, "special"), Piece("⟨9⟩", 2, 3, "id")]
    assert decoder.token_text(7) == "·so"
    assert decoder.token_text(1) is None


def test_stored_text_of_another_length_falls_back_to_ids():
    assert StoredDecoder().pieces([1, 2], ["a"]) == [Piece("⟨1⟩", 0, 1, "id"), Piece("⟨2⟩", 1, 2, "id")]


def test_the_tokenizer_is_chosen_in_the_documented_order(byte_level, tmp_path):
    beside = byte_level.parent / "rollouts.parquet"
    decoder, note = choose_decoder(byte_level.parent, [tmp_path / "x.parquet"])
    assert decoder.token_text(0) == "<|end|>" and "tokenizer.json" in note
    assert "beside the file" in choose_decoder(None, [tmp_path / "x.parquet", beside], True)[1]
    decoder, note = choose_decoder(None, [tmp_path / "x.parquet"], True)
    assert isinstance(decoder, StoredDecoder) and "response_tokens" in note
    decoder, note = choose_decoder(None, [tmp_path / "x.parquet"])
    assert isinstance(decoder, IdDecoder) and "--tokenizer PATH" in note


def test_a_missing_or_broken_tokenizer_is_one_line(tmp_path):
    with pytest.raises(PrerequisiteError, match=r"no tokenizer at .*nowhere"):
        choose_decoder(tmp_path / "nowhere")
    with pytest.raises(PrerequisiteError, match=r"no tokenizer at .*tokenizer.json"):
        choose_decoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(PrerequisiteError, match="cannot read the tokenizer") as raised:
        choose_decoder(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold] :smile: 单 👩‍🚀", "plain [bold] :smile: 单 👩‍🚀"),
        ("\x1b[31mred\x07", "␛[31mred␇"),
        ("a\x00b\rc\x7f\x9b", "a␀b␍c␡\\x9b"),
        ("\u202eabc\u2066\u200b\ufeff", "\\u202eabc\\u2066\\u200b\\ufeff"),
        ("\ud800 \U000e0041", "\\ud800 \\U000e0041"),
        ("line\n\ttab", "line\n\ttab"),
        ("\u2028", "\\u2028"),
    ],
)
def test_visible_spells_out_what_could_act_on_a_terminal(text, shown):
    assert visible(text) == shown
    visible(text).encode()


def test_visible_token_is_one_line():
    assert visible_token(" a\n\n\tb") == "·a⏎⏎→b"
