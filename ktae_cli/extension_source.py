"""What the source of an estimator from elsewhere must declare, read without running it; a fault is one line."""

import ast
import difflib
from typing import Any

from ktae_cli.errors import KtaeError
from ktae_cli.schema import COLUMNS

NEEDED = (
    "response_ids",
    "reward",
    "rewards",
    "correct",
    "response_tokens",
    *(column.name for column in COLUMNS if column.dtype == "list<float32>"),
)
"""Columns that an estimator may need; the mask and the step are there whenever the input has them."""

_KINDS = ("float", "int", "bool", "Spec", "Ids", "Numbers")
_SHAPE = {"group": "(batch, *, …)", "batch": "(batch, pooled, *, …)"}


def check_source(source: bytes, file: str, function: str, reserved: tuple[str, ...]) -> None:
    """Raise `KtaeError` when the source has no estimator `function` that can be read.

    reserved: names of parameters that every estimator has.
    """
    try:
        module = ast.parse(source, file)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise KtaeError(" ".join(f"{type(error).__name__}: {error}".split())) from None
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function]
    calls = [call for node in found for call in node.decorator_list if is_declaration(call)]
    if len(found) > 1:
        raise KtaeError(f"{function} is defined twice, at lines {found[0].lineno} and {found[1].lineno}")
    if not calls:
        others = [
            n.name for n in module.body if isinstance(n, ast.FunctionDef) and any(map(is_declaration, n.decorator_list))
        ]
        known = f"; found {', '.join(others)}" if others else "; docs/adding-an-estimator.md shows one"
        raise KtaeError(f"no function {function} with @estimator(...) above it{known}")
    declared = _check_decorator(calls[0])
    parameters = _check_signature(found[0], declared["scope"], reserved)
    _check_conditions(declared.get("needs_when") or {}, parameters)


def is_declaration(decorator: ast.expr, name: str = "estimator") -> bool:
    """Tell whether a decorator is `@estimator(...)`, or another name, by itself or of a module."""
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func).rpartition(".")[2] == name


def _check_decorator(call: ast.Call) -> dict[str, Any]:
    declared = {}
    for word in call.keywords:
        if word.arg is None:
            raise KtaeError(f"line {call.lineno}: @estimator takes its arguments by name, not by **")
        declared[word.arg] = _literal(word.value, f"{word.arg} of @estimator")
    unknown = sorted(set(declared) - {"needs", "level", "scope", "columns", "needs_when"})
    missing = [name for name in ("needs", "level", "scope") if name not in declared]
    if call.args or unknown or missing:
        fault = (
            f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown) or 'arguments without a name'}"
        )
        raise KtaeError(f"line {call.lineno}: @estimator {fault}; it takes needs, level, scope, columns, needs_when")
    for name, allowed in (("level", ("rollout", "token")), ("scope", ("group", "batch"))):
        if declared[name] not in allowed:
            raise KtaeError(f"{name} is {' or '.join(allowed)}, found {declared[name]!r}")
    _check_needs("needs", declared["needs"])
    columns = declared.get("columns", ())
    if not _is_names(columns) or {"advantages", "loss_weight"} & set(columns) or len(set(columns)) < len(columns):
        raise KtaeError(f'columns is a tuple of names, as in ("share",), without advantages; found {columns!r}')
    if columns and declared["level"] == "rollout":
        raise KtaeError('columns are per token: they go with level "token"')
    return declared


def _check_needs(name: str, columns: Any) -> None:
    if not _is_names(columns):
        raise KtaeError(f'{name} is a tuple of columns, as in ("reward",); found {columns!r}')
    for column in columns:
        if column not in NEEDED:
            near = difflib.get_close_matches(column, NEEDED, 1, 0.5)
            nearest = f" (nearest: {near[0]})" if near else ""
            raise KtaeError(f"{name} has {column!r}{nearest}; it may have: {', '.join(NEEDED)}")


def _is_names(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(name, str) and name.isidentifier() for name in value)


def _check_signature(function: ast.FunctionDef, scope: str, reserved: tuple[str, ...]) -> dict[str, ast.arg]:
    given = function.args
    first = [*given.posonlyargs, *given.args]
    expected = 2 if scope == "batch" else 1
    if given.vararg or given.kwarg:
        raise KtaeError(f"line {function.lineno}: {function.name} takes *args or **kwargs; name every parameter")
    if len(first) > expected and first[expected].arg not in ("batch", "pooled"):
        raise KtaeError(
            f"line {first[expected].lineno}: parameter {first[expected].arg!r} stands before the *; parameters are "
            f"keyword-only, as in {function.name}{_SHAPE[scope]}"
        )
    if len(first) != expected:
        raise KtaeError(f"line {function.lineno}: with scope {scope!r} the signature is {function.name}{_SHAPE[scope]}")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        where = f"line {argument.lineno}: parameter {argument.arg!r}"
        if argument.arg in reserved:
            raise KtaeError(f"{where}: every estimator has it; give yours another name")
        if not _is_kind(argument.annotation):
            raise KtaeError(f"{where} is annotated as one of {', '.join(_KINDS)}, or Literal of words")
        if default is None:
            raise KtaeError(f"{where} has no default")
        _literal(default, f"the default of {argument.arg!r}")
    return {argument.arg: argument for argument in given.kwonlyargs}


def _is_kind(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        words = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return all(isinstance(word, ast.Constant) and isinstance(word.value, str) for word in words)
    return annotation is not None and ast.unparse(annotation) in _KINDS


def _check_conditions(needs_when: Any, parameters: dict[str, ast.arg]) -> None:
    if not isinstance(needs_when, dict):
        raise KtaeError(f'needs_when is a dict, as in {{"reference=ref": ("ref_log_probs",)}}; found {needs_when!r}')
    for condition, columns in needs_when.items():
        if not isinstance(condition, str) or condition.partition("=")[0] not in parameters:
            raise KtaeError(f"needs_when has the condition {condition!r}; it begins with the name of a parameter")
        _check_needs(f"needs_when[{condition!r}]", columns)


def _literal(node: ast.expr, what: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        found = ast.unparse(node)
        raise KtaeError(
            f"line {node.lineno}: {what} is not a literal but {found[:40]}; it is read without running the file"
        ) from None
