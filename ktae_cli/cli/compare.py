"""`ktae compare`."""

import json as encoder
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import ProgressBar, parse_map, say, speaker, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.cli.score import OnError, RewardFrom, Truncated
from ktae_cli.errors import KtaeError


def compare(
    inputs: options.Inputs,
    estimator: Annotated[
        list[str] | None,
        typer.Option("-e", "--estimator", help="Estimator spec; give two or more.", show_default=False),
    ] = None,
    format: options.Format = "auto",
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="Of two scored files; default: advantages.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Parquet: one row a rollout, the report in its metadata.", show_default=False
        ),
    ] = None,
    fail_over: Annotated[
        float | None,
        typer.Option("--fail-over", metavar="X", help="Exit 1 when a token differs from the first by more than X."),
    ] = None,
    null: Annotated[
        int, typer.Option("--null", min=0, metavar="K", help="Measure key weights against K label shuffles a null.")
    ] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of --null.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    reward_from: Annotated[
        RewardFrom, typer.Option("--reward-from", help="Take the reward from this column.")
    ] = RewardFrom.reward,
    truncated: Annotated[
        Truncated, typer.Option("--truncated", help="Responses cut at the limit, as in `ktae score`.")
    ] = Truncated.keep,
    tokenizer: options.Tokenizer = None,
    eos_id: Annotated[
        list[int] | None,
        typer.Option("--eos-id", min=0, help="End-of-text id, for zero_ids=eos. Repeatable.", show_default=False),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="A row that cannot be scored: stop, or skip it and count.")
    ] = OnError.stop,
    rollouts: options.Rollouts = None,
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
    """Compare estimators on the same rollouts, or two scored files of the same rollouts (without -e).

    Shows how large each one's advantages are, how they go with length, how each agrees with the first and where signs
    differ; --json has every pair. For KTAE estimators also the share of the shift, and with --null K how much of their
    key weights is chance, as `ktae score --null`: under two nulls, in halves, and what a rollout owes to its own
    verdict. Reads and scores the rollouts 1 + 4 K times.
    Memory: some numbers a rollout, and for ranks 4 bytes a token and estimator, of at most 16 million tokens; above
    that whole groups are sampled. Two scored files are joined by group_id and rollout_id.
    """
    from ktae_cli.token_text import visible

    if fail_over is not None and not (math.isfinite(fail_over) and fail_over >= 0):
        raise KtaeError(f"--fail-over takes a number of at least 0, found {fail_over}")
    if str(output) == "-":
        raise KtaeError("-o -: compare writes a Parquet file; name one with -o, or take --json")
    speak = {"notice": speaker(quiet), "warn": speaker(quiet, "warning: ")}
    if estimator:
        _refuse_given("two scored files, without -e", {"--by": by, "--rollouts": rollouts})
        from ktae_cli.comparing import CompareOptions, compare_inputs
        from ktae_cli.memory import use_frugal_allocator
        from ktae_cli.plan import ScoreOptions

        use_frugal_allocator()
        mapped = parse_map(map)
        read = read_inputs(format, mapped, on_mismatch, skip_bad_lines, keep_duplicates, unsafe_pickle, strict, quiet)
        with ProgressBar(quiet) as progress:
            chosen = ScoreOptions(
                estimators=tuple(estimator), device=device, jobs=jobs, limit=limit, group_by=split_names(group_by),
                map=mapped, correct_threshold=correct_threshold, reward_from=reward_from.value,
                truncated=truncated.value, on_error=on_error.value, tokenizer=tokenizer, eos_ids=tuple(eos_id or ()),
                strict=strict, input=read, progress=progress, **speak,
            )  # fmt: skip
            report = compare_inputs(inputs, output, force, chosen, CompareOptions(null, seed))
    else:
        if len(inputs) != 2:
            raise KtaeError("give estimators with -e, two or more, or two scored files without -e")
        given = {"--group-by": group_by, "--map": map, "--eos-id": eos_id, "--format": format != "auto"}
        given |= {"--reward-from": reward_from != RewardFrom.reward, "--truncated": truncated != Truncated.keep}
        _refuse_given("estimators (-e)", given)
        from ktae_cli.comparison.files import FileOptions, compare_files

        with ProgressBar(quiet) as progress:
            files = FileOptions(by or "advantages", limit, tokenizer, rollouts, strict, progress=progress, **speak)
            report = compare_files((Path(inputs[0]), Path(inputs[1])), output, force, files)
    _show(report, json, quiet)
    if fail_over is not None and report["largest_difference"] > fail_over:
        say(visible(f"over --fail-over {fail_over:g}: {report['largest_difference']:.6g}"))
        raise typer.Exit(1)


def _refuse_given(what: str, given: dict[str, Any]) -> None:
    names = [option for option, value in given.items() if value]
    if names:
        raise KtaeError(f"{', '.join(names)}: {'is' if len(names) == 1 else 'are'} for {what}")


def _show(report: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(encoder.dumps(report, allow_nan=False))  # ASCII: nothing in a name can act on a terminal
        return
    from ktae_cli.reports.comparison import print_comparison
    from ktae_cli.reports.terminal import console_for

    print_comparison(report, console_for(sys.stdout))
    if report["output"]:
        speaker(quiet)(f"one row a rollout -> {report['output']}")
