"""What recorders share: one Parquet file for each step and process, and a failure that never stops a training run."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ktae_cli.readers._rows import batch_of
from ktae_cli.writers.atomic import atomic_path
from ktae_cli.writers.parquet import ParquetOutput

_warned: set[str] = set()


@contextmanager
def spare_training(directory: str | os.PathLike) -> Iterator[None]:
    """Turn an error inside the block into a warning, the first time for each directory; the step is not recorded."""
    try:
        yield
    except Exception as error:
        if str(directory) not in _warned:
            _warned.add(str(directory))
            logging.getLogger(__name__).warning(
                "%s: these rollouts are not recorded (%s: %s); training and recording go on, "
                "further failures are not shown",
                directory, type(error).__name__, error,
            )  # fmt: skip


def next_part(directory: str | os.PathLike, step: int, rank: int) -> int:
    """Return the first part number of a step that has no file: 0, or more where the step is run again."""
    part = 0
    while file_of(directory, step, rank, part).exists():
        part += 1
    return part


def file_of(directory: str | os.PathLike, step: int, rank: int, part: int) -> Path:
    """Return the path of a file: names sort by step, then process."""
    return Path(directory) / f"step_{step:06d}_rank_{rank:04d}_part_{part:02d}.parquet"


def write_rollouts(rows: list[dict[str, Any]], target: Path) -> Path:
    """Write rows of canonical columns under a temporary name, then rename; a file that exists is not replaced."""
    batch = batch_of(rows, lambda i: f"{target.name}, row {i}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as temporary:
        output = ParquetOutput(temporary, batch.schema, page_index=True)
        try:
            output.write(batch)
            output.close()
        except BaseException:
            output.abandon()
            raise
    return target


def finish_reason(response_ids: Any, end_ids: set[int]) -> str | None:
    """Return "stop" where the last token ends a text, else "length"; None for an empty response."""
    if len(response_ids) == 0:
        return None
    return "stop" if int(response_ids[-1]) in end_ids else "length"
