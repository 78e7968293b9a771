"""Two scored files of the same rollouts side by side: joined by group_id and rollout_id, in any row order."""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.comparison.aligned import AlignedRows
from ktae_cli.comparison.report import SideBySide
from ktae_cli.comparison.rows import ComparedRows, check_output
from ktae_cli.comparison.token_sample import SAMPLE_TOKENS
from ktae_cli.errors import InputError, MissingColumnError
from ktae_cli.readers.base import list_lengths, list_values
from ktae_cli.readers.scored import Columns, ScoredFile, ids_of, text_of, verdicts
from ktae_cli.token_text import choose_decoder, plain_stored_texts, visible_token

_NAMING = ("response_ids", "response_mask", "response_tokens", "correct", "reward", "finish_reason")


@dataclass(frozen=True)
class FileOptions:
    """How two scored files are compared."""

    by: str = "advantages"
    limit: int = 0
    tokenizer: Path | None = None
    rollouts: Path | None = None
    strict: bool = False
    ranked_tokens: int = SAMPLE_TOKENS
    notice: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None


def compare_files(paths: tuple[Path, Path], output: Path | None, force: bool, options: FileOptions) -> dict[str, Any]:
    """Compare one column of two scored files; return the report and write the rows to `output` if given.

    Rows that only one file holds, whose token counts differ, or that one file leaves null are counted and left out.
    Raises `InputError` where no row can be compared. Verdicts, masks and ids are those of the first file.
    """
    first, second = ScoredFile(paths[0], options.rollouts), ScoredFile(paths[1])
    for file in (first, second):
        if options.by not in file.value_columns():
            file.require([options.by])
            raise MissingColumnError(
                f"{file.path.name}: {options.by!r} holds no number for each token; "
                f"columns that do: {', '.join(file.value_columns())}"
            )
    if output:
        check_output(output, force, list(paths))
    names = _names(paths)
    groups, codes, ids, partner = _join(first, second)
    decoder, origin = choose_decoder(options.tokenizer, paths, first.has("response_tokens"))
    options.notice(origin)
    table = SideBySide(names, groups, options.ranked_tokens)
    counts = {
        "rows_only_in_first": int((partner < 0).sum()),
        "rows_only_in_second": second.n_rows - int((partner >= 0).sum()),
        "rows_of_other_length": 0, "rows_null": 0, "rows_not_finite": 0,
    }  # fmt: skip
    kept = np.ones(len(codes), bool) if not options.limit else codes < options.limit
    with ExitStack() as stack:
        sink = stack.enter_context(ComparedRows(output, force, ["first", "second"])) if output else None
        stored = stack.enter_context(_StoredValues(second, options.by))
        for numbers, columns in first.batches([options.by, *_NAMING], np.flatnonzero(kept)):
            rows = _aligned(first, columns, numbers, (codes, ids, partner), stored, options.by, decoder, counts)
            if len(rows):
                facts = table.add(rows)
                if sink:
                    sink.write(rows, facts, groups)
            options.progress(int(numbers[-1]) + 1, first.n_rows)
        _speak_of(counts, names, first, table, options)
        report = {"compared": "files", "names": names, "column": options.by, **table.report(), **counts}
        report["output"] = str(output) if output else None
        if sink:
            sink.close(report, [])
    return report


def _names(paths: tuple[Path, Path]) -> list[str]:
    """Return the files' names, or their paths where the names are the same."""
    names = [path.name for path in paths]
    if names[0] == names[1]:
        names = [str(path) for path in paths]
    return names if names[0] != names[1] else [names[0], f"{names[1]} (again)"]


