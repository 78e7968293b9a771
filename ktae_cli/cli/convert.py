"""`ktae convert`."""

from pathlib import Path
from typing import Annotated

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import ProgressBar, parse_map, say, speaker, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.errors import KtaeError


def convert(
    inputs: options.Inputs,
    output: options.Output = None,
    format: options.Format = "auto",
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            help="tokenizer.json or its directory: encodes text without ids, marked `retokenized`.",
            show_default=False,
        ),
    ] = None,
    on_mismatch: options.OnMismatch = options.Mismatch.error,
    skip_bad_lines: options.SkipBadLines = False,
    keep_duplicates: options.KeepDuplicates = False,
    unsafe_pickle: options.UnsafePickle = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Convert any dump that is read to canonical Parquet: one row a rollout, canonical names and types.

    Default output: INPUT's stem with .rollouts.parquet. `correct` is filled, from the reward where there is no verdict.
    Row groups of at most 64 MB. The key columns are read twice; memory grows by some bytes a row, and what is no
    Parquet takes about its own size in the temporary directory.
    """
    from ktae_cli.converting import ConvertOptions, convert_files
    from ktae_cli.memory import use_frugal_allocator

    if str(output) == "-":
        raise KtaeError("-o -: convert writes a Parquet file; name one with -o")
    use_frugal_allocator()
    chosen = parse_map(map)
    with ProgressBar(quiet) as progress:
        summary = convert_files(
            inputs, output, force,
            ConvertOptions(
                input=read_inputs(
                    format, chosen, on_mismatch, skip_bad_lines, keep_duplicates, unsafe_pickle, strict, quiet
                ),
                group_by=split_names(group_by), map=chosen, correct_threshold=correct_threshold, tokenizer=tokenizer,
                strict=strict, notice=speaker(quiet), warn=speaker(quiet, "warning: "), progress=progress,
            ),
        )  # fmt: skip
    if json:
        import json as encoder

        print(encoder.dumps(summary, allow_nan=False))
    elif not quiet:
        groups = "" if summary["groups"] is None else f" in {summary['groups']} groups"
        say(f"{summary['rollouts']} rollouts{groups} -> {summary['output']}")
