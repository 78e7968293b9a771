"""`convert` as one function: any dump -> canonical Parquet."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError, MissingColumnError
from ktae_cli.groups import GroupIndex, scan_groups
from ktae_cli.inputs import CONVERTED_SUFFIX, ReadInputs, default_target, open_rollouts, remaining_map, threshold_of
from ktae_cli.mapping import Mapping, resolve_mapping
from ktae_cli.readers._canonical import CanonicalRollouts
from ktae_cli.readers._retokenized import RETOKENIZED, RetokenizedRollouts
from ktae_cli.readers.base import Source, list_lengths
from ktae_cli.rollouts import reward_parts
from ktae_cli.schema import BY_NAME, SCHEMA_VERSION
from ktae_cli.version import __version__
from ktae_cli.writers.atomic import atomic_path, check_no_input, check_target
from ktae_cli.writers.parquet import ParquetOutput


@dataclass(frozen=True)
class ConvertOptions:
    """The options of `ktae convert`, under their names on the command line."""

    input: ReadInputs = field(default_factory=ReadInputs)
    group_by: tuple[str, ...] = ()
    map: dict[str, str] = field(default_factory=dict)
    correct_threshold: float | None = None
    tokenizer: Path | None = None
    strict: bool = False
    notice: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None


def convert_files(inputs: list[str], output: Path | None, force: bool, options: ConvertOptions) -> dict[str, Any]:
    """Convert files into `output` and return the summary. See `ktae convert --help`."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch, contextlib.ExitStack() as stack:
        output = output or default_target(inputs, CONVERTED_SUFFIX)
        check_target(output, force)
        source = open_rollouts(inputs, scratch, options.input)
        check_no_input(output, source.paths, "-o")
        rows = canonical_rows(source, options)
        sink = ParquetOutput(stack.enter_context(atomic_path(output, force)), rows.schema, page_index=True)
        stack.callback(sink.abandon)
        for batch in rows.batches():
            sink.write(batch)
            options.progress(rows.done, source.n_rows)
        sink.close(_metadata(rows))
    return {
        "rollouts": source.n_rows,
        "groups": len(rows.index.keys) if rows.index else None,
        "reader": source.reader,
        "columns": rows.schema.names,
        "output": str(output),
        "schema_version": SCHEMA_VERSION,
        "seconds": round(time.perf_counter() - started, 3),
    }


def canonical_rows(source: Source, options: ConvertOptions) -> "CanonicalRows":
    """Resolve a source's columns and groups; everything that can be refused before a row is read is refused here."""
    warned: list[str] = []

    def warn(text: str) -> None:
        warned.append(text)
        options.warn(text)

    if source.n_rows == 0:
        raise InputError(f"{', '.join(map(str, getattr(source, 'paths', ['the frame'])))}: no rollouts (0 rows)")
    threshold = threshold_of(source, options.correct_threshold)
    if not np.isfinite(threshold):
        raise InputError(f"--correct-threshold takes a finite number, found {threshold}")
    mapping = _mapping(source, options, warn)
    for text in mapping.notices:
        options.notice(f"column {text}")
    canonical = CanonicalRollouts(source, mapping, threshold)
    if canonical.derives_correct:
        options.notice(f"no verdict column: correct is {mapping.columns['reward']} > {threshold:g}")
    rows, mapping = canonical, canonical.mapping
    if options.tokenizer and "response_ids" not in mapping.columns and "response" in mapping.columns:
        rows = RetokenizedRollouts(canonical, "response", options.tokenizer)
        warn(RETOKENIZED.format("response"))
    index = scan_groups(rows.batches, rows.schema, mapping, source.place) if mapping.group_key else None
    for text in index.warnings if index else ():
        warn(text)
    if options.strict and warned:
        raise InputError(f"--strict, nothing is written: {warned[0]}")
    return CanonicalRows(rows, mapping, index, threshold)


def _mapping(source: Source, options: ConvertOptions, warn: Callable[[str], None]) -> Mapping:
    overrides = remaining_map(source, options.map)
    try:
        return resolve_mapping(source.schema, overrides, list(options.group_by))
    except MissingColumnError as error:
        if options.group_by:
            raise
        warn(f"{error}; group_id is left out")
        return Mapping(resolve_mapping(source.schema, overrides, [source.schema.names[0]]).columns, ())


