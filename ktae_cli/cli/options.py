"""Options that mean the same in every command, under the same letters."""

from pathlib import Path
from typing import Annotated

import typer

from ktae_cli.cli.console import input_name, input_path

Inputs = Annotated[
    list[str],
    typer.Argument(
        help="Parquet files, directories, globs, or - for standard input.", metavar="INPUT", parser=input_name
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Output file.", show_default=False)]
Rollouts = Annotated[
    Path | None,
    typer.Option(
        "--rollouts",
        metavar="INPUT",
        parser=input_path,
        help="The file that was scored, after `score --columns added`.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing output.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Worker threads; 0 is one a core.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=0, help="Only the first N groups; 0 is all.")]
GroupBy = Annotated[
    list[str] | None,
    typer.Option("--group-by", help="Column(s) that name the group, taken literally.", show_default=False),
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="canonical=column; a dotted path reaches into structs. Repeatable.",
        metavar="NAME=COLUMN",
        show_default=False,
    ),
]
Threshold = Annotated[
    float, typer.Option("--correct-threshold", help="Without a verdict column, correct is reward > this.")
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="tokenizer.json or its directory; default: beside the input. Given, it encodes text without ids.",
        show_default=False,
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 2 on any warning.")]
