"""Slices of the input that never cut a group, from rows in any order, without holding more than a slice."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError
from ktae_cli.mapping import Mapping
from ktae_cli.readers.base import column_at, is_list, list_lengths, list_values, root_of
from ktae_cli.rollouts import Rollouts, concat_rollouts

BUCKET_BYTES = 4 << 20
"""Aim for the size of one bucket of a spill; at most `MAX_BUCKETS` files are open at once."""
MAX_BUCKETS = 512


@dataclass(frozen=True)
class GroupIndex:
    """The group of every row: `codes` (n_rows,) int64 by first appearance, `keys` the texts of the codes."""

    codes: np.ndarray
    keys: list[str]
    sizes: np.ndarray
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def contiguous(self) -> bool:
        """Tell whether the rows of each group stand together."""
        codes = self.codes[self.codes >= 0]
        return bool(1 + np.count_nonzero(np.diff(codes)) == len(self.keys))

    def limited(self, n_groups: int) -> "GroupIndex":
        """Return the index of the first groups only; rows of the others get code -1."""
        codes = np.where(self.codes < n_groups, self.codes, -1)
        return GroupIndex(codes, self.keys[:n_groups], self.sizes[:n_groups], self.notices, self.warnings)


def scan_groups(
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    mapping: Mapping,
    place: Callable[[int], str],
) -> GroupIndex:
    """Read only the key columns once and give every row its group code.

    Warns when every row is a group of its own while prompts repeat, when a rollout_id stands in two groups, and when
    rollouts that only their prompt groups have different ground truths.
    """
    paths = [*mapping.group_key, *filter(None, [mapping.path("rollout_id")])]
    roots = list(dict.fromkeys(root_of(schema, path) for path in paths))
    code_of: dict[str, int] = {}
    codes, hashes, row = [], [], 0
    for batch in batches(roots):
        keys = group_keys(batch, mapping, lambda i, first=row: place(first + i)).dictionary_encode()
        distinct = _decoded(keys.dictionary, "the group key", place(row))
        known = np.array([code_of.setdefault(key, len(code_of)) for key in distinct], np.int64)
        codes.append(known[np.asarray(keys.indices)])
        if mapping.path("rollout_id"):
            ids = column_at(batch, mapping.path("rollout_id")).cast(pa.large_string())
            # Rows without an id share none: each stands for itself.
            texts = _decoded(ids, mapping.path("rollout_id"), place(row))
            hashes.append(np.array([hash((row, i) if t is None else t) for i, t in enumerate(texts)], np.int64))
        row += len(batch)
    all_codes = np.concatenate(codes) if codes else np.zeros(0, np.int64)
    warnings = []
    if hashes:
        warnings += _shared_rollout_ids(all_codes, np.concatenate(hashes))
    index = GroupIndex(all_codes, list(code_of), np.bincount(all_codes, minlength=len(code_of)))
    warnings += _every_row_alone(index, batches, schema, mapping)
    warnings += _two_answers(index, batches, schema, mapping)
    return GroupIndex(index.codes, index.keys, index.sizes, warnings=tuple(warnings))


def _decoded(texts: pa.Array, what: str, where: str) -> list[str | None]:
    try:
        return texts.to_pylist()
    except UnicodeDecodeError:
        raise InputError(f"{where} or a row after it: {what} is not UTF-8 text; the file is damaged") from None


def group_keys(batch: pa.RecordBatch, mapping: Mapping, place: Callable[[int], str]) -> pa.Array:
    """Return the text of each row's group key; raise `InputError` for a null in it."""
    parts = []
    for path in mapping.group_key:
        array = column_at(batch, path)
        if array.null_count:
            row = int(np.nonzero(np.asarray(array.is_null()))[0][0])
            raise InputError(f"{place(row)}: {path} is null, so the row belongs to no group; fill it or use --group-by")
        if mapping.hashed and path == mapping.group_key[-1]:
            array = _digests(array, path, place(0))
        elif is_list(array.type) or pa.types.is_nested(array.type):
            raise InputError(
                f"--group-by {path}: a column of {array.type} cannot name groups; use a text or number column"
            )
        parts.append(_texts(array, path))
    # A slash or backslash in all parts but the last is escaped, so that "a/b" + "c" and "a" + "b/c" stay apart.
    parts[:-1] = [pc.replace_substring_regex(part, r"([\\/])", r"\\\1") for part in parts[:-1]]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, pa.scalar("/", pa.large_string()))