class CanonicalRows:
    """The rows that `convert` writes: canonical columns first, in the order of the schema, ids filled."""

    def __init__(self, source: Source, mapping: Mapping, index: GroupIndex | None, threshold: float):
        self.source, self.mapping, self.index, self.threshold, self.done = source, mapping, index, threshold, 0
        types = {field.name: field.type for field in source.schema}
        derives_group = index is not None and ("group_id" not in mapping.columns or mapping.group_key != ("group_id",))
        self.made = [
            name for name, made in (("group_id", derives_group), ("rollout_id", "rollout_id" not in types)) if made
        ]
        moved = {name: f"input_{name}" for name in self.made if name in types}
        names = [*self.made, *(moved.get(name, name) for name in types)]
        self.origin = {moved.get(name, name): name for name in types}
        self.names = [*(name for name in BY_NAME if name in names), *(name for name in names if name not in BY_NAME)]
        self.parts = _part_names(source) if "rewards" in types else []
        if not self.parts and "rewards" in self.names:
            self.names.remove("rewards")
        types["rewards"] = pa.struct([(name, pa.float64()) for name in self.parts])
        fields = [(name, pa.string() if name in self.made else types[self.origin[name]]) for name in self.names]
        self.schema = pa.schema(fields)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order; raise `InputError` where a list is not as long as the ids of its row."""
        keys = pa.array(self.index.keys, pa.string()) if self.index else None
        for batch in self.source.batches():
            span = np.arange(self.done, self.done + len(batch))
            self._check_lengths(batch)
            made = {}
            if "group_id" in self.made:
                made["group_id"] = keys.take(pa.array(self.index.codes[span]))
            if "rollout_id" in self.made:
                made["rollout_id"] = pa.array(self.source.row_names(span), pa.string())
            if "rewards" in self.names:
                made["rewards"] = self._rewards(batch.column("rewards"))
            arrays = [made[name] if name in made else batch.column(self.origin[name]) for name in self.names]
            self.done += len(batch)
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _rewards(self, column: pa.Array) -> pa.Array:
        """Return the named parts as a struct: `datasets` reads no map."""
        found = reward_parts(column)
        columns = []
        for name in self.parts:
            values = found.get(name, np.full(len(column), np.nan))
            columns.append(pa.array(values, mask=np.isnan(values)))
        return pa.StructArray.from_arrays(columns, self.parts, mask=column.is_null())

    def _check_lengths(self, batch: pa.RecordBatch) -> None:
        if "response_ids" not in batch.schema.names:
            return
        lengths, has_ids = list_lengths(batch.column("response_ids"))
        for name, column in BY_NAME.items():
            if column.level != "token" or name not in batch.schema.names:
                continue
            own, valid = list_lengths(batch.column(name))
            odd = np.flatnonzero(valid & has_ids & (own != lengths))
            if len(odd):
                row = int(odd[0])
                raise InputError(
                    f"{self.source.place(self.done + row)}: {name} has {own[row]} values for {lengths[row]} "
                    "response_ids; correct the row, or leave such rows out with --on-mismatch drop"
                )


def _part_names(source: Source) -> list[str]:
    """Return the names of the parts of the rewards, in the order in which they first appear."""
    found: dict[str, None] = {}
    for batch in source.batches(["rewards"]):
        column = batch.column("rewards")
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        found |= dict.fromkeys(column.keys.slice(first, last - first).unique().to_pylist())
    return list(found)


def _metadata(rows: CanonicalRows) -> dict[str, Any]:
    """Return what the file says about itself; no times and no absolute paths."""
    own = rows.source.own_metadata() or {}
    columns = {name: name for name in BY_NAME if name in rows.schema.names}
    kept = {name: own[name] for name in ("estimators", "token_table") if name in own}
    return kept | {
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        "reader": rows.source.reader,
        "columns": columns,
        "correct_threshold": rows.threshold,
        "inputs": rows.source.fingerprints(),
    }


def convert_table(source: Source, options: ConvertOptions) -> pa.Table:
    """Return the canonical rows of a source as one table; nothing is written."""
    rows = canonical_rows(source, options)
    return pa.Table.from_batches(list(rows.batches()), rows.schema)
