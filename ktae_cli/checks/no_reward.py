"""KT002: no reward and no verdict."""

from collections.abc import Iterator

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, rule


@rule(id="KT002", needs=(), severity="error", sees="input")
def no_reward(input: Input) -> Iterator[Finding]:
    """Neither a reward nor a verdict is among the columns.

    Nothing tells right rollouts from wrong ones. Name the column with --map reward=COLUMN, or grade the answers first.
    """
    if not (input.has("reward") or input.has("correct")):
        found = ", ".join(input.schema.names)
        yield Finding(f"no reward and no verdict column; name one with --map reward=COLUMN (found {found})")
