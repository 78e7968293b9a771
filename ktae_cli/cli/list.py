"""`ktae list`."""

import json as encoder
from enum import StrEnum
from typing import Annotated

import typer

from ktae_cli.catalogue import declaration, names, rule_names, unusable_estimators
from ktae_cli.cli import options
from ktae_cli.cli.console import say
from ktae_cli.token_text import visible


class Kind(StrEnum):
    """What can be listed."""

    estimators = "estimators"
    readers = "readers"
    exports = "exports"
    rules = "rules"


def list_plugins(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="estimators, readers, exports or rules.")],
    json: options.Json = False,
) -> None:
    """List what there is: estimators, readers, exports, or the rules of `check`, one line each."""
    if kind == Kind.rules:
        _list_rules(json)
        return
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


def _list_rules(json: bool) -> None:
    found = [declaration("checks", name) for name in rule_names().values()]
    if json:
        shown = ("id", "name", "severity", "summary")
        print(encoder.dumps([{n: getattr(r, n) for n in shown} | {"needs": list(r.needs)} for r in found]))
        return
    width = max(len(rule.name) for rule in found)
    for rule in found:
        print(f"{rule.id}  {rule.severity:7}  {rule.name:{width}}  {rule.summary}")
