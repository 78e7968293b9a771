"""Units that are token ids."""

import numpy as np
import pyarrow as pa

from ktae_cli.token_text import BytesDecoder, Decoder, StoredDecoder, plain_text, visible_token
from ktae_cli.units.base import Occurrences, TokenBatch, runs_of
from ktae_cli.units.text import entries_of, looks_special


class TokenReader:
    """Read every counted token as a unit; the code is the id."""

    def __init__(self, decoder: Decoder):
        self.vocabulary = TokenVocabulary(decoder)

    def read(self, batch: TokenBatch) -> Occurrences:
        """Return every counted token."""
        self.vocabulary.see(batch)
        row = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        position = np.arange(len(row)) - np.repeat(batch.starts[:-1], batch.lengths)
        if batch.mask is None:
            return Occurrences(batch.token_ids.astype(np.int64), row, position)
        kept = runs_of(batch).kept
        return Occurrences(batch.token_ids[kept].astype(np.int64), row[kept], position[kept])


class TokenVocabulary:
    """Ids and their text; where only the file's stored texts are known, the first text of each id."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.texts: dict[int, str] = {}

    def see(self, batch: TokenBatch) -> None:
        """Remember the stored texts of ids not seen before."""
        if batch.stored is None or not isinstance(self.decoder, StoredDecoder):
            return
        tokens, index = entries_of(batch, self.decoder)
        ids = pa.array(batch.token_ids).dictionary_encode()
        # Ids are numbered as they appear, so the highest number so far rises where an id is new.
        first = np.flatnonzero(np.diff(np.maximum.accumulate(np.asarray(ids.indices)), prepend=-1))
        for token_id, at in zip(ids.dictionary.to_pylist(), index[first].tolist(), strict=True):
            self.texts.setdefault(token_id, tokens[at].data.decode("utf-8", "replace"))

    def text(self, code: int) -> str:
        """Return the token as it stands in responses, or its id in brackets."""
        return self.texts.get(int(code)) or plain_text(self.decoder, int(code))

    def name(self, code: int) -> str:
        """Return the token in visible form."""
        return self.decoder.token_text(int(code)) or visible_token(self.text(code))

    def token_id(self, code: int) -> int:
        """Return the id."""
        return int(code)

    def is_special(self, code: int) -> bool:
        """Tell whether the token is special: by its tokenizer, else by its text."""
        if isinstance(self.decoder, BytesDecoder):
            return self.decoder.token(int(code)).kind == "special"
        return looks_special(self.text(code))

    def prune(self, keep: np.ndarray) -> None:
        """Forget the stored texts of other ids."""
        kept = set(keep.tolist())
        self.texts = {code: text for code, text in self.texts.items() if code in kept}
