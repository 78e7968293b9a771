"""The rows of a comparison as Parquet: what each of the compared gives a rollout, and where signs differ."""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.comparison.aligned import AlignedRows, RowFacts
from ktae_cli.errors import InputError
from ktae_cli.schema import SCHEMA_VERSION
from ktae_cli.version import __version__
from ktae_cli.writers.atomic import atomic_path, check_target
from ktae_cli.writers.parquet import ParquetOutput
from ktae_cli.writers.scored import list_column


def check_output(output: Path, force: bool, inputs: list[Path]) -> None:
    """Raise `InputError` before anything is read where the file cannot be written."""
    for path in inputs:
        if output.exists() and output.samefile(path):
            raise InputError(f"{output}: is an input; name another file with -o")
    check_target(output, force)


class ComparedRows:
    """The file as it is written, row by row of the input; it appears complete or not at all.

    Columns: group_id, rollout_id, correct (null unknown), n_tokens (of the policy), and for each of the compared
    mean_<slug> and sum_abs_<slug> of its advantages; for each but the first flip_positions_<slug>, the positions in
    response_ids at which its sign opposes that of the first. The report stands in the metadata.
    """

    def __init__(self, output: Path, force: bool, slugs: list[str]):
        self.path = atomic_path(output, force)
        self.slugs = slugs
        fields = [("group_id", pa.string()), ("rollout_id", pa.string()), ("correct", pa.bool_())]
        fields += [("n_tokens", pa.int64())]
        for slug in slugs:
            fields += [(f"mean_{slug}", pa.float64()), (f"sum_abs_{slug}", pa.float64())]
        fields += [(f"flip_positions_{slug}", pa.list_(pa.int32())) for slug in slugs[1:]]
        self.schema = pa.schema(fields)

    def __enter__(self) -> "ComparedRows":
        self.sink, self.is_open = ParquetOutput(self.path.__enter__(), self.schema), True
        return self

    def write(self, rows: AlignedRows, facts: RowFacts, groups: list[str]) -> None:
        """Append rows."""
        names = pa.array([groups[code] for code in rows.group.tolist()], pa.string())
        correct = pa.array(facts.verdict == 1, mask=facts.verdict < 0)
        columns = [names, rows.rollout_ids, correct, pa.array(facts.n_tokens)]
        empty = facts.n_tokens == 0
        for total, absolute in zip(facts.sums, facts.absolute_sums, strict=True):
            columns += [pa.array(total / np.maximum(facts.n_tokens, 1), mask=empty), pa.array(absolute)]
        for ends, positions in facts.flips:
            columns.append(list_column(positions.astype(np.int32), np.diff(ends), np.ones(len(rows), bool)))
        self.sink.write(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def close(self, report: dict[str, Any], inputs: list[dict[str, str]]) -> None:
        """Finish the file with the report in its metadata; no paths stand there."""
        found = {name: value for name, value in report.items() if name != "output"}
        self.sink.close({"version": __version__, "schema_version": SCHEMA_VERSION, "compare": found, "inputs": inputs})
        self.is_open = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_open:
            self.sink.abandon()
        self.path.__exit__(kind, error, trace)
