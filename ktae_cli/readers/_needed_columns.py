"""Columns without which a Parquet file is not of the layout that `--format` names."""

from collections.abc import Iterable

from ktae_cli.errors import InputError
from ktae_cli.readers.base import Record


def check_columns(names: Iterable[str], format: str, record: Record) -> None:
    """Raise `InputError` that names the columns which a batch of this format has to have, and those found."""
    found = record.value.schema.names
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"{record.file}: no column {', '.join(missing)}, so it is not of the layout {format} (found "
            f"{', '.join(found)}); leave --format out to have the layout recognised"
        )
