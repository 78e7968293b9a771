"""Synthetic rollouts for the benchmarks: Zipf-like ids over a large vocabulary, seeded, written as canonical Parquet."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

VOCABULARY = 151_936


def write_rollouts(
    path: Path, groups: int, size: int = 16, tokens: int = 1000, text: bool = True, shuffled: bool = False, seed: int = 0
) -> int:
    """Write groups x size rollouts of about `tokens` tokens; return the number of tokens.

    Row groups hold 1024 rows. shuffled=True spreads the rows of every group over the file.
    """
    rng = np.random.default_rng(seed)
    rows = np.arange(groups * size)
    if shuffled:
        rng.shuffle(rows)
    words = pa.array([f" w{i:x}" for i in range(VOCABULARY)])
    writer, total = None, 0
    for start in range(0, len(rows), 1024):
        group = rows[start : start + 1024] // size
        lengths = np.maximum(1, rng.normal(tokens, tokens / 4, len(group)).astype(np.int64))
        ids = zipf_ids(rng, int(lengths.sum()), np.repeat(group, lengths))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        columns = {
            "group_id": pa.array([f"prompt-{g}" for g in group]),
            "rollout_id": pa.array([f"r{row}" for row in rows[start : start + 1024]]),
            "response_ids": pa.ListArray.from_arrays(offsets, pa.array(ids)),
            "reward": pa.array((rng.random(len(group)) < 0.5).astype(np.float32)),
        }
        if text:
            pieces = pa.ListArray.from_arrays(offsets, words.take(pa.array(ids)))
            columns["response"] = pc.binary_join(pieces, "")
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=1)
        writer.write_table(table)
        total += len(ids)
    writer.close()
    return total


def zipf_ids(rng: np.random.Generator, n: int, group: np.ndarray) -> np.ndarray:
    """Return n int32 ids by Zipf's law with exponent 1.3, the rarer ones moved by an offset of the group's own.

    Some 12 % of the tokens of a group of 16 x 1000 are distinct ids; real rollouts have 2 to 10 %.
    """
    law = np.cumsum(np.arange(1.0, VOCABULARY + 1) ** -1.3)
    ranks = np.searchsorted(law / law[-1], rng.random(n))
    own = rng.integers(0, VOCABULARY, int(group.max(initial=0)) + 1)
    return np.where(ranks < 300, ranks, 300 + (ranks + own[group]) % (VOCABULARY - 300)).astype(np.int32)
