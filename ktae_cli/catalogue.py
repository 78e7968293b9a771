"""The folder is the registry: what a plug-in declares is read from its source, so listing names imports nothing.

A plug-in is one file with one public function of the file's name. Its docstring, its keyword arguments with their
defaults and the arguments of the `@estimator(...)`, `@reader(...)`, `@rule(...)` or `@export(...)` decorator are the
declaration.
Estimators may come from elsewhere: `ktae_cli.extensions` finds them.
"""

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ktae_cli.errors import KtaeError, UnknownNameError
from ktae_cli.extension_source import check_source, is_declaration
from ktae_cli.extensions import Extension, file_extension, installed_extensions, read_source, split_files
from ktae_cli.names import Spec, parse_spec, print_value
from ktae_cli.schema import STAND_INS

_ROOT = Path(__file__).parent
_DECORATOR = {"readers": "reader", "checks": "rule", "exports": "export"}
_LARGEST_FLOAT = 1e30  # larger ones leave the range of float32 results
_LARGEST_INT = 2**31 - 1

Ids = str | int | tuple[int, ...]
"""Annotation of a parameter that takes token ids: `none`, `eos`, one id, or ids joined by `+`."""

Numbers = float | tuple[float, ...]
"""Annotation of a parameter that takes one number, or numbers joined by `+`."""


@dataclass(frozen=True)
class Parameter:
    """A keyword argument: its `kind` is float, int, bool, str, Spec, Ids, Numbers, or choice for a Literal."""

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
        if self.choices and print_value(value) in self.choices:
            return print_value(value)
        if self.kind == "Spec" and isinstance(value, str | Spec):
            return _accept_base(value, owner)
        if self.kind == "Numbers" and (numbers := _accept_numbers(value)) is not None:
            return numbers
        if self.kind == "Ids" and (accepted := _accept_ids(value)) is not None:
            return accepted
        allowed = {
            "Ids": "none, eos or token ids joined by +",
            "Numbers": "a number, or numbers joined by +",
            "Spec": "a rollout-level estimator",
            "float": "a number up to 1e30",
            "int": "a whole number of at most 32 bits",
            "bool": "true or false",
        }
        expected = " or ".join(self.choices) or allowed.get(self.kind, f"a {self.kind}")
        raise KtaeError(f"{owner}: {self.name} takes {expected}, found {print_value(value)}")


@dataclass(frozen=True)
class Declaration:
    """What one plug-in says of itself.

    `files` to `threshold` are what a reader declares, `id` to `sees` a rule, `alignment` to `refuses` an export.
    """

    name: str
    path: Path
    doc: str
    needs: tuple[str, ...] = ()
    level: str = ""
    scope: str = ""
    columns: tuple[str, ...] = ()
    needs_when: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pools_when: tuple[str, ...] = ()
    parameters: dict[str, Parameter] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    shape: str = ""
    keys: tuple[str, ...] = ()
    supplies: tuple[str, ...] = ()
    threshold: float | None = None
    id: str = ""
    severity: str = ""
    sees: str = ""
    alignment: str = ""
    suffix: str = ""
    directory: bool = False
    sidecar: bool = False
    stdout: bool = False
    column: str = "advantages"
    reads: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    source: str = ""
    """Where an estimator from elsewhere comes from: `package NAME VERSION`, or `file NAME, sha256 …`."""

    @property
    def accepted(self) -> dict[str, Parameter]:
        """What a spec may set: the parameters of its own, and those that every estimator has."""
        return self.parameters | AGGREGATION if self.level else self.parameters

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.doc.strip().partition("\n")[0]


