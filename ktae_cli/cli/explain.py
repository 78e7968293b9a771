"""`ktae explain`."""

import inspect
from typing import Annotated

import typer

from ktae_cli.catalogue import (
    AGGREGATION,
    Declaration,
    Parameter,
    declaration,
    names,
    rule_names,
    take_files,
    unknown_name,
    unusable_estimators,
)
from ktae_cli.names import parse_spec, print_value
from ktae_cli.token_text import visible

_KINDS = ("estimators", "exports", "readers", "checks")
_NOUNS = {"checks": "rule"}
_SCOPES = {"group": "group (each by itself)", "batch": "batch (statistics of all rollouts of a step, read beforehand)"}
_ALL_PROMPTS = "evidence from all prompts of the input, whatever their step, read beforehand"
_SHOWN = {"Spec": "rollout-level estimator", "Ids": "ids", "Numbers": "number or numbers joined by +"}


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="An estimator, export, reader or rule (id or name); an estimator of a file as FILE.py:NAME.",
        ),
    ],
) -> None:
    """Explain an estimator, export, reader or rule: formula, source, needs, parameters and degenerate cases."""
    wanted = parse_spec(take_files(name)).name
    wanted = rule_names().get(wanted.upper(), wanted)
    known = {kind: names(kind) for kind in _KINDS}
    kind = next((kind for kind in _KINDS if wanted in known[kind]), "")
    if not kind and wanted not in unusable_estimators():
        everything = [*(other for kind in _KINDS for other in known[kind]), *rule_names()]
        raise unknown_name("name", [wanted], everything)
    kind = kind or "estimators"
    print(visible(describe(_NOUNS.get(kind, kind.rstrip("s")), declaration(kind, wanted))))


def describe(kind: str, item: Declaration) -> str:
    """Return the text that `ktae explain` prints: the docstring and what the source declares."""
    lines = [
        f"{item.id + ' ' if item.id else ''}{item.name} ({kind}{f' of {item.source}' if item.source else ''})",
        "",
        inspect.cleandoc(item.doc),
    ]
    if kind == "estimator":
        lines += ["", f"needs: {', '.join(item.needs)}"]
        lines += [f"  {_condition(when)}: {', '.join(columns)} too" for when, columns in item.needs_when.items()]
        lines.append(f"level: {item.level}; scope: {_SCOPES[item.scope]}")
        lines += [f"  {_condition(when)}: batch ({_ALL_PROMPTS})" for when in item.pools_when]
        if item.columns:
            lines.append(f"columns beside the advantages: {', '.join(item.columns)}")
    if kind == "rule":
        lines += ["", f"severity: {item.severity}"]
        lines += [f"needs: {', '.join(need.replace('|', ' or ') for need in item.needs)}"] if item.needs else []
    if kind == "export":
        lines += ["", f"alignment: {item.alignment}", f"column, unless --advantages names one: {item.column}"]
        lines += [f"has no use for: {', '.join(_options(item.refuses))}"] if item.refuses else []
    common = AGGREGATION if kind == "estimator" else {}
    own = [parameter for parameter in item.parameters.values() if parameter.name not in common]
    lines += ["", "parameters:", *map(_line, own)] if own else []
    if common:
        lines += ["", "parameters of every estimator, for the column loss_weight_<slug>:", *map(_line, common.values())]
    return "\n".join(lines)


def _line(parameter: Parameter) -> str:
    kind = "|".join(parameter.choices) or _SHOWN.get(parameter.kind, parameter.kind)
    return f"  {parameter.name}={print_value(parameter.default)}  ({kind})"


def _options(fields: tuple[str, ...]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in fields]


def _condition(when: str) -> str:
    """Put the condition of a further need into words."""
    return f"with {when}" if "=" in when else f"with any {when} but the default"
