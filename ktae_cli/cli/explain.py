"""`ktae explain`."""

import inspect
from typing import Annotated

import typer

from ktae_cli.catalogue import Declaration, declaration, names, unknown_name
from ktae_cli.names import parse_spec, print_value

_KINDS = ("estimators", "exports", "readers")


def explain(name: Annotated[str, typer.Argument(metavar="NAME", help="An estimator, export or reader.")]) -> None:
    """Explain an estimator, export or reader: formula, source, needs, parameters and degenerate cases."""
    wanted = parse_spec(name).name
    for kind in _KINDS:
        if wanted in names(kind):
            print(describe(kind.rstrip("s"), declaration(kind, wanted)))
            return
    raise unknown_name("name", [wanted], [known for kind in _KINDS for known in names(kind)])


def describe(kind: str, item: Declaration) -> str:
    """Return the text that `ktae explain` prints: the docstring and what the source declares."""
    lines = [f"{item.name} ({kind})", "", inspect.cleandoc(item.doc)]
    if kind == "estimator":
        lines += ["", f"needs: {', '.join(item.needs)}; level: {item.level}; scope: {item.scope}"]
        if item.columns:
            lines.append(f"columns beside the advantages: {', '.join(item.columns)}")
    if item.parameters:
        lines += ["", "parameters:"]
        for p in item.parameters.values():
            kind_of = "|".join(p.choices) or {"Spec": "estimator", "Ids": "ids"}.get(p.kind, p.kind)
            lines.append(f"  {p.name}={print_value(p.default)}  ({kind_of})")
    return "\n".join(lines)
