"""Export to a Hugging Face dataset on disk."""

from pathlib import Path

from ktae_cli.exports._arrow_dataset import write_dataset
from ktae_cli.exports._full_sequence import full_schema, full_sequences
from ktae_cli.exports.base import ExportRows, export


@export(
    directory=True,
    alignment="full sequence; value t belongs to token t; 0 on the prompt",
    reads=("rollout_log_probs", "old_log_probs", "log_probs", "ref_log_probs"),
)
def datasets(rows: ExportRows, target: Path) -> None:
    """Full-sequence rows as a Hugging Face dataset, a folder for `datasets.load_from_disk`.

    The columns are those of `parquet`. `ktae.json` in the folder names the alignment, the source and the spec. The
    `datasets` package is not needed to write it.
    """
    schema = full_schema(rows)
    write_dataset(target, schema, (full_sequences(batch, schema) for batch in rows))
