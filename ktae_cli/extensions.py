"""Estimators from elsewhere: installed packages, by the entry-point group `ktae.estimators`, and files by path."""

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from ktae_cli.errors import KtaeError
from ktae_cli.extension_guard import describe_error, guard

GROUP = "ktae.estimators"

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPEC = re.compile(r"\s*\w+\s*\(\s*\w+\s*=")
_FILE = re.compile(r"\s*(?P<path>.+?\.py):\s*(?P<spec>(?P<name>[A-Za-z_]\w*).*)", re.DOTALL)
_FILE_ALONE = re.compile(r"\s*(?P<path>.+?\.py):?\s*(\(.*)?", re.DOTALL)
_BASE_FILE = re.compile(r"=\s*(?P<path>[^=,()+:]+\.py):\s*(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class Extension:
    """Where one estimator is: `function` of the source file `path`, imported as `module` if that is not empty.

    source: what messages call it; version: what tells two of one name apart, a package's version or a file's digest;
    problem: why it cannot be used, if it cannot.
    """

    name: str
    path: Path
    function: str
    module: str
    source: str
    version: str
    problem: str = ""

    @property
    def origin(self) -> str:
        """What a scored file says of it: never an absolute path."""
        return f"{self.source} {self.version}" if self.module else f"{self.source}, sha256 {self.version}"


@cache
def installed_extensions() -> dict[str, Extension]:
    """Return the estimators that installed packages declare, by name; nothing of theirs is imported.

    The entry point's name is the estimator's, its value `module:function`. One that cannot be used has a `problem`.
    """
    found: dict[str, Extension] = {}
    for entry in _entries():
        extension = _installed(entry)
        if extension.name in found:
            first, second = found[extension.name].source, extension.source
            problem = f"{first} and {second} both declare the estimator {extension.name!r}; uninstall one of them"
            extension = Extension(extension.name, Path(), "", "", second, "", problem)
        found[extension.name] = extension
    return found


def _entries() -> list[metadata.EntryPoint]:
    try:
        return list(metadata.entry_points(group=GROUP))
    except Exception as error:  # a line without `=` in the entry_points.txt of any package
        raise KtaeError(
            f"the entry points of the installed packages cannot be read ({describe_error(error)}): an entry_points.txt "
            "is damaged; `pip check` and a new installation of the package help"
        ) from error


def _installed(entry: metadata.EntryPoint) -> Extension:
    source = f"package {entry.dist.name}" if entry.dist else "a package"
    version = entry.dist.version if entry.dist else ""
    module, _, function = (part.strip() for part in entry.value.partition("[")[0].partition(":"))
    path = _source_of(module) if module and function else None
    problem = ""
    if not _WORD.fullmatch(entry.name):
        problem = "its name has other characters than letters, digits and _"
    elif not (module and _WORD.fullmatch(function)):
        problem = f"its entry point is module:function, found {entry.value!r}"
    elif path is None:
        problem = f"there is no source file of the module {module!r}"
    problem = problem and f"estimator {entry.name!r} of {source} cannot be used: {problem}"
    return Extension(entry.name, path or Path(), function, module, source, version, problem)


def split_files(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a spec with names in place of `path/to/file.py:name`, and the (path, name) that stood there.

    The path that begins a spec may hold any character; that of a base none of `= , ( ) + :`.
    """
    files = []

    def take(match: re.Match) -> str:
        files.append((match["path"].strip(), match["name"]))
        return f"={match['name']}"

    if not _SPEC.match(text):
        if match := _FILE.fullmatch(text):
            files.append((match["path"], match["name"]))
            text = match["spec"]
        elif match := _FILE_ALONE.fullmatch(text):
            raise KtaeError(f"{text}: name the function of the file too, as in {match['path']}:NAME")
    return _BASE_FILE.sub(take, text), files


def file_extension(path: str, name: str) -> Extension:
    """Return the estimator `name` of a Python file; raise `KtaeError` when the file cannot be read."""
    try:
        file = Path(path).expanduser().resolve()
        digest = _digest(file.read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KtaeError(f"{path}: {reason}; an estimator of your own is named as path/to/file.py:function") from None
    return Extension(name, file, name, "", f"file {file.name}", digest)


def read_source(found: Extension) -> bytes:
    """Return the source; raise `KtaeError` when a file is not the one that was read before."""
    source = found.path.read_bytes()
    if not found.module and _digest(source) != found.version:
        raise KtaeError(f"{found.source} has changed since it was first read; run again")
    return source


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]


@cache
def load_extension(found: Extension) -> Callable:
    """Import an estimator's file, once, and return its function under guard.

    Raises `KtaeError` with what the import raised.
    """
    try:
        module = import_module(found.module) if found.module else _execute(found)
        function = getattr(module, found.function)
    except (KtaeError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        reason = describe_error(error, found.path)
        raise KtaeError(f"estimator {found.name!r} of {found.source} cannot be imported: {reason}") from error
    return guard(function, found.name, found.source, found.path)


def _execute(found: Extension) -> ModuleType:
    """Run a file as a module of its own, under a name that no other module has; nothing is written beside it."""
    module = ModuleType(f"ktae_file_{found.path.stem}_{found.version}")
    module.__file__ = str(found.path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(read_source(found), found.path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _source_of(module: str) -> Path | None:
    """Find a module's source file without importing its packages."""
    location, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = None if "." in name and not location else _find(name, location)
        if spec is None:
            return None
        location = spec.submodule_search_locations
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _find(name: str, location):
    """Ask the path, then the finders that editable installs put up."""
    for finder in (PathFinder, *sys.meta_path):
        spec = finder.find_spec(name, location) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return None
