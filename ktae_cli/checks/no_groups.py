"""KT001: no column names the groups."""

from collections.abc import Iterator

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, rule


@rule(id="KT001", needs=(), severity="error", sees="input")
def no_groups(input: Input) -> Iterator[Finding]:
    """No column tells which rollouts answer the same prompt, or one has a type that its part cannot have.

    Advantages compare the rollouts of one group; without groups nothing can be scored, and the rules on groups are left
    out. Name the column with --map or --group-by, as the message says.
    """
    if input.problem:
        yield Finding(input.problem)
