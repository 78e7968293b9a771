"""Canonical rollouts as JSON lines."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(files=(".jsonl", ".ndjson", ".json"), shape="lines", keys=(), supplies=("*",))
def jsonl(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Rollouts as JSON lines, one object each: canonical column names or their aliases, or any names with `--map`.

    Canonical columns are taken under their declared types, NaN and infinities included; everything else passes through
    under its own name, nested values as JSON text.
    """
    for record in records:
        yield record.value
