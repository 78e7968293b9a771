"""Off-policy facts as columns: ratios, divergences and importance weights of every token, in the input's row order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from ktae_cli import off_policy
from ktae_cli.errors import InputError, MissingColumnError
from ktae_cli.groups import GroupIndex
from ktae_cli.mapping import Mapping
from ktae_cli.off_policy_facts import Bounds
from ktae_cli.off_policy_rows import NEEDED, Pair, PairRows
from ktae_cli.readers.base import column_at
from ktae_cli.schema import SCHEMA_VERSION
from ktae_cli.version import __version__
from ktae_cli.writers.atomic import atomic_path, check_target
from ktae_cli.writers.parquet import ParquetOutput
from ktae_cli.writers.scored import list_column

TOKEN_COLUMNS = ("ratio", "k1", "k3", "truncated_weight", "masked_weight")
ROLLOUT_COLUMNS = ("sequence_ratio", "ess")


def check_output(output: Path, force: bool, source, pairs: list[Pair]) -> None:
    """Raise before anything is read where the columns cannot be made or the file cannot be written."""
    if not pairs:
        found = ", ".join(source.schema.names)
        raise MissingColumnError(f"-o {output}: needs {NEEDED}; name columns with --map; columns found: {found}")
    for path in source.paths:
        if output.exists() and output.samefile(path):
            raise InputError(f"{output}: is an input; name another file with -o")
    check_target(output, force)


@contextmanager
def off_policy_file(
    output: Path, force: bool, source, mapping: Mapping, index: GroupIndex | None, pairs: list[Pair], bounds: Bounds
) -> Iterator[Callable[[pa.RecordBatch, dict[str, PairRows]], None]]:
    """Yield a function that appends the columns of a batch; the file appears complete or not at all.

    Columns: group_id (null where the input has no group key), rollout_id, and for each pair `ratio_<pair>`,
    `k1_<pair>`, `k3_<pair>`, `truncated_weight_<pair>`, `masked_weight_<pair>`, lists as long as the response with 0
    where response_mask is false, `sequence_ratio_<pair>` (geometric mean of the ratios) and `ess_<pair>` (token-level
    effective sample size, null without tokens). Null in rows that cannot be compared.
    """
    schema, first = _schema(pairs), 0
    keys = pa.array(index.keys, pa.string()) if index else None

    def write(batch: pa.RecordBatch, found: dict[str, PairRows]) -> None:
        nonlocal first
        numbers = np.arange(first, first + len(batch))
        first += len(batch)
        groups = keys.take(pa.array(index.codes[numbers])) if index else pa.nulls(len(batch), pa.string())
        columns = [groups, _rollout_ids(batch, mapping, source, numbers)]
        for pair in pairs:
            columns += _pair_columns(found[pair.name], bounds)
        sink.write(pa.RecordBatch.from_arrays(columns, schema=schema))

    with atomic_path(output, force) as temporary:
        plain = tuple(field.name for field in schema if pa.types.is_list(field.type))
        sink = ParquetOutput(temporary, schema, plain)
        try:
            yield write
            sink.close(_metadata(source, mapping, pairs, bounds))
        except BaseException:
            sink.abandon()
            raise


def _schema(pairs: list[Pair]) -> pa.Schema:
    fields = [pa.field("group_id", pa.string()), pa.field("rollout_id", pa.string())]
    for pair in pairs:
        fields += [pa.field(f"{name}_{pair.name}", pa.list_(pa.float32())) for name in TOKEN_COLUMNS]
        fields += [pa.field(f"{name}_{pair.name}", pa.float64()) for name in ROLLOUT_COLUMNS]
    return pa.schema(fields)


def _pair_columns(rows: PairRows, bounds: Bounds) -> list[pa.Array]:
    log_ratio, lengths = rows.log_ratio, rows.policy_lengths
    by_token = (
        off_policy.ratios(log_ratio),
        off_policy.k1(log_ratio),
        off_policy.k3(log_ratio),
        off_policy.truncated_weights(log_ratio, bounds.cap),
        off_policy.masked_weights(log_ratio, *bounds.kept),
    )
    by_rollout = (
        off_policy.geometric_mean_ratios(log_ratio, lengths),
        off_policy.token_effective_sample_sizes(log_ratio, lengths),
    )
    lists = [list_column(rows.spread(v.astype(np.float32)), rows.lengths, rows.comparable) for v in by_token]
    return lists + [pa.array(v, mask=~rows.comparable | np.isnan(v)) for v in by_rollout]


def _rollout_ids(batch: pa.RecordBatch, mapping: Mapping, source, numbers: np.ndarray) -> pa.Array:
    path = mapping.columns.get("rollout_id")
    if path:
        return column_at(batch, path).cast(pa.string())
    return pa.array(source.row_names(numbers), pa.string())


def _metadata(source, mapping: Mapping, pairs: list[Pair], bounds: Bounds) -> dict:
    return {
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        "off_policy": {
            "clip": list(bounds.clip),
            "cap": bounds.cap,
            "mask": list(bounds.kept),
            "pairs": {pair.name: {"old": pair.old, "new": pair.new} for pair in pairs},
        },
        "input_columns": dict(mapping.columns),
        "inputs": source.fingerprints(),
    }
