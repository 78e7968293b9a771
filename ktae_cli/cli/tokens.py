"""`ktae tokens`."""

import json as encoder
import sys
from enum import StrEnum
from typing import Annotated

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import ProgressBar, parse_map, speaker, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.cli.score import OnError, Truncated
from ktae_cli.errors import KtaeError


class LengthControl(StrEnum):
    """How length is taken into account."""

    verdict = "verdict"
    exposure = "exposure"
    prefix = "prefix"
    off = "off"


def tokens(
    inputs: options.Inputs,
    output: options.Output = None,
    format: options.Format = "auto",
    unit: Annotated[
        str, typer.Option("--unit", metavar="UNIT", help="token, word, ngram:2..5 or regex:PATTERN.")
    ] = "token",
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="PLACE",
            help="first:N, last:N, think or answer: count only there. sentence, paragraph, turn, decile, part: tell "
            "units apart by place.",
            show_default=False,
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="outcome|DECILE",
            help="Count only what is written before the answer appears, or before a tenth.",
            show_default=False,
        ),
    ] = None,
    outcome: Annotated[
        str, typer.Option("--outcome", metavar="NAME", help="correct, reward, or a named part of the reward.")
    ] = "correct",
    verdict_noise: Annotated[
        bool,
        typer.Option(
            "--verdict-noise",
            help="Test again with unknown verdicts all right, all wrong, and verify's disagreements flipped.",
        ),
    ] = False,
    length_control: Annotated[
        LengthControl,
        typer.Option(
            "--length-control",
            help="verdict: the verdict given length; prefix: all cut at the shortest of the group; exposure: presence "
            "as a rate (too liberal on real text); off.",
        ),
    ] = LengthControl.verdict,
    min_groups: Annotated[
        int, typer.Option("--min-groups", min=1, help="Test units that vary in at least so many mixed groups.")
    ] = 5,
    tarone: Annotated[
        bool, typer.Option("--tarone", help="Leave out tests that could never reject at the level.")
    ] = False,
    level: Annotated[float, typer.Option("--level", metavar="Q", help="Units with q at most this survive.")] = 0.05,
    pool: Annotated[bool, typer.Option("--pool", help="Take two inputs as one instead of comparing them.")] = False,
    permutations: Annotated[int, typer.Option("--permutations", min=1, help="Draws of labels for p_fwer.")] = 1000,
    resamples: Annotated[int, typer.Option("--resamples", min=1, help="Bootstrap resamples of the prompts.")] = 1000,
    seed: options.Seed = 0,
    estimator: Annotated[
        str, typer.Option("-e", "--estimator", metavar="SPEC", help="Whose key weights are averaged.")
    ] = "ktae",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    truncated: Annotated[
        Truncated, typer.Option("--truncated", help="Responses cut at the limit, as in `ktae score`.")
    ] = Truncated.keep,
    tokenizer: options.Tokenizer = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="A row that cannot be scored: stop, or leave it out and count.")
    ] = OnError.stop,
    on_mismatch: options.OnMismatch = options.Mismatch.error,
    skip_bad_lines: options.SkipBadLines = False,
    keep_duplicates: options.KeepDuplicates = False,
    unsafe_pickle: options.UnsafePickle = False,
    jobs: options.Jobs = 0,
    limit: options.Limit = 0,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Pool key tokens over all prompts: which units go with right answers, tested, and what is noise.

    Each unit gets two verdicts: "at all", and "beyond length", that is, given how long the responses are. Neither says
    that a unit causes the outcome. -o writes one row a unit; the terminal shows what survives Benjamini and Hochberg's
    correction, or about how many prompts it would take.
    Two inputs, such as checkpoints, are compared on their common prompts: what is written more often (usage), and what
    a unit is worth in each (value).
    Memory: about 24 bytes for each distinct pair of a unit and a rollout of the mixed groups. Labels and prompts are
    read once beforehand, tokens once (--length-control prefix twice, --verdict-noise once more for each doubt).
    """
    from ktae_cli.evidence.pooling import UnitOptions, pool_files
    from ktae_cli.evidence.unit_tests import TestOptions
    from ktae_cli.memory import use_frugal_allocator
    from ktae_cli.plan import ScoreOptions
    from ktae_cli.reports.terminal import console_for
    from ktae_cli.reports.tokens import print_findings

    changes = len(inputs) == 2 and not pool
    if changes and (outcome != "correct" or verdict_noise or tarone):
        raise KtaeError("--outcome, --verdict-noise and --tarone are for one input; --pool takes two as one")
    if changes and length_control not in (LengthControl.verdict, LengthControl.off):
        raise KtaeError(f"--length-control {length_control.value}: of two inputs, verdict or off")
    if str(output) == "-":
        raise KtaeError("-o -: tokens writes a Parquet file; name one with -o, or take --json")
    if not 0 < level < 1:
        raise KtaeError(f"--level takes a number between 0 and 1, found {level:g}")
    use_frugal_allocator()
    mapped = parse_map(map)
    read = read_inputs(format, mapped, on_mismatch, skip_bad_lines, keep_duplicates, unsafe_pickle, strict, quiet)
    with ProgressBar(quiet) as progress:
        chosen = ScoreOptions(
            estimators=(estimator,), device=device, jobs=jobs, limit=limit, group_by=split_names(group_by), map=mapped,
            correct_threshold=correct_threshold, truncated=truncated.value, on_error=on_error.value,
            tokenizer=tokenizer, strict=strict, input=read, notice=speaker(quiet), warn=speaker(quiet, "warning: "),
            progress=progress,
        )  # fmt: skip
        tests = TestOptions(length_control.value, min_groups, tarone, level, permutations, resamples, seed)
        units = UnitOptions(unit, within, before, outcome, verdict_noise)
        if changes:
            from ktae_cli.evidence.changes import compare_units
            from ktae_cli.reports.token_changes import print_changes

            speaker(quiet)(f"comparing {inputs[0]} with {inputs[1]} (--pool takes them as one)")
            report = compare_units(inputs[0], inputs[1], output, force, units, tests, chosen)
        else:
            report = pool_files(inputs, output, force, units, tests, chosen)
    if json:
        print(encoder.dumps(report, allow_nan=False))
        return
    (print_changes if changes else print_findings)(report, console_for(sys.stdout))
    if output:
        speaker(quiet)(f"{report['units']} units -> {report['output']}")
