"""Lines that hold one list for each column: a step, or an event of logging, with all its rollouts."""

from collections.abc import Iterator
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import place
from ktae_cli.readers.base import ReaderOptions, Record


def columnar_rows(record: Record, by: str, options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Yield one dict for each rollout of a line; `by` names the column that says how many there are.

    A value that is no list belongs to every rollout. Lists of another length raise `InputError`, or with
    `--on-mismatch drop` the line is left out and counted: nothing says which values belong together.
    """
    columns = record.value
    if not isinstance(columns.get(by), list):
        raise InputError(f"{place(record)}: {by!r} is no list; each line of this format holds one list for each column")
    n_rollouts = len(columns[by])
    odd = [name for name, values in columns.items() if isinstance(values, list) and len(values) != n_rollouts]
    if odd:
        if options.on_mismatch == "drop":
            options.count("lines dropped, their columns of unequal length")
            return
        shown = ", ".join(f"{name} {len(columns[name])}" for name in odd)
        raise InputError(
            f"{place(record)}: columns of unequal length ({by} {n_rollouts}, {shown}); "
            "correct the line, or leave such lines out with --on-mismatch drop"
        )
    for i in range(n_rollouts):
        yield {name: values[i] if isinstance(values, list) else values for name, values in columns.items()}
