"""KT007: values that nothing can be computed from."""

from collections.abc import Callable, Iterator

import numpy as np

from ktae_cli.checks._rows import Input, Rows
from ktae_cli.checks.base import Marks, Watch, rule
from ktae_cli.rollouts import MAX_ID


@rule(id="KT007", needs=(), severity="error", sees="rows")
def unusable_values(input: Input) -> Watch:
    """A row holds a reward that is no number, a verdict other than true and false, or impossible ids.

    Ids: null, negative or above 2^31 - 1. A null in the group key or a mask of other values than 0 and 1 counts too.
    `score` stops at such a row, or leaves it unscored with --on-error skip. Repair the row at the place given.
    """
    marks = Marks()
    while rows := (yield):
        faults = list(_faults(rows))
        bad = np.any([found for found, _ in faults], axis=0)
        marks.add(rows, bad, lambda row, f=faults: next(reason(row) for found, reason in f if found[row]))
    yield from marks.findings("rows hold a value that cannot be used", "repair them, or score with --on-error skip")


def _faults(rows: Rows) -> Iterator[tuple[np.ndarray, Callable[[int], str]]]:
    """Yield (rows (n,) bool, what is wrong with one of them)."""
    yield rows.rewards[2].bad, lambda row: _reward_reason(rows, row)
    if rows.input.mapping.group_key:
        yield rows.group < 0, lambda row: "the group key is null"
    if rows.has("response_ids"):
        outside = (rows.ids < 0) | (rows.ids > MAX_ID)
        yield rows.any_token(outside), lambda row: f"an id is null or not between 0 and {MAX_ID}"
        if not rows.has("response"):
            valid = rows.lengths_of("response_ids")[1]
            yield ~valid, lambda row: "response_ids is null"
        if rows.has("response_mask"):
            odd = ~np.isin(rows.flat("response_mask", 1.0), (0.0, 1.0))
            yield rows.any_token(odd), lambda row: "a value of response_mask is not 0 or 1"


def _reward_reason(rows: Rows, row: int) -> str:
    """Return what the first unreadable reward or verdict of the batch holds, of others only that it is unreadable."""
    first, place = rows.rewards[2].first, f"{rows.place(row)}: "
    return first.removeprefix(place) if first.startswith(place) else "the reward or verdict cannot be read"
