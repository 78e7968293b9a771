"""Synthetic rollouts for the benchmarks: Zipf-like ids over a large vocabulary, seeded, as canonical Parquet."""

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

VOCABULARY = 151_936
EXPONENT = 1.3
SHARED = 300  # so many of the most frequent ids are those of every group
ROW_GROUP_ROWS = 1024


@functools.cache
def _law() -> tuple[np.ndarray, np.ndarray]:
    """Return the cumulative law over ranks and the id of each rank: frequent ids stand anywhere in the vocabulary."""
    law = np.cumsum(np.arange(1.0, VOCABULARY + 1) ** -EXPONENT)
    return law / law[-1], np.random.default_rng(1).permutation(VOCABULARY).astype(np.int32)


def zipf_ids(rng: np.random.Generator, home: np.ndarray) -> np.ndarray:
    """Draw an int32 id for each position by Zipf's law; `home` (n,), the group's own, moves the rarer ids.

    Some 12 % of the tokens of a group of 16 x 1000 are distinct ids; real rollouts have 2 to 10 %.
    """
    law, id_of_rank = _law()
    rank = np.searchsorted(law, rng.random(len(home)))
    return id_of_rank[np.where(rank < SHARED, rank, SHARED + (rank - SHARED + home) % (VOCABULARY - SHARED))]


@functools.cache
def _words() -> pa.Array:
    """Return the text of every id, shorter for frequent ones: some 3 bytes a token, close to English."""
    words = np.empty(VOCABULARY, object)
    words[_law()[1]] = [f" {rank:x}" for rank in range(VOCABULARY)]
    return pa.array(words, pa.string())


def write_rollouts(
    path: Path,
    groups: int,
    size: int = 16,
    tokens: int = 1000,
    text: bool = True,
    shuffled: bool = False,
    seed: int = 0,
) -> int:
    """Write groups x size rollouts of about `tokens` tokens; return the number of tokens.

    Half of the rollouts are right, so that almost every group of 16 is mixed, and scoring works on all of it. Memory
    holds one row group. shuffled=True spreads the rows of every group over the file.
    """
    rng = np.random.default_rng(seed)
    home = rng.integers(0, VOCABULARY, groups)
    rows = np.arange(groups * size)
    if shuffled:
        rng.shuffle(rows)
    writer, total = None, 0
    for start in range(0, len(rows), ROW_GROUP_ROWS):
        chosen = rows[start : start + ROW_GROUP_ROWS]
        group = chosen // size
        lengths = np.maximum(1, rng.normal(tokens, tokens / 4, len(group)).astype(np.int64))
        ids = pa.array(zipf_ids(rng, np.repeat(home[group], lengths)))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        columns = {
            "group_id": pa.array([f"prompt-{g}" for g in group]),
            "rollout_id": pa.array([f"r{row}" for row in chosen]),
            "response_ids": pa.ListArray.from_arrays(offsets, ids),
            "reward": pa.array((rng.random(len(group)) < 0.5).astype(np.float32)),
        }
        if text:
            columns["response"] = pc.binary_join(pa.ListArray.from_arrays(offsets, _words().take(ids)), "")
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", compression_level=1)
        writer.write_table(table)
        total += len(ids)
    writer.close()
    return total


def join_row_groups(source: Path, target: Path) -> None:
    """Write the rows of a file again as one row group; all of them are in memory."""
    table = pq.read_table(source)
    pq.write_table(table, target, row_group_size=len(table), compression="zstd", compression_level=1)
