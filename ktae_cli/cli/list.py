"""`ktae list`."""

import json as encoder
from enum import StrEnum
from typing import Annotated

import typer

from ktae_cli.catalogue import declaration, names, unusable_estimators
from ktae_cli.cli import options
from ktae_cli.cli.console import say
from ktae_cli.tokens import visible


class Kind(StrEnum):
    """What can be listed."""

    estimators = "estimators"
    readers = "readers"
    exports = "exports"


def list_plugins(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="estimators, readers or exports.")],
    json: options.Json = False,
) -> None:
    """List what there is: estimators, readers or exports, one line each."""
    found = [declaration(kind.value, name) for name in names(kind.value)]
    if kind == Kind.estimators:
        for reason in unusable_estimators().values():
            say(f"warning: {reason}")
    if json:
        print(
            encoder.dumps(
                [
                    {"name": item.name, "summary": item.summary, "needs": list(item.needs), "source": item.source}
                    for item in found
                ]
            )
        )
        return
    width = max(len(item.name) for item in found)
    for item in found:
        source = f" ({item.source})" if item.source else ""
        print(visible(f"{item.name:{width}}  {item.summary}{source}"))
