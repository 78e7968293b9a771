"""Token ids as text: bytes first, characters second, so that a character split over tokens is drawn once.

A decoder turns ids into pieces. A piece covers one token, or the few tokens that share one character.
"""

import codecs
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from ktae_cli.tokenizer_file import open_tokenizer


class Piece(NamedTuple):
    """Text of the tokens start..stop-1; kind is text, special, incomplete (broken bytes as <0xE5>) or id."""

    text: str
    start: int
    stop: int
    kind: str = "text"


class Token(NamedTuple):
    """One vocabulary entry: its bytes, and its text where these bytes are whole characters."""

    data: bytes
    text: str | None
    kind: str = "text"


class Decoder(Protocol):
    """What turns token ids into text; `stored` is the text that the file itself holds for each token."""

    def pieces(self, ids: Sequence[int], stored: Sequence[str] | None = None) -> list[Piece]:
        """Return the pieces that cover every position of `ids` in order."""

    def token_text(self, token_id: int) -> str | None:
        """Return the text of one id in visible form, or None where this decoder cannot know it."""


def choose_decoder(
    tokenizer: Path | None, beside: Sequence[Path] = (), has_stored_text: bool = False
) -> tuple[Decoder, str]:
    """Return the decoder and one sentence that says where token text comes from.

    The order: `tokenizer` (a tokenizer.json or its directory), else tokenizer.json beside one of the files
    or directories `beside`, else the stored text of each token, else the ids themselves.
    """
    if tokenizer is not None:
        path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        return load_tokenizer(path), f"token text from {path}"
    folders = (path if path.is_dir() else path.parent for path in beside)
    for path in dict.fromkeys(folder / "tokenizer.json" for folder in folders):
        if path.is_file():
            return load_tokenizer(path), "token text from tokenizer.json beside the file"
    if has_stored_text:
        return StoredDecoder(), "token text as stored in response_tokens (no tokenizer.json)"
    return IdDecoder(), "token ids only: no tokenizer.json beside the file; give --tokenizer PATH to see text"


def load_tokenizer(path: Path) -> Decoder:
    """Read a tokenizer.json; raise PrerequisiteError where there is none or it cannot be read."""
    tokenizer = open_tokenizer(path)
    steps = _decoder_steps(tokenizer)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return BytesDecoder(tokenizer, byte_level_bytes)
    if kinds & {"Replace", "Metaspace"} and all(map(_is_sentencepiece_step, steps)):
        strip = sum(step["start"] for step in steps if step["type"] == "Strip")
        bare_start = any(step.get("prepend_scheme", "never") != "never" for step in steps)
        to_bytes = sentencepiece_bytes if "ByteFallback" in kinds else blank_bytes
        return BytesDecoder(tokenizer, to_bytes, strip, bare_start)
    return WindowDecoder(tokenizer)


def _is_sentencepiece_step(step: dict) -> bool:
    if step["type"] == "Replace":
        return step["pattern"] == {"String": "▁"} and step["content"] == " "
    if step["type"] == "Metaspace":
        return step.get("replacement") == "▁"
    if step["type"] == "Strip":
        return step["content"] == " " and step["stop"] == 0
    return step["type"] in ("ByteFallback", "Fuse")


def _decoder_steps(tokenizer) -> list[dict]:
    if tokenizer.decoder is None:
        return []
    try:
        state = json.loads(tokenizer.decoder.__getstate__())
    except Exception:  # a decoder written in Python has no state
        return []
    return state["decoders"] if state["type"] == "Sequence" else [state]


class BytesDecoder:
    """Vocabulary entries as bytes, for byte-level and sentencepiece vocabularies.

    As the tokenizer's own decode does, `strip` blanks are dropped at the start of a text, or with `bare_start` all
    blanks of its first token.
    """

    def __init__(self, tokenizer, to_bytes, strip: int = 0, bare_start: bool = False):
        self.tokenizer, self.to_bytes, self.strip, self.bare_start = tokenizer, to_bytes, strip, bare_start
        self.added = tokenizer.get_added_tokens_decoder()
        self.known: dict[int, Token] = {}
        self.shown: dict[int, str] = {}

    def pieces(self, ids: Sequence[int], stored: Sequence[str] | None = None) -> list[Piece]:
        """Return the pieces of `ids`; `stored` is not needed."""
        pieces = assemble(self.token(token_id) for token_id in as_ints(ids))
        if self.bare_start and pieces and pieces[0].kind == "text":
            pieces[0] = pieces[0]._replace(text=pieces[0].text.replace(" ", ""))
        return strip_opening(pieces, self.strip) if self.strip else pieces

    def token_text(self, token_id: int) -> str:
        """Return the text of one id in visible form."""
        text = self.shown.get(token_id)
        if text is None:
            pieces = assemble([self.token(int(token_id))])
            text = self.shown[token_id] = visible_token("".join(piece.text for piece in pieces))
        return text

    def token(self, token_id: int) -> Token:
        """Return one vocabulary entry, remembered."""
        token = self.known.get(token_id)
        if token is None:
            token = self.known[token_id] = self._look_up(token_id)
        return token

    def _look_up(self, token_id: int) -> Token:
        added = self.added.get(token_id)
        if added is not None:
            return Token(added.content.encode(), added.content, "special" if added.special else "text")
        entry = self.tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return token_of_id(token_id) if entry is None else token_of_bytes(self.to_bytes(entry))


