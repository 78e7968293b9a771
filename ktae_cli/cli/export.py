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
from ktae_cli.token_text import visible


class NullAdvantages(StrEnum):
    """What becomes of rows without advantages."""

    drop = "drop"
    zero = "zero"


class Normalize(StrEnum):
    """How the exported column is scaled."""

    none = "none"
    batch = "batch"
    token = "token"


class Loss(StrEnum):
    """What the trainer multiplies the exported column by."""

    plain_pg = "plain_pg"


def export(
    scored: Annotated[Path, typer.Argument(metavar="SCORED", help="A file written by `ktae score`.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help=f"One of: {', '.join(names('exports'))}. Parameters: 'sft(min_weight=0.2)'; `ktae explain sft`.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Default: <stem>.export.<target> beside SCORED; - is stdout."
        ),
    ] = None,
    advantages: Annotated[
        str | None,
        typer.Option(
            "--advantages",
            metavar="COLUMN",
            help="The per-token column to export; default: advantages, key_weight for sft and dpo.",
            show_default=False,
        ),
    ] = None,
    normalize: Annotated[
        Normalize,
        typer.Option(
            "--normalize",
            help="Over the policy tokens of each step. batch: subtract the mean, divide by the standard deviation. "
            "token: divide only.",
        ),
    ] = Normalize.none,
    clip: Annotated[
        float | None,
        typer.Option("--clip", metavar="X", help="Limit values to [-X, X], after --normalize.", show_default=False),
    ] = None,
    drop_dead_groups: Annotated[
        bool, typer.Option("--drop-dead-groups", help="Leave out groups whose values are all 0.")
    ] = False,
    null_advantages: Annotated[
        NullAdvantages, typer.Option("--null-advantages", help="Rows without a known reward: leave out, or zeros.")
    ] = NullAdvantages.drop,
    mask_truncated: Annotated[
        bool, typer.Option("--mask-truncated", help="Take responses cut at the length limit off the loss mask.")
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            metavar="N",
            help="Leave out rollouts whose prompt and response are longer; nothing is cut.",
            show_default=False,
        ),
    ] = None,
    shards: Annotated[
        int, typer.Option("--shards", metavar="N", help="Write N files of whole groups, OUT-00000-of-0000N.")
    ] = 1,
    loss: Annotated[
        Loss | None,
        typer.Option(
            "--loss",
            help="plain_pg: the trainer's loss is -log pi times the column, no ratio, no clip; allows grad_weight_…",
            show_default=False,
        ),
    ] = None,
    rollouts: Rollouts = None,
    allow_retokenized: Annotated[
        bool, typer.Option("--allow-retokenized", help="Export token ids that were made from text, not sampled.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the rollouts of a scored file in the form that a trainer reads, with an advantage for each token.

    The file is read twice: every length, mask and value is checked before the first byte is written. Advantages are 0
    on the prompt and on tokens that the policy did not sample. Where values stand in each target: docs/exports.md.
    """
    summary = write_export(
        scored,
        to,
        output,
        rollouts=rollouts,
        shards=shards,
        force=force,
        stdout_taken=as_json,
        advantages=advantages,
        normalize=normalize.value,
        clip=clip,
        drop_dead_groups=drop_dead_groups,
        null_advantages=null_advantages.value,
        mask_truncated=mask_truncated,
        max_length=max_length,
        loss=loss and loss.value,
        allow_retokenized=allow_retokenized,
    )
    for line in _notices(summary):
        speaker(quiet)(visible(line))
    if as_json:
        print(json.dumps(summary))


def _notices(summary: dict[str, Any]) -> list[str]:
    lines = []
    if summary["rollouts"] and summary["without_prompt_ids"] == summary["rollouts"]:
        lines.append("warning: no prompt_ids in the file: the response alone is written, not what it answers")
    elif summary["without_prompt_ids"]:
        lines.append(f"{summary['without_prompt_ids']} rollouts have no prompt_ids: their response alone")
    if summary["dropped"]:
        lines.append(f"{summary['dropped']} unscored rollouts left out (--null-advantages zero keeps them)")
    if summary["zeroed"]:
        lines.append(f"{summary['zeroed']} unscored rollouts written with advantages 0")
    if summary["too_long"]:
        lines.append(f"{summary['too_long']} rollouts longer than --max-length left out")
    if summary["dead_groups"]:
        lines.append(f"{summary['dead_groups']} dead groups left out, {summary['dead_rollouts']} rollouts")
    if summary["masked_truncated"]:
        lines.append(f"{summary['masked_truncated']} truncated rollouts off the loss mask")
    lines += summary["notes"]
    what = "response" if summary["without_prompt_ids"] == summary["rollouts"] else "prompt and response"
    shown = summary["output"]
    shown = f"{shown[0]} … {len(shown)} files" if isinstance(shown, list) else shown
    lines.append(f"{summary['rollouts']} rollouts, {summary['tokens']} {what} tokens -> {shown}")
    if summary["written"] != summary["rollouts"]:
        lines[-1] = f"{summary['written']} lines from {lines[-1]}"
    return lines