def _join(first: ScoredFile, second: ScoredFile) -> tuple[list[str], np.ndarray, pa.Array, np.ndarray]:
    """Return the first file's groups, its rows' group codes and rollout ids, and the second's row of each, or -1.

    Rows of one group_id and rollout_id, the parts of a trajectory, are joined in their order.
    """
    tables = [_read_ids(file) for file in (first, second)]
    group, names = _codes([table[0] for table in tables])
    rollout, known = _codes([table[1] for table in tables])
    n = first.n_rows
    key = group * (len(known) + 1) + rollout
    _, key = np.unique(key, return_inverse=True)
    part = np.concatenate([_occurrence(key[:n]), _occurrence(key[n:])])
    key = key * (part.max(initial=0) + 1) + part
    order = np.argsort(key[n:])
    place = np.searchsorted(key[n:], key[:n], sorter=order).clip(max=max(len(order) - 1, 0))
    partner = order[place] if len(order) else np.full(n, -1)
    partner = np.where(key[n:][partner] == key[:n], partner, -1) if len(order) else partner
    return names, group[:n], tables[0][1], partner


def _read_ids(file: ScoredFile) -> tuple[pa.Array, pa.Array]:
    file.require(["group_id", "rollout_id"])
    parts: list[tuple[pa.Array, pa.Array]] = []
    for _, columns in file.batches(["group_id", "rollout_id"]):
        found = tuple(text_of(columns[name]) for name in ("group_id", "rollout_id"))
        if found[0].null_count:
            raise InputError(f"{file.path.name}: group_id is null in {found[0].null_count} rows")
        parts.append(found)
    if not parts:
        raise InputError(f"{file.path.name} holds no rows")
    joined = [pa.concat_arrays([part[at] for part in parts]) for at in range(2)]
    for array, name in zip(joined, ("group_id", "rollout_id"), strict=True):
        ids_of(array.dictionary_encode().dictionary, file.path, name)  # says what is not UTF-8
    return joined[0], joined[1]


def _codes(arrays: list[pa.Array]) -> tuple[np.ndarray, list[str]]:
    """Number texts by first appearance over arrays end to end; null has the number of texts."""
    encoded = pa.concat_arrays(arrays).dictionary_encode()
    return np.asarray(encoded.indices.fill_null(len(encoded.dictionary))).astype(
        np.int64
    ), encoded.dictionary.to_pylist()


def _occurrence(key: np.ndarray) -> np.ndarray:
    """Return for each value how often it stood before (n,)."""
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    out = np.empty(len(key), np.int64)
    out[order] = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
    return out


