"""`ktae check`."""

import json as encoder
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ktae_cli.cli import options
from ktae_cli.cli.console import ProgressBar, parse_map, say, split_names
from ktae_cli.cli.reading import read_inputs
from ktae_cli.token_text import visible

if TYPE_CHECKING:
    from ktae_cli.checking import Located, Report

_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}
_SHOWN = {
    "tokenizer": "--tokenizer",
    "end-of-text": "--tokenizer or --eos-id",
    "padding": "--tokenizer or --pad-id",
    "group": "a group key",
    "advantages": "a scored file",
    "ratio": "log-probs of two policies",
    "rollout_log_probs|old_log_probs|log_probs|ref_log_probs": "log-probs",
}


class Form(StrEnum):
    """How findings are printed."""

    text = "text"
    json = "json"
    github = "github"


def check(
    inputs: options.Inputs,
    report: Annotated[
        Form, typer.Option("--report", help="One line a finding, JSON, or GitHub annotations.")
    ] = Form.text,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", help="Only these rules: ids or their beginnings, as KT1,KT203.", show_default=False),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="All rules but these.", show_default=False)
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE.NAME=VALUE", help="A parameter of a rule; see `ktae explain RULE`."),
    ] = None,
    format: options.Format = "auto",
    group_by: options.GroupBy = None,
    map: options.Map = None,
    correct_threshold: options.Threshold = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", help="tokenizer.json or its directory; default: beside the input.", show_default=False
        ),
    ] = None,
    eos_id: Annotated[
        list[int] | None,
        typer.Option("--eos-id", help="Ids that end a text; default: the tokenizer's. Repeatable.", show_default=False),
    ] = None,
    pad_id: Annotated[
        list[int] | None,
        typer.Option("--pad-id", help="Padding ids; default: the tokenizer's. Repeatable.", show_default=False),
    ] = None,
    limit: options.Limit = 0,
    keep_duplicates: options.KeepDuplicates = False,
    unsafe_pickle: options.UnsafePickle = False,
    strict: Annotated[bool, typer.Option("--strict", help="Notes count too; a warning while reading exits 2.")] = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Look for faults in rollouts: columns, groups, rewards, tokens, log-probabilities, verdicts.

    One line a finding with the place where it shows first; exit 1 with errors or warnings, 0 with none or with notes
    alone. Reads everything once; memory grows by about a hundred bytes a row. `ktae list rules` names the rules.
    """
    from pathlib import Path

    from ktae_cli.checking import CheckOptions, check_files

    mapped = parse_map(map)
    read = read_inputs(format, mapped, options.Mismatch.error, False, keep_duplicates, unsafe_pickle, strict, quiet)
    with ProgressBar(quiet) as progress:
        found = check_files(
            inputs,
            CheckOptions(
                split_names(select), split_names(ignore), tuple(set or ()), strict, limit, split_names(group_by),
                mapped, correct_threshold, Path(tokenizer) if tokenizer else None, tuple(eos_id or ()),
                tuple(pad_id or ()), read, progress,
            ),
        )  # fmt: skip
    if report == Form.json or json:
        print(encoder.dumps(found.as_dict(), allow_nan=False))  # ASCII: nothing in a name can act on a terminal
    else:
        line = text_line if report == Form.text else github_line
        for one in found.findings:
            print(line(one))
    if not quiet:
        _summarise(found)
    if found.status:
        raise typer.Exit(found.status)


def text_line(found: "Located") -> str:
    """Return `place: ID severity: message` on one line that cannot act on a terminal."""
    text = f"{found.place}: {found.id} {found.severity}: {found.message}"
    return visible(text).replace("\n", "⏎").replace("\t", "→")


def github_line(found: "Located") -> str:
    """Return a workflow command of GitHub Actions, `::warning file=…,line=…,title=…::ID message`.

    A percent sign and line ends are escaped as %25, %0D and %0A, in properties also colons and commas. A row of a file
    that has no lines stands in the message.
    """
    where = f"file={_property(visible(found.file))}," if found.file else ""
    where += f"line={found.line}," if found.line is not None else ""
    at = f" (row {found.row})" if found.row is not None else ""
    message = f"{found.id} {visible(found.message)}{at}"
    return f"::{_GITHUB[found.severity]} {where}title={found.id} {found.rule}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _summarise(found: "Report") -> None:
    lacking: dict[str, list[str]] = {}
    for id, needs in found.not_checked.items():
        words = " and ".join(_SHOWN.get(need, need.replace("|", " or ")) for need in needs)
        lacking.setdefault(words, []).append(id)
    if lacking:
        shown = "; ".join(f"{' '.join(ids)} ({words})" for words, ids in lacking.items())
        say(f"not checked, for want of what stands in brackets: {shown}")
    counts = [(found.count(severity), severity) for severity in ("error", "warning", "note")]
    shown = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for count, severity in counts)
    say(f"{found.rollouts:,} rollouts, {found.groups:,} groups, {len(found.checked)} rules: {shown}")
