"""Export to Parquet: one row for each rollout, lists as long as the full sequence."""

from pathlib import Path

from ktae_cli.exports.base import ExportRows
from ktae_cli.writers.parquet import ParquetOutput


def parquet(rows: ExportRows, target: Path) -> None:
    """Full-sequence rows as Parquet, for any trainer that reads columns.

    Codec zstd level 1; the metadata key `ktae` names the alignment, the source and the spec.
    """
    output = ParquetOutput(target, rows.schema)
    try:
        for batch in rows:
            output.write(batch)
    except BaseException:  # Ctrl-C too: the file is let go before the caller removes it
        output.abandon()
        raise
    output.close(rows.metadata)
