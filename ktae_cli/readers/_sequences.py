"""A whole token sequence, prompt and response in one list, cut where the policy begins to write."""

from typing import Any, NamedTuple

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._fields import kind_of, place
from ktae_cli.readers.base import Record


class Cut(NamedTuple):
    """Where a sequence is cut: `mask` (n_tokens,) bool, `start` the first token that the policy sampled."""

    mask: np.ndarray
    start: int

    @property
    def response_mask(self) -> np.ndarray:
        """Return the mask of the response: holes of tool text stay, padding is cut by the caller beforehand."""
        return self.mask[self.start :]


def cut_at_first_sampled(mask: Any, what: str, record: Record) -> Cut:
    """Return the cut of a sequence by its loss mask; without a sampled token all of it is prompt."""
    flags = as_flags(mask, what, record)
    sampled = np.flatnonzero(flags)
    return Cut(flags, int(sampled[0]) if len(sampled) else len(flags))


def as_flags(values: Any, what: str, record: Record) -> np.ndarray:
    """Return a list of true and false, or of 1 and 0, as an array (n_tokens,) bool."""
    try:
        flags = np.asarray(values)
    except ValueError:
        flags = np.zeros((), object)
    if flags.ndim == 1 and not len(flags):
        return np.zeros(0, bool)
    if flags.ndim != 1 or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise InputError(f"{place(record)}: {what} is no list of 0 and 1 (found {kind_of(values)})")
    return flags.astype(bool)


def spread(values: list[Any], mask: np.ndarray) -> list[Any]:
    """Return values of the sampled tokens at their places in the sequence, 0.0 at the others."""
    spread_out = [0.0] * len(mask)
    for place_, value in zip(np.flatnonzero(mask).tolist(), values, strict=True):
        spread_out[place_] = value
    return spread_out
