"""KT004: a column has the name of a canonical one, and a type that it cannot have."""

from collections.abc import Iterator

import pyarrow as pa

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, rule
from ktae_cli.mapping import fits
from ktae_cli.schema import COLUMNS


@rule(id="KT004", needs=(), severity="warning", sees="input")
def unfit_columns(input: Input) -> Iterator[Finding]:
    """A column bears a canonical name, but its type cannot hold what the name promises, so it is not used.

    A list written as text or a nested list is the usual cause: log-probabilities that are there are reported as
    missing. Write the column with the type that docs/file-schema.md gives, or name another one with --map.
    """
    for column in COLUMNS:
        if column.name not in input.schema.names or column.name in input.mapping.columns:
            continue
        dtype = input.schema.field(column.name).type
        if not (pa.types.is_null(dtype) or fits(dtype, column.dtype)):
            yield Finding(
                f"column {column.name} is {dtype}, expected {column.dtype}: it is not used; write it as such, or name "
                f"another with --map {column.name}=COLUMN"
            )
