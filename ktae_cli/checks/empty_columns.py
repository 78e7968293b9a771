"""KT005: a column that is there and holds nothing."""

import pyarrow as pa

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, Watch, rule
from ktae_cli.schema import BY_NAME


@rule(id="KT005", needs=(), severity="warning", sees="rows")
def empty_columns(input: Input) -> Watch:
    """A canonical column is null in every row.

    The trainer was told to write it and had nothing to write, or the name is mapped to the wrong column. Estimators
    that need it take it for present and find no value. Drop the column, or repair what writes it.
    """
    untyped = [f.name for f in input.schema if f.name in BY_NAME and pa.types.is_null(f.type)]
    path_of = input.mapping.columns | {name: name for name in untyped}
    empty, n_rows = set(path_of), 0
    while rows := (yield):
        typed = empty - set(untyped)
        empty -= {name for name in typed if rows.column(name).null_count < len(rows.numbers)}
        n_rows += len(rows.numbers)
    for name, path in path_of.items():
        if name in empty and n_rows:
            yield Finding(
                f"column {path} is null in all {n_rows:,} rows; drop it, or have it written", None, n_rows, n_rows
            )