AGGREGATION = {
    "aggregation": Parameter(
        "aggregation",
        "choice",
        "none",
        ("none", "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "dr_grpo"),
    ),
    "aggregation_length": Parameter("aggregation_length", "int", 0),
}
"""Parameters that every estimator has: over what its loss is averaged, in a column `loss_weight` of its own."""


def _accept_base(value: str | Spec, owner: str) -> Spec:
    spec = resolve_spec(value, level="rollout")
    if any(key in AGGREGATION for key, _ in spec.arguments):
        raise KtaeError(f"{owner}: the aggregation is that of the whole estimator; give it to {owner}, not to its base")
    return spec


def _accept_numbers(value: Any) -> Any:
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers or not all(type(n) in (int, float) and abs(n) <= _LARGEST_FLOAT for n in numbers):
        return None
    return float(numbers[0]) if len(numbers) == 1 else tuple(float(n) for n in numbers)


def _accept_ids(value: Any) -> Any:
    if value in ("none", "eos"):
        return value
    ids = value if isinstance(value, tuple) else (value,)
    if not ids or not all(type(i) is int and 0 <= i <= _LARGEST_INT for i in ids):
        return None
    distinct = tuple(sorted(set(ids)))
    return distinct[0] if len(distinct) == 1 else distinct


def names(kind: str) -> list[str]:
    """List the plug-ins of a folder (estimators, readers, exports, checks); base.py and _private files are no plug-ins.

    Estimators of installed packages and of files named on the command line are among them, if they can be used.
    """
    if kind != "estimators":
        return list(_names(kind))
    return sorted({*_names(kind), *(set(_extensions()) - set(unusable_estimators()))})


@cache
def _names(kind: str) -> tuple[str, ...]:
    files = (_ROOT / kind).glob("*.py")
    return tuple(sorted(f.stem for f in files if not f.stem.startswith("_") and f.stem not in ("base", "scored")))


_from_files: dict[str, Extension] = {}


def _extensions() -> dict[str, Extension]:
    """Return the estimators from elsewhere by name."""
    return installed_extensions() | _from_files


def extension(name: str) -> Extension | None:
    """Return where an estimator is loaded from that is not part of the project, else None."""
    return None if name in _names("estimators") else _extensions().get(name)


def unusable_estimators() -> dict[str, str]:
    """Return the estimators of installed packages that cannot be used, each with the reason in one line."""
    reasons = {}
    for name, found in installed_extensions().items():
        if name in _names("estimators"):
            reasons[name] = f"estimator {name!r} of {found.source} cannot be used: ktae has one of that name"
            continue
        try:
            _read_extension(found)
        except KtaeError as error:
            reasons[name] = str(error)
    return reasons


def declaration(kind: str, name: str) -> Declaration:
    """Return a plug-in's declaration; raise `UnknownNameError` with the nearest names when there is none."""
    if name in _names(kind):
        return _declarations(kind)[name]
    if kind == "estimators" and (found := _extensions().get(name)):
        return _read_extension(found)
    raise unknown_name(kind.rstrip("s"), [name], names(kind))


def rule_names() -> dict[str, str]:
    """Return the rules of `ktae check`, id -> name, in the order of their ids."""
    return dict(sorted((declaration("checks", name).id, name) for name in names("checks")))


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
    return {name: _read(_ROOT / kind / f"{name}.py", name, kind) for name in _names(kind)}


@cache
def _read_extension(found: Extension) -> Declaration:
    if found.problem:
        raise KtaeError(found.problem)
    try:
        check_source(read_source(found), found.path.name, found.function, tuple(AGGREGATION))
        declared = _read(found.path, found.function, "estimators", found.name, found.origin)
        for parameter in declared.parameters.values():
            _check_default(parameter, found.name)
    except RecursionError:
        raise KtaeError(f"estimator {found.name!r} of {found.source}: its default bases go in a circle") from None
    except (OSError, KtaeError) as error:
        raise KtaeError(f"estimator {found.name!r} of {found.source}: {error}") from None
    return declared


def _check_default(parameter: Parameter, owner: str) -> None:
    """Raise `KtaeError` when a default is none of the parameter's values, or a base in another form than its own."""
    accepted = parameter.accept(parameter.default, owner)
    if parameter.kind == "Spec" and str(accepted) != parameter.default:
        found, right = parameter.default, str(accepted)
        raise KtaeError(f"the default of {parameter.name!r} is {found!r}; write it as {right!r}")


def _read(path: Path, function_name: str, kind: str, name: str = "", source: str = "") -> Declaration:
    module = ast.parse(path.read_bytes())
    name = name or function_name
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function_name]
    if not functions:
        return Declaration(name, path, ast.get_docstring(module) or "", source=source)
    function = functions[0]
    declared = {}
    for decorator in function.decorator_list:
        if is_declaration(decorator, _DECORATOR.get(kind, "estimator")):
            declared = {word.arg: ast.literal_eval(word.value) for word in decorator.keywords}
    parameters = {}
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None and argument.annotation is not None:
            parameters[argument.arg] = _parameter(argument.arg, argument.annotation, ast.literal_eval(default))
    return Declaration(name, path, ast.get_docstring(function) or "", parameters=parameters, source=source, **declared)


