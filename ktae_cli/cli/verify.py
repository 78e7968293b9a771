"""`ktae verify`."""

import json as encoder
import math
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import ProgressBar, parse_map, say, speaker, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.errors import KtaeError
from ktae_cli.grading.budget import SECONDS
from ktae_cli.grading.verdict import GradingOptions

DEFAULTS = GradingOptions()

Gold = Annotated[
    str | None,
    typer.Option(
        "--gold",
        metavar="COLUMN",
        help="The right answers; default: ground_truth, gold, gts, answer or reward_model.ground_truth.",
        show_default=False,
    ),
]


class Units(StrEnum):
    """What units of measurement count for."""

    strict = "strict"
    ignore = "ignore"


class Percent(StrEnum):
    """What a percentage is equal to."""

    lax = "lax"
    strict = "strict"


def verify(
    inputs: options.Inputs,
    output: options.Output = None,
    format: options.Format = "auto",
    gold: Gold = None,
    answer_format: Annotated[
        str,
        typer.Option(
            "--answer-format",
            metavar="FORMAT",
            help="Where the final answer stands: auto, boxed, gsm8k (#### x), answer_tag, last_line, or a pattern.",
        ),
    ] = DEFAULTS.answer_format,
    verifier: Annotated[
        str,
        typer.Option(
            "--verifier", metavar="NAME", help="What grades: a name, or a Python function as path.py:function."
        ),
    ] = "math",
    argument: Annotated[
        str,
        typer.Option(
            "--argument", metavar="TEXT", help="What the verifier is told: a pattern, a path.", show_default=False
        ),
    ] = DEFAULTS.argument,
    units: Annotated[
        Units, typer.Option("--units", help="Compare units that both sides name, or ignore them.")
    ] = Units(DEFAULTS.units),
    percent: Annotated[
        Percent, typer.Option("--percent", help="28% is 28 and 0.28 (lax), or 0.28 alone (strict).")
    ] = Percent(DEFAULTS.percent),
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Relative difference of decimals taken as equal; 0 is exact.")
    ] = DEFAULTS.tolerance,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print a table of the earlier verdict against ours, and what differs.")
    ] = False,
    min_accuracy: Annotated[
        float | None,
        typer.Option("--min-accuracy", metavar="X", help="Exit 1 when the share of right answers is below X."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="Processor time, or time asleep, of one comparison."),
    ] = SECONDS,
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", "--workers", min=0, help="Worker processes; 0 is one a core.")
    ] = 0,
    limit: options.Limit = 0,
    on_mismatch: options.OnMismatch = options.Mismatch.error,
    skip_bad_lines: options.SkipBadLines = False,
    keep_duplicates: options.KeepDuplicates = False,
    unsafe_pickle: options.UnsafePickle = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Grade saved responses against their gold answers, with a reason for every verdict.

    Writes INPUT's columns plus `correct` (null where nobody can tell), `verify_status`, `answer_parsed`, `gold_parsed`
    and `verify_path`, the step that decided. What may hang or crash is done in processes that are killed; the rest of
    the rows goes on. An earlier `correct` is kept as `input_correct`. Responses are read twice, some thousand rows
    ahead; memory does not grow with the input.
    """
    from ktae_cli.verifying import VerifyOptions, verify_files

    if str(output) == "-":
        raise KtaeError("-o -: verify writes a Parquet file; name one with -o")
    if min_accuracy is not None and not (math.isfinite(min_accuracy) and 0 <= min_accuracy <= 1):
        raise KtaeError(f"--min-accuracy takes a share from 0 to 1, found {min_accuracy:g}")
    mapped = parse_map(map)
    read = read_inputs(
        format, mapped, on_mismatch, skip_bad_lines, keep_duplicates, unsafe_pickle, strict=strict, quiet=quiet
    )
    grading = GradingOptions(answer_format, units.value, percent.value, tolerance, argument)
    with ProgressBar(quiet) as progress:
        chosen = VerifyOptions(
            gold=gold, grading=grading, verifier=verifier, compare=compare, correct_threshold=correct_threshold,
            jobs=jobs, timeout=timeout, limit=limit, group_by=split_names(group_by), map=mapped, strict=strict,
            input=read, notice=speaker(quiet), warn=speaker(quiet, "warning: "), progress=progress,
        )  # fmt: skip
        summary = verify_files(inputs, output, force, chosen)
    _show(summary, json, quiet)
    if min_accuracy is not None and (summary["accuracy"] is None or summary["accuracy"] < min_accuracy):
        found = "unknown" if summary["accuracy"] is None else f"{summary['accuracy']:.6g}"
        say(f"below --min-accuracy {min_accuracy:g}: {found}")
        raise typer.Exit(1)


def _show(summary: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(encoder.dumps(summary, allow_nan=False))  # ASCII: nothing in a text can act on a terminal
        return
    if "compare" in summary:
        from ktae_cli.reports.terminal import console_for
        from ktae_cli.reports.verdicts import print_differences

        print_differences(summary, console_for(sys.stdout))
    if quiet:
        return
    known = summary["correct"] + summary["wrong"]
    accuracy = f"accuracy {summary['accuracy']:.4f} of {known}" if known else "no verdict is known"
    say(
        f"{summary['rollouts']} rollouts: {summary['correct']} right, {summary['wrong']} wrong, "
        f"{summary['unknown']} unknown; {accuracy}"
    )
    say("status: " + ", ".join(f"{count} {name}" for name, count in summary["statuses"].items() if count))
    say(f"{summary['verifier']} -> {summary['output']}")
    say(f"{summary['seconds']:.1f} s, {summary['rows_per_second']:,} rows a second")