def _texts(array: pa.Array, path: str) -> pa.Array:
    try:
        return array.cast(pa.large_string())
    except pa.ArrowException:
        raise InputError(
            f"{path}: a column of {array.type} cannot name groups; use a text or number column with --group-by"
        ) from None


def _digests(array: pa.Array, path: str, where: str) -> pa.Array:
    """Return the first 16 hex digits of the SHA-256 of each text, or of each list's ids as little-endian int32."""
    if not is_list(array.type):
        encoded = array.cast(pa.large_string()).dictionary_encode()
        texts = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in _decoded(encoded.dictionary, path, where)]
        return pa.array(texts, pa.large_string()).take(encoded.indices)
    flat = np.asarray(list_values(array).cast(pa.int64(), safe=False).fill_null(-1)).astype("<i4")
    ends = np.cumsum(list_lengths(array)[0])
    rows = np.split(flat, ends[:-1]) if len(ends) else []
    return pa.array([hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in rows], pa.large_string())


def _shared_rollout_ids(codes: np.ndarray, hashes: np.ndarray) -> list[str]:
    order = np.lexsort([codes, hashes])
    same_id = hashes[order][1:] == hashes[order][:-1]
    shared = np.count_nonzero(same_id & (codes[order][1:] != codes[order][:-1]))
    return [f"{shared} rollout_id(s) stand in more than one group; a rollout belongs to one prompt"] if shared else []


def _every_row_alone(index: GroupIndex, batches, schema: pa.Schema, mapping: Mapping) -> list[str]:
    prompt = mapping.path("prompt") or mapping.path("prompt_ids")
    if len(index.keys) < 2 or len(index.keys) != len(index.codes) or prompt is None or prompt in mapping.group_key:
        return []
    seen, n_rows = set(), 0
    for batch in batches([root_of(schema, prompt)]):
        array = column_at(batch, prompt)
        seen.update(_digests(array.filter(array.is_valid()), prompt, prompt).to_pylist())
        n_rows += len(batch) - array.null_count
    if len(seen) == n_rows:
        return []
    return [
        f"every row is a group of its own, so every advantage is 0, while only {len(seen)} of {n_rows} prompts differ: "
        f"{' + '.join(mapping.group_key)} does not name prompts; use --group-by {prompt}"
    ]


def _two_answers(index: GroupIndex, batches, schema: pa.Schema, mapping: Mapping) -> list[str]:
    path = mapping.path("ground_truth")
    if not mapping.hashed or path is None:
        return []
    answer_of: dict[int, int] = {}
    apart, row = set(), 0
    for batch in batches([root_of(schema, path)]):
        answers = _decoded(column_at(batch, path).cast(pa.large_string()), path, path)
        for code, answer in zip(index.codes[row : row + len(batch)].tolist(), answers, strict=True):
            if answer is not None and answer_of.setdefault(code, hash(answer)) != hash(answer):
                apart.add(code)
        row += len(batch)
    if not apart:
        return []
    return [
        f"{len(apart)} group(s) of one prompt hold several values of {path}: name the problems with --group-by COLUMN"
    ]


class Chunker:
    """Cut a stream of contiguous groups into chunks of whole groups of about `tokens` tokens."""

    def __init__(self, sizes: np.ndarray, tokens: int):
        self.sizes, self.tokens = sizes, tokens
        self.parts: list[Rollouts] = []
        self.held = 0

    def push(self, rows: Rollouts) -> Iterator[Rollouts]:
        """Add rows; yield what has become complete."""
        if not len(rows):
            return
        self.parts.append(rows)
        self.held += int(rows.lengths.sum())
        if self.held < self.tokens or self._inside_one_group():
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

    def buckets(self) -> Iterator[tuple[Rollouts, np.ndarray]]:
        """Yield (rows, their row numbers) bucket by bucket, groups in order of first appearance; files go as read."""
        for b in range(self.n_buckets):
            if b not in self.writers:
                continue
            with pa.OSFile(self._path(b)) as file:
                table = pa.ipc.open_stream(file).read_all()
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
    if rows.trajectory is not None:
        columns["trajectory"] = pa.array(rows.trajectory, pa.large_string())
    if rows.step is not None:
        columns["step"] = pa.array(rows.step)
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
    )
