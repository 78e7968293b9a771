"""`ktae export`: a scored file as the files an offline training pipeline reads."""

import json
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ktae_cli.catalogue import names, unknown_name
from ktae_cli.cli.console import speaker
from ktae_cli.cli.options import Force, Json, Quiet
from ktae_cli.errors import KtaeError
from ktae_cli.readers.scored import ScoredFile


class NullAdvantages(StrEnum):
    """What becomes of rows without advantages."""

    drop = "drop"
    zero = "zero"


def export(
    scored: Annotated[Path, typer.Argument(metavar="SCORED", help="A file written by `ktae score`.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help=f"One of: {', '.join(names('exports'))}.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Default: <stem>.export.<target> beside SCORED; - is stdout."
        ),
    ] = None,
    advantages: Annotated[
        str, typer.Option("--advantages", metavar="COLUMN", help="The per-token column to export as advantages.")
    ] = "advantages",
    null_advantages: Annotated[
        NullAdvantages, typer.Option("--null-advantages", help="Rows without a known reward: leave out, or zeros.")
    ] = NullAdvantages.drop,
    rollouts: Annotated[
        Path | None,
        typer.Option("--rollouts", metavar="INPUT", help="The file that was scored, after `score --columns added`."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write full-sequence rows: prompt and response ids, loss mask, advantages, log-probabilities.

    Every list is as long as input_ids (prompt, then response) and value t belongs to token t. The loss mask is 1 where
    the policy sampled the token, 0 on the prompt and on tool tokens. Row order is kept.
    """
    from ktae_cli.exports.base import read_rows, refuse_source
    from ktae_cli.writers.atomic import atomic_path

    if to not in names("exports"):
        raise unknown_name("export", [to], names("exports"))
    if output == "-" and (to != "jsonl" or as_json):
        raise KtaeError("-o - writes jsonl to stdout; " + ("leave out --json" if as_json else f"{to} needs a file"))
    write = getattr(import_module(f"ktae_cli.exports.{to}"), to)
    file = ScoredFile(scored, rollouts)
    rows = read_rows(file, advantages, null_advantages.value)
    target = default_output(scored, to) if output is None else Path(output)
    if output == "-":
        write(rows, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        refuse_source(target, (scored, rollouts))
        with atomic_path(target, force) as temporary:
            write(rows, temporary)
    summary = {**rows.counts, "advantages": advantages, "output": output if output == "-" else str(target)}
    for line in _notices(summary, file.has("prompt_ids")):
        speaker(quiet)(line)
    if as_json:
        print(json.dumps(summary))


def default_output(scored: Path, target: str) -> Path:
    """Return X.export.<target> for X.scored.parquet: never the name of the scored file or of what was scored."""
    return scored.with_name(f"{scored.name.removesuffix('.parquet').removesuffix('.scored')}.export.{target}")


def _notices(summary: dict[str, Any], has_prompt_ids: bool) -> list[str]:
    lines = []
    if not has_prompt_ids:
        lines.append("no prompt_ids in the file: input_ids holds the response alone")
    elif summary["without_prompt_ids"]:
        lines.append(f"{summary['without_prompt_ids']} rollouts have no prompt_ids: their response alone")
    if summary["dropped"]:
        lines.append(f"{summary['dropped']} unscored rollouts left out (--null-advantages zero keeps them)")
    if summary["zeroed"]:
        lines.append(f"{summary['zeroed']} unscored rollouts written with advantages 0")
    lines.append(f"{summary['rollouts']} rollouts, {summary['tokens']} tokens -> {summary['output']}")
    return lines