def _parameter(name: str, annotation: ast.expr, default: Any) -> Parameter:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = ast.literal_eval(annotation.slice)
        return Parameter(name, "choice", default, choices if isinstance(choices, tuple) else (choices,))
    return Parameter(name, ast.unparse(annotation), default)


def resolve_spec(spec: str | Spec, level: str | None = None, kind: str = "estimators") -> Spec:
    """Check a spec against the declarations of a folder and return its canonical form: only non-default parameters.

    `level="rollout"` admits only estimators with one advantage per rollout. `path/to/file.py:name` takes the estimator
    of a file, also as a base; it is `name` from then on. Raises `KtaeError` that names every unknown parameter with its
    nearest match, and `UnknownNameError` for an unknown name.
    """
    if isinstance(spec, str):
        spec = parse_spec(take_files(spec) if kind == "estimators" else spec)
    declared = declaration(kind, spec.name)
    if level and declared.level != level:
        raise KtaeError(f"{spec.name} gives one advantage per {declared.level}; a base gives one per {level}")
    accepted = declared.accepted
    unknown = [key for key, _ in spec.arguments if key not in accepted]
    if unknown:
        raise unknown_name(f"parameter of {spec.name}:", unknown, accepted)
    given = {key: accepted[key].accept(value, spec.name) for key, value in spec.arguments}
    kept = {key: v for key, v in given.items() if print_value(v) != print_value(_default(accepted[key]))}
    if kept.get("aggregation_length", 0) < 0 or ("aggregation_length" in kept and kept.get("aggregation") != "dr_grpo"):
        raise KtaeError(f"{spec.name}: aggregation_length is a positive length, and goes with aggregation=dr_grpo")
    return Spec(spec.name, tuple(sorted(kept.items())))


def take_files(text: str) -> str:
    """Add the estimators of the files that a spec names, and return the spec with their names alone."""
    text, files = split_files(text)
    for path, name in files:
        _register(file_extension(path, name))
    return text


def _register(found: Extension) -> None:
    taken = None
    if found.name in _names("estimators"):
        taken = "an estimator of ktae"
    elif found.name in installed_extensions():
        taken = f"an estimator of the installed {installed_extensions()[found.name].source}"
    if taken:
        raise KtaeError(f"{found.source}: {found.name!r} is the name of {taken}; give yours another name")
    _read_extension(found)
    known = _from_files.setdefault(found.name, found)
    if known.path != found.path:
        raise KtaeError(f"{found.path}: {known.path} has an estimator {found.name!r} too; give one another name")
    if known != found:
        raise KtaeError(f"{found.source} has changed since this process read it; start Python again")


def sources(spec: Spec) -> dict[str, str]:
    """Return where a resolved spec and its bases come from, of those that are not part of the project, by name."""
    own = declaration("estimators", spec.name).source
    found = {spec.name: own} if own else {}
    for base in bases(spec):
        found |= sources(base)
    return found


