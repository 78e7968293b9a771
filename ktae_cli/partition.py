"""Slices of the input that never cut a group, from rows in any order, without holding more than a slice."""

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ktae_cli.readers.base import list_lengths, list_values
from ktae_cli.rollouts import Rollouts, concat_rollouts, reward_parts

BUCKET_BYTES = 4 << 20
"""Aim for the size of one bucket of a spill; at most `MAX_BUCKETS` files are open at once."""
MAX_BUCKETS = 512


class Chunker:
    """Cut a stream of contiguous groups into chunks of whole groups of about `tokens` tokens."""

    def __init__(self, sizes: np.ndarray, tokens: int):
        self.sizes, self.tokens = sizes, tokens
        self.parts: list[Rollouts] = []
        self.held = 0

    def push(self, rows: Rollouts, flush: bool = False) -> Iterator[Rollouts]:
        """Add rows; yield what has become complete, with `flush` every complete group however small."""
        if not len(rows):
            return
        self.parts.append(rows)
        self.held += int(rows.lengths.sum())
        if (self.held < self.tokens and not flush) or self._inside_one_group():
            return
        joined = concat_rollouts(self.parts)
        self.parts = []
        yield from self._cut(joined)

    def rest(self) -> Iterator[Rollouts]:
        """Yield the last chunk."""
        if self.parts:
            yield concat_rollouts(self.parts)
            self.parts = []

    def _inside_one_group(self) -> bool:
        """Tell whether all held rows belong to one group that is not complete: nothing to cut, nothing to copy."""
        group = self.parts[0].group[0]
        return self.parts[-1].group[-1] == group and sum(map(len, self.parts)) < self.sizes[group]

    def _cut(self, rows: Rollouts) -> Iterator[Rollouts]:
        starts = np.flatnonzero(np.diff(rows.group, prepend=-1))
        complete = len(rows) - starts[-1] == self.sizes[rows.group[-1]]
        ends = np.append(starts[1:], len(rows)) if complete else starts[1:]
        running = np.concatenate([[0], np.cumsum(rows.lengths)])
        first = 0
        for end in ends.tolist():
            if running[end] - running[first] >= self.tokens or (end == ends[-1] and end > first):
                yield rows.slice(first, end)
                first = end
        if first < len(rows):
            self.parts = [rows.slice(first, len(rows))]
        self.held = int(running[-1] - running[first])


class Spill:
    """Buckets of whole groups in temporary Arrow files: what scoring reads, in an order where groups stand together."""

    def __init__(self, directory: str, n_groups: int, total_bytes: int):
        self.directory = directory
        self.n_buckets = max(1, min(MAX_BUCKETS, n_groups, -(-total_bytes // BUCKET_BYTES)))
        self.n_groups, self.row = n_groups, 0
        self.writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}

    def add(self, rows: Rollouts) -> None:
        """Write rows to the buckets of their groups; rows of no group (code -1) are counted and dropped."""
        numbers = np.arange(self.row, self.row + len(rows))
        self.row += len(rows)
        table = _to_arrow(rows, numbers)
        bucket = np.where(rows.group < 0, self.n_buckets, rows.group * self.n_buckets // self.n_groups)
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(self.n_buckets + 1))
        table = table.take(pa.array(order))
        for b in np.flatnonzero(np.diff(ends)).tolist():
            if b not in self.writers:
                self.writers[b] = pa.ipc.new_stream(self._path(b), table.schema)
            self.writers[b].write_batch(table.slice(ends[b], ends[b + 1] - ends[b]))

    def close(self) -> None:
        """Finish the files."""
        for writer in self.writers.values():
            writer.close()

    def buckets(self, keep: bool = False) -> Iterator[tuple[Rollouts, np.ndarray]]:
        """Yield (rows, their row numbers) bucket by bucket, groups in order of first appearance.

        Files go as they are read, unless they are kept for another pass.
        """
        for b in range(self.n_buckets):
            if b not in self.writers:
                continue
            with pa.OSFile(self._path(b)) as file:
                table = pa.ipc.open_stream(file).read_all()
            if not keep:
                os.unlink(self._path(b))
            group = table["group"].to_numpy()
            table = table.take(pa.array(np.argsort(group, kind="stable")))
            yield _from_arrow(table), table["row"].to_numpy()

    def _path(self, bucket: int) -> str:
        return os.path.join(self.directory, f"bucket-{bucket}.arrow")


def _to_arrow(rows: Rollouts, numbers: np.ndarray) -> pa.RecordBatch:
    offsets = pa.array(np.concatenate([[0], np.cumsum(rows.lengths)]), pa.int64())
    columns = {
        "row": numbers,
        "group": rows.group,
        "reward": rows.reward,
        "correct": rows.correct,
        "scored": rows.scored,
    }
    columns = {name: pa.array(values) for name, values in columns.items()}
    columns["token_ids"] = pa.LargeListArray.from_arrays(offsets, pa.array(rows.token_ids))
    mask = np.ones(len(rows.token_ids), bool) if rows.mask is None else rows.mask
    columns["mask"] = pa.LargeListArray.from_arrays(offsets, pa.array(mask))
    for name, values in rows.tokens.items():
        columns[f"tokens.{name}"] = pa.LargeListArray.from_arrays(offsets, pa.array(values))
    if rows.parts is not None:
        columns["parts"] = _to_map(rows.parts, len(rows))
    if rows.trajectory is not None:
        columns["trajectory"] = pa.array(rows.trajectory, pa.large_string())
    if rows.step is not None:
        columns["step"] = pa.array(rows.step)
    if rows.prompt is not None:
        columns |= {"prompt": pa.array(rows.prompt), "cut_off": pa.array(rows.cut_off)}
    return pa.RecordBatch.from_pydict(columns)


def _from_arrow(table: pa.Table) -> Rollouts:
    def flat(name: str) -> np.ndarray:
        array = table[name].combine_chunks()
        return list_values(array).to_numpy(zero_copy_only=False)

    lists = table["token_ids"].combine_chunks()
    mask = flat("mask")
    return Rollouts(
        *(table[name].to_numpy() for name in ("group", "reward", "correct", "scored")),
        list_lengths(lists)[0],
        list_values(lists).to_numpy(zero_copy_only=False),
        None if mask.all() else mask,
        table["trajectory"].to_numpy() if "trajectory" in table.column_names else None,
        table["step"].to_numpy() if "step" in table.column_names else None,
        {name[7:]: flat(name) for name in table.column_names if name.startswith("tokens.")},
        reward_parts(table["parts"].combine_chunks()) if "parts" in table.column_names else None,
        table["prompt"].to_numpy() if "prompt" in table.column_names else None,
        table["cut_off"].to_numpy() if "cut_off" in table.column_names else None,
    )


def _to_map(parts: dict[str, np.ndarray], n_rows: int) -> pa.MapArray:
    """Return the parts of the rewards as one map column: their names may differ from batch to batch."""
    offsets = pa.array(np.arange(n_rows + 1, dtype=np.int32) * len(parts))
    names = pa.array(list(parts) * n_rows, pa.string())
    values = np.stack(list(parts.values()), 1).ravel() if parts else np.zeros(0)
    return pa.MapArray.from_arrays(offsets, names, pa.array(values, pa.float64()))
