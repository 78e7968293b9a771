"""Lists of one rollout that have to be equally long."""

from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import place
from ktae_cli.readers.base import ReaderOptions, Record

DROPPED = "rows dropped, their lists of unequal length"


def unequal(lists: dict[str, Any], record: Record, options: ReaderOptions, of: Any = None) -> bool:
    """Tell whether lists that belong together differ in length; absent ones (None) have none.

    Raises `InputError` that names the row, `of` (its group or id, where there is one) and all lengths; with
    `--on-mismatch drop` the row is counted instead. Nothing is cut to fit: which value is one too many is unknown.
    """
    lengths = {name: len(values) for name, values in lists.items() if values is not None}
    if len(set(lengths.values())) <= 1:
        return False
    if options.on_mismatch == "drop":
        options.count(DROPPED)
        return True
    shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
    owner = "" if of is None else f" ({of})"
    raise InputError(
        f"{place(record)}{owner}: {shown} values, expected equally many; "
        "correct the row, or leave such rows out with --on-mismatch drop"
    )
