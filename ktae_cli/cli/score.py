"""`ktae score`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import ProgressBar, parse_map, say, speaker, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.errors import KtaeError


class RewardFrom(StrEnum):
    """Where the base advantage takes its reward from."""

    reward = "reward"
    correct = "correct"


class Truncated(StrEnum):
    """What happens to responses that were cut at the length limit."""

    keep = "keep"
    mask = "mask"
    zero = "zero"


class Columns(StrEnum):
    """Which columns the output holds."""

    all = "all"
    added = "added"


class OnError(StrEnum):
    """What happens to a row that cannot be scored."""

    stop = "stop"
    skip = "skip"


def score(
    inputs: options.Inputs,
    output: options.Output = None,
    format: options.Format = "auto",
    estimator: Annotated[
        list[str], typer.Option("-e", "--estimator", help="Estimator spec, as in 'ktae(loo=true)'. Repeatable.")
    ] = ["ktae"],  # noqa: B006
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Grade the responses first, as `ktae verify` does by default.")
    ] = False,
    gold: Annotated[
        str | None,
        typer.Option("--gold", metavar="COLUMN", help="The right answers, for --verify.", show_default=False),
    ] = None,
    reward_from: Annotated[
        RewardFrom, typer.Option("--reward-from", help="Take the reward from this column.")
    ] = RewardFrom.reward,
    truncated: Annotated[
        Truncated,
        typer.Option(
            "--truncated",
            help="Responses cut at the limit: keep; mask (tokens get 0, leave the counts); zero (reward 0, wrong).",
        ),
    ] = Truncated.keep,
    columns: Annotated[
        Columns, typer.Option("--columns", help="Write all columns, or only the ids and ours.")
    ] = Columns.all,
    tokens_out: Annotated[
        Path | None, typer.Option("--tokens-out", help="Token table; default beside the output.", show_default=False)
    ] = None,
    no_tokens_out: Annotated[bool, typer.Option("--no-tokens-out", help="Write no token table.")] = False,
    null: Annotated[
        int, typer.Option("--null", min=0, metavar="K", help="Measure key weights against K label shuffles a null.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of --null.")] = 0,
    tokenizer: options.Tokenizer = None,
    eos_id: Annotated[
        list[int] | None,
        typer.Option("--eos-id", min=0, help="End-of-text id, for zero_ids=eos. Repeatable.", show_default=False),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option("--on-error", help="A row that cannot be scored: stop, or skip it and count.")
    ] = OnError.stop,
    on_mismatch: options.OnMismatch = options.Mismatch.error,
    skip_bad_lines: options.SkipBadLines = False,
    keep_duplicates: options.KeepDuplicates = False,
    unsafe_pickle: options.UnsafePickle = False,
    jobs: options.Jobs = 0,
    limit: options.Limit = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the mapping and the plan, write nothing.")] = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Score saved rollouts: token-level advantages and key weights into augmented Parquet.

    Writes INPUT's columns (of what is no Parquet: canonical ones) plus `advantages` and `key_weight`, and a token
    table beside it. Memory grows by some bytes a row, not with the tokens. Contiguous groups are read once, others
    twice through temporary files; the key columns are always read once more beforehand, and what is no Parquet takes
    about its own size in the temporary directory.

    --null K says how much of the key weights is chance: the share of their squares that stays under shuffled labels,
    their correlation between halves of a prompt's rollouts, and what a rollout owes to its own verdict. Reads and
    scores the rollouts 1 + 4 K times more; holds some 32 bytes an estimator for each token id of at most 1,024 groups.
    """
    from ktae_cli.memory import use_frugal_allocator
    from ktae_cli.plan import ScoreOptions
    from ktae_cli.scoring import preview, score_files

    for option, path in (("-o", output), ("--tokens-out", tokens_out)):
        if str(path) == "-":
            raise KtaeError(f"{option} -: score writes files; name one with {option}")
    use_frugal_allocator()
    mapped = parse_map(map)
    read = read_inputs(format, mapped, on_mismatch, skip_bad_lines, keep_duplicates, unsafe_pickle, strict, quiet)
    with ProgressBar(quiet) as progress:
        chosen = ScoreOptions(
            estimators=tuple(estimator), device=device, jobs=jobs, limit=limit, group_by=split_names(group_by),
            map=mapped, correct_threshold=correct_threshold, reward_from=reward_from.value,
            truncated=truncated.value, columns=columns.value, on_error=on_error.value, tokenizer=tokenizer,
            eos_ids=tuple(eos_id or ()), verify=verify, gold=gold, write_tokens=not no_tokens_out, null=null,
            seed=seed, strict=strict, input=read,
            notice=speaker(quiet), warn=speaker(quiet, "warning: "), progress=progress,
        )  # fmt: skip
        if dry_run:
            for line in preview(inputs, chosen):
                say(line)
            return
        summary = score_files(inputs, output, tokens_out, force, chosen)
    if json:
        import json as encoder

        print(encoder.dumps(summary, allow_nan=False))
    elif not quiet:
        _report(summary)


def _report(summary: dict) -> None:
    s = summary
    say(
        f"{s['rollouts']} rollouts, {s['tokens']} tokens, {s['groups']} groups: {s['groups_mixed']} mixed, "
        f"{s['groups_all_correct']} all right, {s['groups_all_wrong']} all wrong, {s['groups_singleton']} singletons"
    )
    rest = [f"{s[name]} {name}" for name in ("unscored", "truncated") if s[name]]
    if rest:
        say(", ".join(rest))
    say(f"{', '.join(s['estimators'])} -> {s['output']}" + (f", {s['token_table']}" if s["token_table"] else ""))
    if "null" in s:
        from ktae_cli.reports.chance import chance_lines

        for line in chance_lines(s["null"]):
            say(line)
    say(f"{s['seconds']:.1f} s, {s['tokens_per_second']:,} tokens a second")
