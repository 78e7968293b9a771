"""`ktae highlight`: which tokens separate the right from the wrong rollouts of a prompt."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ktae_cli.cli.console import speaker
from ktae_cli.cli.options import Json, Quiet, Rollouts, Tokenizer


def highlight(
    scored: Annotated[Path, typer.Argument(metavar="SCORED", help="A file written by `ktae score`.")],
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="ID", help="The prompt to show; default: the mixed group with most weight."),
    ] = None,
    rollout: Annotated[str | None, typer.Option("--rollout", metavar="ID", help="Show this rollout alone.")] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Values to draw; default: key_weight, else advantages."),
    ] = None,
    tokenizer: Tokenizer = None,
    rollouts: Rollouts = None,
    rollouts_shown: Annotated[
        int | None,
        typer.Option(
            "--rollouts-shown", metavar="N", min=1, help="Right and as many wrong rollouts to show; default: 2."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every rollout and every token.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which tokens matter: right and wrong rollouts of one prompt, each token coloured by its weight.

    Orange tokens point to right rollouts, blue ones to wrong rollouts; the strongest tokens follow with their counts.
    A character that is split over several tokens is drawn once, with the strongest of their values.
    Without colour (a pipe, NO_COLOR) the weights stand in brackets.
    """
    from ktae_cli.readers.scored import ScoredFile
    from ktae_cli.reports.terminal import console_for, print_view
    from ktae_cli.reports.view import Choice, value_column, view_group
    from ktae_cli.token_text import choose_decoder

    file = ScoredFile(scored, rollouts)
    beside = [path for path in (scored, rollouts) if path is not None]
    column = value_column(file, by)
    decoder, note = choose_decoder(tokenizer, beside, file.has("response_tokens"))
    per_verdict = rollouts_shown if rollouts_shown or full else 2
    view = view_group(file, Choice(column, group, rollout, per_verdict, full), decoder, note)
    for notice in [*([note] if as_json else []), *view.notices]:
        speaker(quiet)(notice)
    if as_json:
        print(json.dumps(view.to_json(), allow_nan=False, indent=1))
    else:
        given = {"--by": by, "--tokenizer": tokenizer, "--rollouts": rollouts}
        options = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
        print_view(view, console_for(sys.stdout), shlex.join(["ktae", "highlight", str(scored), *options]))
