"""A directory appears under its final name complete or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ktae_cli.errors import InputError

MARKER = "ktae.json"


@contextmanager
def atomic_directory(target: Path, force: bool = False) -> Iterator[Path]:
    """Yield a new directory beside the target; on success sync its files to disk and give it the target's name.

    With `force` a directory that holds `ktae.json`, as the writer leaves one, is replaced; any other is refused. Raises
    `InputError` when the name cannot be taken. After an error or Ctrl-C nothing is left.
    """
    if force and target.is_symlink():
        target = Path(os.path.realpath(target))
    _check(target, force)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # a killed run of the same process id may have left one
    try:
        temporary.mkdir()
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                with open(path, "rb+") as file:
                    os.fsync(file.fileno())
        _publish(temporary, target, force)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check(target: Path, force: bool) -> None:
    try:
        str(target).encode()
    except UnicodeEncodeError:
        raise InputError(f"{target}: the name is not UTF-8; name another output with -o") from None
    if os.path.lexists(target):
        if not force:
            raise _exists(target)
        if not (target.is_dir() and (target / MARKER).is_file()):
            raise InputError(f"{target}: is no directory that an export wrote; remove it yourself, or use -o")
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: no such directory; create it or name another output with -o")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target.parent}: no permission to write there; name another output with -o")


def _exists(target: Path) -> InputError:
    return InputError(f"{target}: exists already; use --force to replace it, or -o to name another")


def _publish(temporary: Path, target: Path, force: bool) -> None:
    """Rename the directory; one that stood there is moved aside first, since no rename replaces a full directory."""
    if not os.path.lexists(target):
        os.rename(temporary, target)
        return
    if not force:
        raise _exists(target)
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
