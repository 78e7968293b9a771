"""What of the groups looks wrong before anything is scored; each check is one sentence with the way out."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from ktae_cli.mapping import Mapping
from ktae_cli.readers.base import column_at, decoded, digests, is_list, root_of

Batches = Callable[[list[str]], Iterator[pa.RecordBatch]]


def warn_of_groups(
    index, rollouts: np.ndarray | None, batches: Batches, schema: pa.Schema, mapping: Mapping
) -> Iterator[str]:
    """Yield warnings about a GroupIndex; rollouts (n_rows,) int64 are hashes of the rollout ids.

    A rollout_id in two groups; every row a group of its own while prompts repeat; several prompts, or several ground
    truths, in one group. Reads the prompt and the ground truth once where there are such columns.
    """
    first_parts = np.ones(len(index.codes), bool)
    if rollouts is not None:
        shared, first_parts = _rollout_ids(index.codes, rollouts)
        if shared:
            yield f"{shared} rollout_id(s) stand in more than one group; a rollout belongs to one prompt"
    key = " + ".join(mapping.group_key)
    prompt = mapping.path("prompt") or mapping.path("prompt_ids")
    if prompt and prompt not in mapping.group_key:
        differ, n_prompts, n_rows = _values_in_groups(index, batches, schema, prompt, first_parts)
        if 1 < len(index.keys) == len(index.codes) and n_prompts < n_rows:
            yield (
                f"every row is a group of its own, so every advantage is 0, while only {n_prompts} of {n_rows} "
                f"prompts differ: {key} does not name prompts; use --group-by {prompt}"
            )
        if len(differ):
            yield (
                f"{len(differ)} of {len(index.keys)} groups hold several prompts (the first: "
                f"{index.keys[differ[0]][:80]!r}): {key} does not name prompts alone; use --group-by {prompt}, or add "
                "a column as in --group-by A,B"
            )
    answer = mapping.path("ground_truth")
    if answer:
        differ, _, _ = _values_in_groups(index, batches, schema, answer, first_parts)
        if len(differ):
            yield f"{len(differ)} group(s) hold several values of {answer}: name the problems with --group-by COLUMN"


def _rollout_ids(codes: np.ndarray, hashes: np.ndarray) -> tuple[int, np.ndarray]:
    """Return how many rollout ids stand in two groups, and which rows are the first part of their trajectory."""
    order = np.lexsort([np.arange(len(codes)), codes, hashes])
    same_id = hashes[order][1:] == hashes[order][:-1]
    same_group = codes[order][1:] == codes[order][:-1]
    first = np.ones(len(codes), bool)
    first[order[1:][same_id & same_group]] = False
    shared = np.unique(hashes[order][1:][same_id & ~same_group])
    return len(shared), first


def _values_in_groups(index, batches: Batches, schema: pa.Schema, path: str, counted: np.ndarray):
    """Return (codes of groups with several values of a column, distinct values, rows with a value)."""
    first_value = np.zeros(len(index.keys), np.int64)
    seen, differ = np.zeros(len(index.keys), bool), np.zeros(len(index.keys), bool)
    distinct, n_rows, row = set(), 0, 0
    for batch in batches([root_of(schema, path)]):
        array = column_at(batch, path)
        rows = slice(row, row + len(batch))
        row += len(batch)
        values, texts = _hashes(array, path)
        known = counted[rows] & ~np.asarray(array.is_null())
        distinct.update(texts)
        n_rows += int(known.sum())
        code, value = index.codes[rows][known], values[known]
        new = ~seen[code]
        first_value[code[new][::-1]] = value[new][::-1]  # written backwards: the first of a group stays
        seen[code] = True
        differ[code[value != first_value[code]]] = True
    return np.flatnonzero(differ), len(distinct), n_rows


def _hashes(array: pa.Array, path: str) -> tuple[np.ndarray, list[int]]:
    """Return a hash of each row's value, and those of the distinct values."""
    if is_list(array.type):
        array = digests(array, path, path)
    encoded = array.cast(pa.large_string()).dictionary_encode()
    distinct = [hash(text) for text in decoded(encoded.dictionary, path, path) if text is not None]
    codes = np.asarray(encoded.indices.fill_null(0))
    return (np.array(distinct, np.int64)[codes] if distinct else np.zeros(len(array), np.int64)), distinct
