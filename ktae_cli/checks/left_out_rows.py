"""KT006: lines and rows that could not be read."""

from collections.abc import Iterator

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, rule

_LOSSES = ("unequal length", "bad lines", "torn last lines", "surrogates")


@rule(id="KT006", needs=(), severity="error", sees="input")
def left_out_rows(input: Input) -> Iterator[Finding]:
    """Lines or rows were left out: no JSON, torn off at the end, or with lists of unequal length.

    What is left out is missing from its group, whose mean and key tokens are then those of fewer rollouts. `score`
    stops at such a line or row, except at a torn last line. Write the file again, or leave them out on purpose with
    --skip-bad-lines and --on-mismatch drop.
    """
    for what, times in input.counts.items():
        if any(loss in what for loss in _LOSSES):
            first = next((f", the first: {text}" for part, text in input.refused.items() if part in what), "")
            yield Finding(f"{times:,} {what}: their groups are incomplete{first}", None, times)
