"""`ktae export`: a scored file as the files an offline training pipeline reads."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ktae_cli.catalogue import names
from ktae_cli.cli.console import speaker
from ktae_cli.cli.options import Force, Json, Quiet, Rollouts
from ktae_cli.exporting import write_export


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
    rollouts: Rollouts = None,
    allow_retokenized: Annotated[
        bool, typer.Option("--allow-retokenized", help="Export token ids that were made from text, not sampled.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write full-sequence rows: prompt and response ids, loss mask, advantages, log-probabilities.

    Every list is as long as input_ids (prompt, then response) and value t belongs to token t. The loss mask is 1 where
    the policy sampled the token, 0 on the prompt and on tool tokens. Row order is kept.
    """
    summary = write_export(
        scored, to, output, advantages, null_advantages.value, rollouts, force, as_json, allow_retokenized
    )
    for line in _notices(summary):
        speaker(quiet)(line)
    if as_json:
        print(json.dumps(summary))


def _notices(summary: dict[str, Any]) -> list[str]:
    lines = []
    if summary["rollouts"] and summary["without_prompt_ids"] == summary["rollouts"]:
        lines.append("warning: no prompt_ids in the file: input_ids holds the response alone, not what it answers")
    elif summary["without_prompt_ids"]:
        lines.append(f"{summary['without_prompt_ids']} rollouts have no prompt_ids: their response alone")
    if summary["dropped"]:
        lines.append(f"{summary['dropped']} unscored rollouts left out (--null-advantages zero keeps them)")
    if summary["zeroed"]:
        lines.append(f"{summary['zeroed']} unscored rollouts written with advantages 0")
    what = "response" if summary["without_prompt_ids"] == summary["rollouts"] else "prompt and response"
    lines.append(f"{summary['rollouts']} rollouts, {summary['tokens']} {what} tokens -> {summary['output']}")
    return lines
