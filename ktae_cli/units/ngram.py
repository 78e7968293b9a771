"""Units that are runs of token ids."""

import numpy as np
import pyarrow as pa

from ktae_cli.token_text import BytesDecoder, Decoder, visible_token
from ktae_cli.units.base import MAX_CODE, Occurrences, TokenBatch, chunks, occurrences, runs_of
from ktae_cli.units.token import TokenVocabulary

LONGEST = 8
"""Tokens of the longest n-gram: a code keeps its length in three bits."""


class NgramReader:
    """Read every run of `shortest` to `longest` counted ids that follow each other.

    Units are equal where all ids are. Codes are 54 bits of a hash and the length; every occurrence is compared with the
    ids behind its code, and n-grams that share a hash get codes of their own.
    """

    def __init__(self, shortest: int, longest: int, decoder: Decoder, hash_bits: int = 54):
        self.sizes = range(shortest, longest + 1)
        self.vocabulary = NgramVocabulary(decoder)
        self.hash_bits = hash_bits

    def read(self, batch: TokenBatch) -> Occurrences:
        """Return every n-gram; those that begin at the same token stand from short to long."""
        self.vocabulary.tokens.see(batch)
        units, tokens = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for offset, rows in chunks(batch):
            unit, token = self._ngrams(rows)
            units.append(unit)
            tokens.append(token + offset)
        return occurrences(np.concatenate(units), np.concatenate(tokens), batch)

    def _ngrams(self, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        kept, first = runs_of(batch)
        ids = batch.token_ids[kept]
        run = np.cumsum(first)
        units, at, hashes = [], [], np.zeros(len(ids), np.uint64)
        for size in range(1, self.sizes[-1] + 1):
            n_windows = max(len(ids) - size + 1, 0)
            hashes = _mix(hashes[:n_windows] * _FACTOR + ids[size - 1 :].astype(np.uint64) + np.uint64(1))
            if size in self.sizes:
                inside = np.flatnonzero(run[:n_windows] == run[size - 1 :])
                units.append(self._codes(hashes[inside], np.stack([ids[inside + j] for j in range(size)])))
                at.append(inside)
        token = kept[np.concatenate(at)]
        order = np.argsort(token, kind="stable")
        return np.concatenate(units)[order], token[order]

    def _codes(self, hashes: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the code of each n-gram (n,) from its hash (n,) and its ids (size, n)."""
        codes = (hashes >> np.uint64(64 - self.hash_bits)).astype(np.int64) << 3 | len(ids) - 1
        return self.vocabulary.encode(codes, ids)


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: np.ndarray) -> np.ndarray:
    """Return 64-bit numbers with all bits stirred: a bijection, the last step of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class NgramVocabulary:
    """The ids behind each code: by length, sorted codes (n,), ids (n, size); in `others` those sharing a hash."""

    def __init__(self, decoder: Decoder):
        self.decoder, self.tokens = decoder, TokenVocabulary(decoder)
        self.codes: dict[int, np.ndarray] = {}
        self.rows: dict[int, np.ndarray] = {}
        self.others: dict[tuple[int, ...], int] = {}
        self.contested: set[int] = set()

    def encode(self, codes: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return codes that tell all n-grams apart, from proposed ones (n,) and the ids (size, n) behind them."""
        owners, index = self._owners(codes, ids)
        strangers = np.zeros(len(codes), bool)
        for own, column in zip(ids, owners.T, strict=True):
            strangers |= own != column[index]
        return self._told_apart(codes, ids, np.flatnonzero(strangers))

    def _owners(self, codes: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids that own each distinct code (k, size) and which one each n-gram's is (n,); keep new ones."""
        size = len(ids)
        known = self.codes.get(size, np.zeros(0, np.int64))
        rows = self.rows.get(size, np.zeros((0, size), np.int32))
        encoded = pa.array(codes).dictionary_encode()
        distinct, index = np.asarray(encoded.dictionary), np.asarray(encoded.indices)
        # Codes are numbered as they appear, so the highest number so far rises where a code is new.
        first = np.flatnonzero(np.diff(np.maximum.accumulate(index), prepend=-1)) if len(index) else index
        owners = ids[:, first].T
        at = np.searchsorted(known, distinct)
        old = at < len(known)
        old[old] = known[at[old]] == distinct[old]
        owners[old] = rows[at[old]]
        order = np.argsort(distinct[~old])
        places = at[~old][order]
        self.codes[size] = np.insert(known, places, distinct[~old][order])
        self.rows[size] = np.insert(rows, places, owners[~old][order], axis=0)
        return owners, index

    def _told_apart(self, codes: np.ndarray, ids: np.ndarray, strangers: np.ndarray) -> np.ndarray:
        for at in strangers.tolist():
            self.contested.add(int(codes[at]))
            codes[at] = self.others.setdefault(tuple(ids[:, at].tolist()), MAX_CODE // 2 + len(self.others))
        return codes

    def ids(self, code: int) -> tuple[int, ...]:
        """Return the ids of an n-gram."""
        if code >= MAX_CODE // 2:
            return next(ids for ids, other in self.others.items() if other == code)
        size = (int(code) & 7) + 1
        return tuple(self.rows[size][np.searchsorted(self.codes[size], code)].tolist())

    def text(self, code: int) -> str:
        """Return the n-gram as it stands in responses."""
        ids = self.ids(code)
        if isinstance(self.decoder, BytesDecoder):
            return b"".join(self.decoder.token(token_id).data for token_id in ids).decode("utf-8", "replace")
        return "".join(map(self.tokens.text, ids))

    def name(self, code: int) -> str:
        """Return the n-gram in visible form."""
        return visible_token(self.text(code))

    def token_id(self, code: int) -> None:
        """Return None: the unit is no token."""

    def is_special(self, code: int) -> bool:
        """Return False: the unit is no token."""
        return False

    def prune(self, keep: np.ndarray) -> None:
        """Forget the ids of every other code; n-grams that share a hash are kept, so that their codes stay."""
        keep = np.concatenate([keep, np.array(sorted(self.contested), np.int64)])
        for size, codes in self.codes.items():
            kept = np.isin(codes, keep)
            self.codes[size], self.rows[size] = codes[kept], self.rows[size][kept]
