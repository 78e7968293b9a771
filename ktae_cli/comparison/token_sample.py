"""The tokens of which ranks and top sets are taken: all of them, or whole groups up to a limit."""

import hashlib

import numpy as np

from ktae_cli.comparison.agreement import CoMoments, jaccard, top_values, twice_ranks

SAMPLE_TOKENS = 16 << 20
"""Tokens of which ranks are taken; above it whole groups are sampled."""


class TokenSample:
    """Values of whole groups' tokens for ranks, at most `limit` of them.

    Above it the groups whose hash lies in the upper half go, then those in the upper quarter of what is left, and so
    on: which groups stay depends on their names alone.
    """

    def __init__(self, n_compared: int, groups: list[str], limit: int):
        self.groups, self.limit, self.halvings, self.held = groups, limit, 0, 0
        self.hashes: np.ndarray | None = None
        self.parts: list[list[np.ndarray]] = [[] for _ in range(n_compared)]
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, values: np.ndarray, group: np.ndarray, lengths: np.ndarray) -> None:
        """Add the values (n_compared, n_tokens) of rows of groups (n_rows,) with these lengths."""
        self._hold(values, group, lengths)
        while self.held > self.limit:
            self.halvings += 1
            parts, rows = self.parts, self.rows
            self.parts, self.rows, self.held = [[] for _ in parts], [], 0
            for at, (groups, sizes) in enumerate(rows):
                self._hold([part[at] for part in parts], groups, sizes)

    def _hold(self, values, group: np.ndarray, lengths: np.ndarray) -> None:
        keep = self._is_kept(group)
        tokens = np.repeat(keep, lengths)
        for part, row in zip(self.parts, values, strict=True):
            part.append(row[tokens] if not keep.all() else row.copy())
        self.rows.append((group[keep], lengths[keep]))
        self.held += int(lengths[keep].sum())

    def _is_kept(self, group: np.ndarray) -> np.ndarray:
        if not self.halvings:
            return np.ones(len(group), bool)
        if self.hashes is None:
            digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in self.groups)
            self.hashes = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)
        return self.hashes[group] >> np.uint64(64 - min(self.halvings, 63)) == 0

    def kept_groups(self) -> np.ndarray:
        """Return the codes of the groups that are held."""
        return np.unique(np.concatenate([group for group, _ in self.rows] or [np.zeros(0, np.int64)]))

    def measure(self) -> dict[str, np.ndarray]:
        """Return Spearman's rho and the top sets' Jaccard index of every pair, and each top set's share; use it up."""
        tops, moments = [], CoMoments(len(self.parts))
        for at, part in enumerate(self.parts):
            values = np.concatenate(part or [np.zeros(0, np.float32)])
            tops.append(top_values(values))
            self.parts[at] = [twice_ranks(values)]
        if self.held:
            for start in range(0, self.held, 1 << 20):
                moments.add(np.stack([part[0][start : start + (1 << 20)] for part in self.parts]))
        share = np.array([np.count_nonzero(top) / max(self.held, 1) for top in tops])
        return {"spearman": moments.correlations(), "jaccard": jaccard(tops), "top_share": share}
