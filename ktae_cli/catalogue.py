"""The folder is the registry: what a plug-in declares is read from its source, so listing names imports nothing.

A plug-in is one file with one public function of the file's name. Its docstring, its keyword arguments with their
defaults and, for estimators, the arguments of the `@estimator(...)` decorator are the declaration.
"""

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ktae_cli.errors import KtaeError, UnknownNameError
from ktae_cli.names import Spec, parse_spec, print_value

_ROOT = Path(__file__).parent
_LARGEST_FLOAT = 1e30  # larger ones leave the range of float32 results
_LARGEST_INT = 2**31 - 1

Ids = str | int | tuple[int, ...]
"""Annotation of a parameter that takes token ids: `none`, `eos`, one id, or ids joined by `+`."""


@dataclass(frozen=True)
class Parameter:
    """A keyword argument: `kind` is its annotation (float, int, bool, str, Spec, Ids), `choices` from a Literal."""

    name: str
    kind: str
    default: Any
    choices: tuple[str, ...] = ()

    def accept(self, value: Any, owner: str) -> Any:
        """Return the value in this parameter's type, or raise `KtaeError` that says what is allowed."""
        if self.kind == "float" and type(value) in (int, float) and abs(value) <= _LARGEST_FLOAT:
            return float(value)
        if self.kind == "int" and type(value) is int and abs(value) <= _LARGEST_INT:
            return value
        if self.kind == "bool" and type(value) is bool:
            return value
        if self.choices and value in self.choices:
            return value
        if self.kind == "Spec" and isinstance(value, str | Spec):
            return resolve_spec(value, level="rollout")
        if self.kind == "Ids" and (accepted := _accept_ids(value)) is not None:
            return accepted
        allowed = {
            "Ids": "none, eos or token ids joined by +",
            "Spec": "a rollout-level estimator",
            "float": "a number up to 1e30",
            "int": "a whole number of at most 32 bits",
            "bool": "true or false",
        }
        expected = " or ".join(self.choices) or allowed.get(self.kind, f"a {self.kind}")
        raise KtaeError(f"{owner}: {self.name} takes {expected}, found {print_value(value)}")


@dataclass(frozen=True)
class Declaration:
    """What one plug-in says of itself."""

    name: str
    path: Path
    doc: str
    needs: tuple[str, ...] = ()
    level: str = ""
    scope: str = ""
    columns: tuple[str, ...] = ()
    parameters: dict[str, Parameter] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.doc.strip().partition("\n")[0]


def _accept_ids(value: Any) -> Any:
    if value in ("none", "eos"):
        return value
    ids = value if isinstance(value, tuple) else (value,)
    if not ids or not all(type(i) is int and 0 <= i <= _LARGEST_INT for i in ids):
        return None
    distinct = tuple(sorted(set(ids)))
    return distinct[0] if len(distinct) == 1 else distinct


def names(kind: str) -> list[str]:
    """List the plug-ins of a folder (estimators, readers, exports); base.py and _private files are no plug-ins."""
    return list(_names(kind))


@cache
def _names(kind: str) -> tuple[str, ...]:
    files = (_ROOT / kind).glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_") and f.stem not in ("base", "scored")))


def declaration(kind: str, name: str) -> Declaration:
    """Return a plug-in's declaration; raise `UnknownNameError` with the nearest names when there is none."""
    if name not in _names(kind):
        raise unknown_name(kind.rstrip("s"), [name], _names(kind))
    return _declarations(kind)[name]


def unknown_name(what: str, found: Iterable[str], known: Iterable[str]) -> UnknownNameError:
    """Build the error for unknown names: all of them at once, each with its nearest match."""
    known = list(known)
    parts = []
    for name in found:
        near = difflib.get_close_matches(name, known, 1, 0.5)
        parts.append(f"{name!r}" + (f" (nearest: {near[0]})" if near else ""))
    noun, gap, rest = what.partition(" ")
    plural = "s" if len(parts) > 1 else ""
    return UnknownNameError(f"unknown {noun}{plural}{gap}{rest} {', '.join(parts)}; known: {', '.join(known)}")


@cache
def _declarations(kind: str) -> dict[str, Declaration]:
    return {name: _read(_ROOT / kind / f"{name}.py", name) for name in names(kind)}


def _read(path: Path, name: str) -> Declaration:
    module = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        return Declaration(name, path, ast.get_docstring(module) or "")
    function = functions[0]
    declared = {}
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            declared = {word.arg: ast.literal_eval(word.value) for word in decorator.keywords}
    parameters = {}
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None and argument.annotation is not None:
            parameters[argument.arg] = _parameter(argument.arg, argument.annotation, ast.literal_eval(default))
    return Declaration(name, path, ast.get_docstring(function) or "", parameters=parameters, **declared)


def _parameter(name: str, annotation: ast.expr, default: Any) -> Parameter:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = ast.literal_eval(annotation.slice)
        return Parameter(name, "choice", default, choices if isinstance(choices, tuple) else (choices,))
    return Parameter(name, ast.unparse(annotation), default)


def resolve_spec(spec: str | Spec, level: str | None = None) -> Spec:
    """Check a spec against the estimators' declarations and return its canonical form: only non-default parameters.

    `level="rollout"` admits only estimators with one advantage per rollout. Raises `KtaeError` that names every
    unknown parameter with its nearest match, and `UnknownNameError` for an unknown estimator.
    """
    spec = parse_spec(spec) if isinstance(spec, str) else spec
    declared = declaration("estimators", spec.name)
    if level and declared.level != level:
        raise KtaeError(f"{spec.name} gives one advantage per {declared.level}; a base gives one per {level}")
    unknown = [key for key, _ in spec.arguments if key not in declared.parameters]
    if unknown:
        raise unknown_name(f"parameter of {spec.name}:", unknown, declared.parameters or ["none"])
    given = {key: declared.parameters[key].accept(value, spec.name) for key, value in spec.arguments}
    kept = {key: v for key, v in given.items() if print_value(v) != print_value(_default(declared.parameters[key]))}
    return Spec(spec.name, tuple(sorted(kept.items())))


def spell_out(spec: Spec) -> dict[str, Any]:
    """Return all parameters of a resolved spec with their values, nested specs as canonical text."""
    declared = declaration("estimators", spec.name).parameters
    values = {name: _default(parameter) for name, parameter in declared.items()} | dict(spec.arguments)
    return {
        name: str(v) if isinstance(v, Spec) else list(v) if isinstance(v, tuple) else v for name, v in values.items()
    }


def needs(spec: Spec) -> tuple[str, ...]:
    """Return the canonical columns that a resolved spec needs, those of its base included."""
    declared = declaration("estimators", spec.name)
    wanted = list(declared.needs)
    for name, parameter in declared.parameters.items():
        if parameter.kind == "Spec":
            wanted += needs(dict(spec.arguments).get(name, parse_spec(parameter.default)))
    return tuple(dict.fromkeys(wanted))


def _default(parameter: Parameter) -> Any:
    return float(parameter.default) if parameter.kind == "float" else parameter.default