def spell_out(spec: Spec) -> dict[str, Any]:
    """Return all parameters of a resolved spec with their values, nested specs as canonical text."""
    declared = declaration("estimators", spec.name).accepted
    values = {name: _default(parameter) for name, parameter in declared.items()} | dict(spec.arguments)
    return {
        name: str(v) if isinstance(v, Spec) else list(v) if isinstance(v, tuple) else v for name, v in values.items()
    }


def needs(spec: Spec) -> tuple[str, ...]:
    """Return the canonical columns that a resolved spec needs, those of its base and of its parameters included."""
    declared = declaration("estimators", spec.name)
    wanted = list(declared.needs)
    for condition, columns in declared.needs_when.items():
        if _holds(condition, spec, declared):
            wanted += columns
    for base in bases(spec):
        wanted += needs(base)
    return tuple(dict.fromkeys(wanted))


def _holds(condition: str, spec: Spec, declared: Declaration) -> bool:
    """Tell whether `parameter=value`, or `parameter` (any value but the default), is true of a spec."""
    name, _, value = condition.partition("=")
    found = print_value(_value(spec, declared, name))
    return found == value if value else found != print_value(_default(declared.parameters[name]))


def missing_needs(spec: Spec, available: set[str]) -> list[str]:
    """Return the needed columns that are not available, nor their stand-ins."""
    return [name for name in needs(spec) if name not in available and STAND_INS.get(name) not in available]


def bases(spec: Spec) -> list[Spec]:
    """Return the specs that stand in the parameters of a resolved spec, defaults included."""
    declared = declaration("estimators", spec.name)
    kinds = [name for name, parameter in declared.parameters.items() if parameter.kind == "Spec"]
    return [resolve_spec(_value(spec, declared, name)) for name in kinds]


def scope(spec: Spec) -> str:
    """Return "batch" when a resolved spec pools over more than a group, by itself, its base or its aggregation."""
    return "batch" if pools_over_steps(spec) or pools_over_prompts(spec) else "group"


def pools_over_steps(spec: Spec) -> bool:
    """Tell whether a resolved spec takes statistics of each step's rollouts, by itself, its base or its aggregation."""
    own = declaration("estimators", spec.name).scope == "batch" or aggregation(spec) != "none"
    return own or any(map(pools_over_steps, bases(spec)))


def pools_over_prompts(spec: Spec) -> bool:
    """Tell whether a resolved spec takes evidence from all prompts of the input, whatever their step."""
    declared = declaration("estimators", spec.name)
    own = any(_holds(condition, spec, declared) for condition in declared.pools_when)
    return own or any(map(pools_over_prompts, bases(spec)))


def takes_pool(spec: Spec) -> bool:
    """Tell whether the estimator's function itself, with these parameters, is called with pooled statistics."""
    declared = declaration("estimators", spec.name)
    return declared.scope == "batch" or any(_holds(condition, spec, declared) for condition in declared.pools_when)


def columns(spec: Spec) -> tuple[str, ...]:
    """Return the per-token results of a resolved spec beside its advantages."""
    extra = () if aggregation(spec) == "none" else ("loss_weight",)
    return (*declaration("estimators", spec.name).columns, *extra)


def aggregation(spec: Spec) -> str:
    """Return how the loss of a resolved spec is averaged."""
    return dict(spec.arguments).get("aggregation", "none")


def own_arguments(spec: Spec) -> dict[str, Any]:
    """Return the arguments of the estimator's function: without those that every estimator has."""
    return {key: value for key, value in spec.arguments if key not in AGGREGATION}


def suppliers(column: str) -> list[str]:
    """Return the readers that can supply a canonical column: what they declare, `*` for every column."""
    return [name for name in names("readers") if {"*", column} & set(declaration("readers", name).supplies)]


def _value(spec: Spec, declared: Declaration, name: str) -> Any:
    return dict(spec.arguments).get(name, _default(declared.parameters[name]))


def _default(parameter: Parameter) -> Any:
    return float(parameter.default) if parameter.kind == "float" else parameter.default
