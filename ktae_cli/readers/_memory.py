"""A table in memory as a source of rollouts, for the library."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ktae_cli.errors import InputError


class TableRollouts:
    """The rows of an Arrow table."""

    reader = "memory"

    def __init__(self, table: pa.Table):
        repeated = {name for name in table.column_names if table.column_names.count(name) > 1}
        if repeated:
            raise InputError(f"the frame has two columns named {min(repeated)!r}; rename one")
        self.table, self.schema = table, table.schema

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return len(self.table)

    def own_metadata(self) -> None:
        """Return None: a frame in memory carries no metadata of ours."""
        return None

    def fingerprints(self) -> list[dict[str, str]]:
        """Return no files."""
        return []

    def place(self, row: int) -> str:
        """Name a row."""
        return f"row {row}"

    def bytes_of(self, columns: list[str]) -> int:
        """Return the bytes of the named columns."""
        return self.table.select(columns).nbytes

    def row_names(self, rows: np.ndarray) -> list[str]:
        """Return `frame:<row>`."""
        return [f"frame:{row}" for row in rows]

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order."""
        table = self.table if columns is None else self.table.select(columns)
        yield from table.to_batches(max_chunksize=1024)
