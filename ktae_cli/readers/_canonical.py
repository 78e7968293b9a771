"""A source under canonical names and types: what `convert` writes, and what `score` sees of a foreign dump."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ktae_cli.mapping import Mapping, fits
from ktae_cli.readers._rows import CANONICAL, Place, canonical_column
from ktae_cli.readers.base import Source, column_at, field_at, root_of
from ktae_cli.schema import BY_NAME


class CanonicalRollouts:
    """The rows of a source, columns that play a canonical part under its name and type, the rest under their own.

    `correct` is reward > threshold where the source has no verdict, unknown where the reward is; `reader` is filled.
    A column whose name another one takes moves aside as `input_<name>`. `mapping` is that of the new names.
    """

    def __init__(self, source: Source, mapping: Mapping, threshold: float):
        self.source, self.threshold, self.reader, self.n_rows = source, threshold, source.reader, source.n_rows
        self.paths = getattr(source, "paths", [])
        self.place, self.row_names, self.own_metadata = source.place, source.row_names, source.own_metadata
        self.fingerprints = source.fingerprints
        parts = _parts(source.schema, mapping)
        self.derives_correct = "correct" not in parts and "reward" in parts
        added = {"correct"} if self.derives_correct else set()
        self.origin = _origins(source.schema, parts, {*parts, *added, "reader"})
        self.canonical = {name for name in self.origin if name in parts}
        fields = [
            pa.field(name, CANONICAL[name] if name in parts else field_at(source.schema, path).type)
            for name, path in self.origin.items()
        ]
        fields += [pa.field("correct", pa.bool_())] if added else []
        fields += [pa.field("reader", pa.string())] if "reader" not in parts else []
        self.schema = pa.schema(fields)
        self.mapping = self._renamed(mapping, parts)

    def _renamed(self, mapping: Mapping, parts: dict[str, str]) -> Mapping:
        written = {path: name for name, path in reversed(self.origin.items())}
        key = tuple(written.get(path) or self._moved(path) for path in mapping.group_key)
        known = {*parts, "reader", *(["correct"] if self.derives_correct else [])}
        columns = {name: name for name in BY_NAME if name in known}
        return replace(mapping, columns=columns, group_key=key)

    def _moved(self, path: str) -> str:
        root = root_of(self.source.schema, path)
        return next(name for name, origin in self.origin.items() if origin == root) + path[len(root) :]

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes columns take in memory."""
        return self.source.bytes_of(self._roots(columns))

    def _roots(self, names: list[str]) -> list[str]:
        paths = [
            self.origin.get(name, self.origin.get("reward", ""))
            for name in names
            if name != "reader" or name in self.origin
        ]
        return list(dict.fromkeys(root_of(self.source.schema, path) for path in paths if path))

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones."""
        names = self.schema.names if columns is None else columns
        schema = pa.schema([self.schema.field(name) for name in names])
        roots, row = self._roots(list(names)), 0
        for batch in self.source.batches(roots):
            arrays = [self._array(name, batch, lambda i, first=row: self.place(first + i)) for name in names]
            row += len(batch)
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, name: str, batch: pa.RecordBatch, place: Place) -> pa.Array:
        if name in self.origin:
            path = self.origin[name]
            if name in self.canonical:
                return canonical_column(name, column_at(batch, path), place)
            return batch.column(path)
        if name == "reader":
            return pa.array([self.reader] * len(batch), pa.string())
        reward = canonical_column("reward", column_at(batch, self.origin["reward"]), place)
        values = np.asarray(reward.fill_null(np.nan))
        return pa.array(values > self.threshold, mask=np.isnan(values))


def _parts(schema: pa.Schema, mapping: Mapping) -> dict[str, str]:
    """Return canonical name -> path of the columns that are written under it.

    A group key of several columns, or of a digest, is no column: its parts keep their names.
    """
    parts = {name: path for name, path in mapping.columns.items() if name != "group_id"}
    key = mapping.group_key
    if len(key) == 1 and not mapping.hashed and fits(field_at(schema, key[0]).type, "string"):
        parts["group_id"] = key[0]
    return {name: parts[name] for name in BY_NAME if name in parts}


def _origins(schema: pa.Schema, parts: dict[str, str], taken: set[str]) -> dict[str, str]:
    """Return written name -> path: the source's columns in order, then what comes out of structs or serves twice."""
    first: dict[str, str] = {}
    for name, path in parts.items():
        if path in schema.names:
            first.setdefault(path, name)
    origins: dict[str, str] = {}
    for name in schema.names:
        written = first.get(name, name)
        while name not in first and (written in taken or written in origins):
            written = f"input_{written}"
        origins[written] = name
    return origins | {name: path for name, path in parts.items() if name not in origins}
