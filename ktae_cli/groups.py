"""Which group each row belongs to: the key columns read once, nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ktae_cli.errors import InputError
from ktae_cli.group_warnings import warn_of_groups
from ktae_cli.mapping import Mapping
from ktae_cli.readers.base import column_at, decoded, digests, is_list, root_of


@dataclass(frozen=True)
class GroupIndex:
    """The group of every row: `codes` (n_rows,) int64 by first appearance, `keys` the texts of the codes."""

    codes: np.ndarray
    keys: list[str]
    sizes: np.ndarray
    warnings: tuple[str, ...] = ()

    @property
    def contiguous(self) -> bool:
        """Tell whether the rows of each group stand together."""
        codes = self.codes[self.codes >= 0]
        return bool(1 + np.count_nonzero(np.diff(codes)) == len(self.keys))

    def limited(self, n_groups: int) -> "GroupIndex":
        """Return the index of the first groups only; rows of the others get code -1."""
        codes = np.where(self.codes < n_groups, self.codes, -1)
        return GroupIndex(codes, self.keys[:n_groups], self.sizes[:n_groups], self.warnings)

    def only(self, chosen: np.ndarray) -> "GroupIndex":
        """Return the index of chosen groups (codes), in order of first appearance; rows of the others get code -1."""
        chosen = np.sort(chosen)
        number = np.full(len(self.keys) + 1, -1)
        number[chosen] = np.arange(len(chosen))
        keys = [self.keys[code] for code in chosen.tolist()]
        return GroupIndex(number[self.codes], keys, self.sizes[chosen], self.warnings)


def scan_groups(
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    mapping: Mapping,
    place: Callable[[int], str],
) -> GroupIndex:
    """Read only the key columns once and give every row its group code.

    `warnings` say what of the groups looks wrong (group_warnings.py).
    """
    paths = [*mapping.group_key, *filter(None, [mapping.path("rollout_id")])]
    roots = list(dict.fromkeys(root_of(schema, path) for path in paths))
    code_of: dict[str, int] = {}
    codes, hashes, row = [], [], 0
    for batch in batches(roots):
        keys = group_keys(batch, mapping, lambda i, first=row: place(first + i)).dictionary_encode()
        distinct = decoded(keys.dictionary, "the group key", place(row))
        known = np.array([code_of.setdefault(key, len(code_of)) for key in distinct], np.int64)
        codes.append(known[np.asarray(keys.indices)])
        if mapping.path("rollout_id"):
            ids = column_at(batch, mapping.path("rollout_id")).cast(pa.large_string())
            # Rows without an id share none: each stands for itself.
            texts = decoded(ids, mapping.path("rollout_id"), place(row))
            hashes.append(np.array([hash((row, i) if t is None else t) for i, t in enumerate(texts)], np.int64))
        row += len(batch)
    all_codes = np.concatenate(codes) if codes else np.zeros(0, np.int64)
    index = GroupIndex(all_codes, list(code_of), np.bincount(all_codes, minlength=len(code_of)))
    rollouts = np.concatenate(hashes) if hashes else None
    return replace(index, warnings=tuple(warn_of_groups(index, rollouts, batches, schema, mapping)))


def group_keys(batch: pa.RecordBatch, mapping: Mapping, place: Callable[[int], str]) -> pa.Array:
    """Return the text of each row's group key; raise `InputError` for a null in it."""
    parts = []
    for path in mapping.group_key:
        array = column_at(batch, path)
        if array.null_count:
            row = int(np.nonzero(np.asarray(array.is_null()))[0][0])
            raise InputError(f"{place(row)}: {path} is null, so the row belongs to no group; fill it or use --group-by")
        if mapping.hashed and path == mapping.group_key[-1]:
            array = digests(array, path, place(0))
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
