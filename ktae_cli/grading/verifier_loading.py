"""Verifiers by name, or a Python function of the reader's own as `path.py:function`."""

import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from ktae_cli.errors import InputError, UnknownNameError
from ktae_cli.grading import verifiers
from ktae_cli.grading.answer import gold_text
from ktae_cli.grading.verdict import STATUSES, GradingOptions, Verdict

Verifier = Callable[[str, Any, GradingOptions], Verdict]


def verifier_names() -> list[str]:
    """List the names of the verifiers that come with the package; nothing is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(verifiers.__path__))


def load_verifier(name: str) -> Verifier:
    """Return the verifier of that name or the function of a file; raise `KtaeError` where there is none.

    A function of a file takes (response, gold) or (response, gold, options) and returns true, false, None where it
    cannot tell, or a `Verdict`; a number is right above 0.5. What it raises is the row's status `error`.
    """
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), function)
    if name not in verifier_names():
        raise UnknownNameError(f"no verifier {name!r}; there are: {', '.join(verifier_names())}, or path.py:function")
    return getattr(import_module(f"ktae_cli.grading.verifiers.{name}"), name)


def _from_file(path: Path, name: str) -> Verifier:
    if not path.is_file():
        raise InputError(f"{path}: no such file; a verifier of your own is given as path.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        described = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"{path}: cannot be imported ({described})") from None
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise InputError(f"{path}: has no function {name}; it has: {', '.join(own) or 'none'}")
    return _wrapped(function, path, name)


def _wrapped(function: Callable[..., Any], path: Path, name: str) -> Verifier:
    takes = _arguments(function)
    if takes not in (2, 3):
        raise InputError(f"{path}: {name} takes (response, gold) or (response, gold, options)")

    @wraps(function)
    def verify(response: str, gold: Any, options: GradingOptions) -> Verdict:
        try:
            found = function(response, gold) if takes == 2 else function(response, gold, options)
        except MemoryError:
            raise
        except Exception as error:
            return Verdict(None, "error", "", gold_text(gold)[:1000], type(error).__name__)
        return _as_verdict(found, gold, name)

    return verify


def _arguments(function: Callable[..., Any]) -> int:
    """Return how many arguments a verifier is called with: three where it can take three."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return 0
    for count in (3, 2):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    return 0


def _as_verdict(found: Any, gold: Any, name: str) -> Verdict:
    if isinstance(found, Verdict) and found.status in STATUSES:
        return found
    shown = gold_text(gold)[:1000]
    if hasattr(found, "item"):
        found = found.item()
    if found is None or (isinstance(found, float) and found != found):
        return Verdict(None, "error", "", shown, f"{name} returned {found}")
    if isinstance(found, bool):
        return Verdict(found, "ok", "", shown, name)
    if isinstance(found, int | float):
        return Verdict(found > 0.5, "ok", "", shown, name)
    return Verdict(None, "error", "", shown, f"{name} returned {type(found).__name__}")