class _StoredValues:
    """One column of a scored file in a temporary file, any rows of which can be read."""

    def __init__(self, file: ScoredFile, column: str):
        self.file, self.column = file, column

    def __enter__(self) -> "_StoredValues":
        self.directory = tempfile.TemporaryDirectory(prefix="ktae-")
        path = os.path.join(self.directory.name, "values")
        lengths, valid = [], []
        with open(path, "wb") as out:
            for _, columns in self.file.batches([self.column]):
                own, is_valid = list_lengths(columns[self.column])
                lengths.append(own)
                valid.append(is_valid)
                out.write(_floats(columns[self.column]).tobytes())
        self.lengths, self.valid = np.concatenate(lengths), np.concatenate(valid)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.values = np.memmap(path, np.float32, "r") if self.lengths.any() else np.zeros(0, np.float32)
        return self

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the values of rows end to end."""
        sizes = self.lengths[rows]
        return self.values[np.repeat(self.starts[rows] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())]

    def __exit__(self, *exc: object) -> None:
        self.values = None
        self.directory.cleanup()


def _floats(array: pa.Array) -> np.ndarray:
    return list_values(array).cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)


def _aligned(
    file: ScoredFile,
    columns: Columns,
    numbers: np.ndarray,
    joined: tuple[np.ndarray, pa.Array, np.ndarray],
    stored: _StoredValues,
    by: str,
    decoder: Any,
    counts: dict[str, int],
) -> AlignedRows:
    """Return the rows of a batch that both files hold with the same number of tokens, and count the others."""
    codes, ids, partner = (part[numbers] if isinstance(part, np.ndarray) else part for part in joined)
    lengths, valid = list_lengths(columns[by])
    there = partner >= 0
    null = there & ~(valid & stored.valid[partner])
    other = there & ~null & (stored.lengths[partner] != lengths)
    kept = there & ~null & ~other
    flat = _floats(columns[by])[np.repeat(kept, lengths)]
    values = np.stack([flat, stored.take(partner[kept])])
    odd = np.bincount(np.repeat(np.flatnonzero(kept), lengths[kept])[~np.isfinite(values).all(0)], minlength=len(kept))
    fine = kept & (odd == 0)
    values = values[:, np.repeat(fine[kept], lengths[kept])]
    counts["rows_null"] += int(null.sum())
    counts["rows_of_other_length"] += int(other.sum())
    counts["rows_not_finite"] += int((kept & ~fine).sum())
    at = np.flatnonzero(fine)
    token_ids = _token_ids(columns.get("response_ids"), lengths, fine)
    starts = np.cumsum(lengths[fine]) - lengths[fine]

    def text(row: int, position: int) -> str | None:
        token_id = int(token_ids[starts[row] + position])
        if hasattr(decoder, "tokenizer") and token_id >= 0:
            return decoder.token_text(token_id)
        texts = columns["response_tokens"][int(at[row])].as_py() if "response_tokens" in columns else None
        return visible_token(plain_stored_texts(texts)[position]) if texts and len(texts) > position else None

    return AlignedRows(
        codes[fine], ids.take(pa.array(numbers[fine])), verdicts(columns, file.metadata)[fine], lengths[fine],
        values, _counted(file, columns.get("response_mask"), lengths, fine, numbers), token_ids, text,
    )  # fmt: skip


def _token_ids(array: pa.Array | None, lengths: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """Return the token ids of some rows end to end, -1 where the file has none that fit."""
    out = np.full(int(lengths[fine].sum()), -1, np.int64)
    if array is None:
        return out
    own, _ = list_lengths(array)
    flat = np.asarray(list_values(array).cast(pa.int64(), safe=False).fill_null(-1))
    fit = fine & (own == lengths)
    out[np.repeat(fit[fine], lengths[fine])] = flat[np.repeat(fit, own)]
    return out


def _counted(
    file: ScoredFile, array: pa.Array | None, lengths: np.ndarray, fine: np.ndarray, numbers: np.ndarray
) -> np.ndarray | None:
    """Return the mask of some rows end to end; a null list is all true."""
    if array is None:
        return None
    own, valid = list_lengths(array)
    odd = np.flatnonzero(fine & valid & (own != lengths))
    if len(odd):
        row = int(odd[0])
        found = f"response_mask has {own[row]} values for {lengths[row]} tokens"
        raise InputError(f"{file.path.name}, row {numbers[row]}: {found}; score the rollouts again")
    out = np.ones(int(lengths[fine].sum()), bool)
    flat = np.asarray(list_values(array).cast(pa.bool_(), safe=False).fill_null(True))
    out[np.repeat((fine & valid)[fine], lengths[fine])] = flat[np.repeat(fine & valid, own)]
    return out


def _speak_of(
    counts: dict[str, int], names: list[str], file: ScoredFile, table: SideBySide, options: FileOptions
) -> None:
    """Warn of rows left out; raise `InputError` where none is left, or under --strict."""
    meanings = {
        "rows_only_in_first": f"in {names[0]} alone",
        "rows_only_in_second": f"in {names[1]} alone",
        "rows_of_other_length": "with different token counts",
        "rows_null": "null in one of the files",
        "rows_not_finite": "with values that are no finite numbers",
    }
    if options.limit:  # rows of the second file beyond the limit are no surprise
        meanings.pop("rows_only_in_first"), meanings.pop("rows_only_in_second")
    found = [f"{counts[name]} {meaning}" for name, meaning in meanings.items() if counts[name]]
    if not table.rows:
        why = "; ".join(found) or "no rows"
        raise InputError(
            f"{names[0]} and {names[1]}: no rollout can be compared ({why}); give two scored files of the same rollouts"
        )
    if found:
        options.warn(f"rows left out: {', '.join(found)}")
        if options.strict:
            raise InputError(f"--strict, nothing is written: rows left out: {', '.join(found)}")
    if not file.has("response_mask") and not file.has("response_ids"):
        options.notice(
            f"{file.path.name} holds no response_mask: masked tokens count as zeros without --rollouts INPUT"
        )