class StoredDecoder:
    """The text that the file stores for each token; byte-level glyphs (Ġ) and ▁ are turned back into characters."""

    def __init__(self):
        self.seen: dict[int, str] = {}

    def pieces(self, ids: Sequence[int], stored: Sequence[str] | None = None) -> list[Piece]:
        """Return the pieces of one response; without stored text the ids are shown."""
        ids = as_ints(ids)
        if stored is None or len(stored) != len(ids):
            return IdDecoder().pieces(ids)
        to_bytes = stored_alphabet(stored)
        tokens = [
            token_of_id(token_id) if text is None else _stored_token(text, to_bytes)
            for token_id, text in zip(ids, stored, strict=True)
        ]
        for token_id, token in zip(ids, tokens, strict=True):
            if token_id not in self.seen:
                self.seen[token_id] = "".join(piece.text for piece in assemble([token]))
        return assemble(tokens)

    def token_text(self, token_id: int) -> str | None:
        """Return the text of an id that an earlier response held."""
        text = self.seen.get(int(token_id))
        return None if text is None else visible_token(text)


class IdDecoder:
    """No text at all: ids in brackets."""

    def pieces(self, ids: Sequence[int], stored: Sequence[str] | None = None) -> list[Piece]:
        """Return one piece for each id."""
        return [Piece(id_text(token_id), at, at + 1, "id") for at, token_id in enumerate(as_ints(ids))]

    def token_text(self, token_id: int) -> None:
        """Return None: the text is unknown."""
        return None


