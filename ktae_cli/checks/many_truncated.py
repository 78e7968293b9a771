"""KT306: many responses cut at the length limit."""

from collections.abc import Iterator

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT306", needs=("finish_reason",), severity="warning", sees="table")
def many_truncated(table: Table, *, share: float = 0.2) -> Iterator[Finding]:
    """Responses were cut at the length limit, more than `share` of all (default 0.2).

    Cut responses are graded wrong for their length, whatever they would have said, so tokens of long answers look like
    causes of error. Raise the limit, or choose with --truncated keep, mask or zero what they count for.
    """
    count = int(table.truncated.sum())
    if count > share * len(table):
        yield Finding(
            f"{of(count, len(table))} responses were cut at the length limit; raise it, or use --truncated mask|zero",
            int(table.row[table.truncated][0]),
            count,
            len(table),
        )
