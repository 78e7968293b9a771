"""Export to Parquet: one row for each rollout, lists as long as the full sequence."""

from pathlib import Path

from ktae_cli.exports._full_sequence import full_schema, full_sequences
from ktae_cli.exports.base import ExportRows, export
from ktae_cli.writers.parquet import ParquetOutput


@export(
    suffix=".parquet",
    alignment="full sequence; value t belongs to token t; 0 on the prompt",
    reads=("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs"),
)
def parquet(rows: ExportRows, target: Path) -> None:
    """Full-sequence rows as Parquet, for any trainer that reads columns.

    Codec zstd level 1; the metadata key `ktae` names the alignment, the source and the spec.
    """
    schema = full_schema(rows)
    output = ParquetOutput(target, schema)
    try:
        for batch in rows:
            output.write(full_sequences(batch, schema))
    except BaseException:  # Ctrl-C too: the file is let go before the caller removes it
        output.abandon()
        raise
    output.close(rows.metadata)