class WindowDecoder:
    """Any other tokenizer, through its own decode over a short moving window of ids."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.added = tokenizer.get_added_tokens_decoder()

    def pieces(self, ids: Sequence[int], stored: Sequence[str] | None = None) -> list[Piece]:
        """Return the pieces of `ids`: the text by which each token makes the decoded text longer."""
        ids = as_ints(ids)
        pieces, context, start = [], 0, 0
        for stop in range(1, len(ids) + 1):
            before, after = self._decode(ids[context:start]), self._decode(ids[context:stop])
            grown = after[len(before) :]
            if grown.endswith("�") and stop < len(ids) and stop - start < 4:
                continue
            pieces.append(Piece(*self._shown(ids[start:stop], grown, start, stop)))
            context, start = start, stop
        return pieces

    def token_text(self, token_id: int) -> str:
        """Return the text of one id in visible form."""
        return visible_token("".join(piece.text for piece in self.pieces([int(token_id)])))

    def _decode(self, ids: list[int]) -> str:
        known = [token_id for token_id in ids if 0 <= token_id < 2**32]
        return self.tokenizer.decode(known, skip_special_tokens=False) if known else ""

    def _shown(self, ids: list[int], text: str, start: int, stop: int) -> tuple[str, int, int, str]:
        added = self.added.get(ids[0]) if len(ids) == 1 else None
        if added is not None and added.special:
            return text, start, stop, "special"
        if not text and not any(0 <= i < 2**32 and self.tokenizer.id_to_token(i) is not None for i in ids):
            return "".join(map(id_text, ids)), start, stop, "id"
        return text, start, stop, "incomplete" if text.endswith("�") else "text"


def assemble(tokens: Iterable[Token]) -> list[Piece]:
    """Join tokens into pieces that begin and end between characters."""
    pieces: list[Piece] = []
    waiting, start, position = b"", 0, -1
    for position, token in enumerate(tokens):
        if token.text is not None:
            if waiting and not token.data:
                continue
            if waiting:
                pieces.append(_piece_of_bytes(waiting, start, position))
                waiting = b""
            pieces.append(Piece(token.text, position, position + 1, token.kind))
            continue
        if waiting and not _continues(waiting, token.data):
            pieces.append(_piece_of_bytes(waiting, start, position))
            waiting = b""
        start = start if waiting else position
        waiting += token.data
        if not _open_tail(waiting):
            pieces.append(_piece_of_bytes(waiting, start, position + 1))
            waiting = b""
    if waiting:
        pieces.append(_piece_of_bytes(waiting, start, position + 1))
    return pieces


def _piece_of_bytes(data: bytes, start: int, stop: int) -> Piece:
    try:
        return Piece(data.decode(), start, stop)
    except UnicodeDecodeError:
        return Piece(data.decode(errors="ktae_bytes"), start, stop, "incomplete")


def _show_bytes(error: UnicodeError) -> tuple[str, int]:
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("ktae_bytes", _show_bytes)


def _open_tail(data: bytes) -> bytes:
    """Return the bytes at the end that begin a character without finishing it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _continues(waiting: bytes, data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(_open_tail(waiting) + data[:1])
    except UnicodeDecodeError:
        return False
    return True


def strip_opening(pieces: list[Piece], count: int) -> list[Piece]:
    """Drop up to `count` blanks from the start of the text."""
    for at, piece in enumerate(pieces):
        if count == 0 or piece.kind != "text":
            break
        kept = piece.text[:count].lstrip(" ") + piece.text[count:]
        count -= len(piece.text) - len(kept)
        pieces[at] = piece._replace(text=kept)
        if kept:
            break
    return pieces


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte behind each character of the byte-level alphabet (GPT-2): Ġ is 0x20, Ċ is 0x0A."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(shifted)}


def byte_level_bytes(entry: str) -> bytes:
    """Return the bytes of a byte-level vocabulary entry; text outside the alphabet stands for itself."""
    try:
        return bytes(map(byte_alphabet().__getitem__, entry))
    except KeyError:
        return entry.encode(errors="surrogatepass")


def sentencepiece_bytes(entry: str) -> bytes:
    """Return the bytes of a sentencepiece entry: <0xE5> is one byte, ▁ a blank."""
    if len(entry) == 6 and re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", entry):
        return bytes([int(entry[3:5], 16)])
    return blank_bytes(entry)


def blank_bytes(entry: str) -> bytes:
    """Return the bytes of an entry whose blanks are written ▁."""
    return entry.replace("▁", " ").encode(errors="surrogatepass")


def _plain_bytes(entry: str) -> bytes:
    return entry.encode(errors="surrogatepass")


def stored_alphabet(tokens: Sequence[str | None]):
    """Tell how stored token text is written: with byte-level glyphs, with sentencepiece blanks, or plainly."""
    texts = [text for text in tokens if text]
    if any(" " in text or "\n" in text for text in texts):
        return _plain_bytes
    if any("Ġ" in text or "Ċ" in text for text in texts):
        return byte_level_bytes
    return sentencepiece_bytes if any("▁" in text for text in texts) else _plain_bytes


_LOOKS_SPECIAL = re.compile(r"<[|｜][^<>]*[|｜]>|</?s>|<(?:bos|eos|pad|unk)>|\[(?:PAD|UNK|CLS|SEP|EOS|BOS)\]")


def _stored_token(text: str, to_bytes) -> Token:
    if _LOOKS_SPECIAL.fullmatch(text):
        return Token(text.encode(), text, "special")
    return token_of_bytes(to_bytes(text))


def token_of_bytes(data: bytes) -> Token:
    """Return an entry; its text is None where the bytes are not whole characters."""
    try:
        return Token(data, data.decode())
    except UnicodeDecodeError:
        return Token(data, None)


def token_of_id(token_id: int) -> Token:
    """Return the stand-in of an id that the vocabulary does not hold."""
    text = id_text(token_id)
    return Token(text.encode(), text, "id")


def plain_text(decoder: Decoder, token_id: int) -> str:
    """Return the text of one id as it stands in a response, its blanks included; broken characters as �."""
    if isinstance(decoder, BytesDecoder):
        return decoder.token(token_id).data.decode("utf-8", "replace")
    return "".join(piece.text for piece in decoder.pieces([token_id]))


def plain_stored_texts(texts: Sequence[str | None]) -> list[str]:
    """Return stored texts of tokens with byte-level glyphs (Ġ) and ▁ as the characters that they stand for."""
    to_bytes = stored_alphabet(texts)
    return ["" if t is None else _stored_token(t, to_bytes).data.decode("utf-8", "replace") for t in texts]


def id_text(token_id: int) -> str:
    """Return an id as it is shown: ⟨1234⟩."""
    return f"⟨{token_id}⟩"


def as_ints(ids: Sequence[int]) -> list[int]:
    """Return ids as plain integers, from a list or an array."""
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


# Joiners shape emoji and several scripts; every other invisible or directional character is spelled out.
_KEPT = frozenset("\n\t\u200c\u200d")
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def visible(text: str) -> str:
    """Return text that cannot act on a terminal: control, directional and broken characters become signs.

    Line feed and tab stay. Escape is ␛, others of its range likewise; U+202E is written \\u202e.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible_character, text))


@cache
def _visible_character(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_token(text: str) -> str:
    """Return the text of one token on one line: blanks as ·, line ends as ⏎, tabs as →."""
    return visible(text).replace(" ", "·").replace("\n", "⏎").replace("\t", "→")
