"""Which of several named numbers says right or wrong."""

import re
from collections.abc import Iterable
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._values import number
from ktae_cli.readers.base import ReaderOptions

_LIKE_A_VERDICT = re.compile(r"^(is_)?(acc|correct)|accuracy", re.IGNORECASE)


def verdict_name(names: Iterable[str], options: ReaderOptions, where: str) -> str | None:
    """Return the name that says right or wrong: that of `--map correct=NAME`, else the only one that sounds like it.

    Names that begin with acc or correct, or hold accuracy, sound like it. Returns None where none does: the reward
    decides then. Several raise `InputError`.
    """
    names = list(names)
    chosen = options.take_correct(names)
    if chosen is not None:
        return chosen
    found = [name for name in names if _LIKE_A_VERDICT.search(name)]
    if len(found) > 1:
        shown = ", ".join(found)
        raise InputError(f"{where}: {shown} may all say what is right; name one with --map correct={found[0]}")
    return found[0] if found else None


def above_zero(value: Any) -> bool | None:
    """Return whether a metric is above 0; None where it is no number or NaN."""
    try:
        known = number(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if known != known else known > 0
