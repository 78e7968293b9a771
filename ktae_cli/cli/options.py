"""Options that mean the same in every command, under the same letters."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ktae_cli.cli.console import input_name, input_path

Inputs = Annotated[
    list[str],
    typer.Argument(
        help="Dumps (Parquet, JSON lines, ...), directories, globs, or - for standard input.",
        metavar="INPUT",
        parser=input_name,
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
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything drawn.")]
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
    float | None,
    typer.Option(
        "--correct-threshold",
        help="Without a verdict column, correct is reward > this; default: the reader's, 0.",
        show_default=False,
    ),
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
Format = Annotated[
    str,
    typer.Option("-f", "--format", metavar="READER", help="Format of the input; see `ktae list readers`."),
]


class Mismatch(StrEnum):
    """What happens to a row whose lists disagree in length."""

    error = "error"
    drop = "drop"


OnMismatch = Annotated[
    Mismatch,
    typer.Option("--on-mismatch", help="A row whose lists disagree in length: an error, or drop it and count."),
]
SkipBadLines = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Leave out lines that are no JSON, and count them.")
]
KeepDuplicates = Annotated[bool, typer.Option("--keep-duplicates", help="Keep rows that a trainer wrote twice (TRL).")]
UnsafePickle = Annotated[
    bool,
    typer.Option(
        "--unsafe-pickle", help="Read pickles (.dp, .pkl), which can run any program; only if you trust them."
    ),
]
