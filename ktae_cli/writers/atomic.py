"""A file appears under its final name complete or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ktae_cli.errors import InputError


@contextmanager
def atomic_path(target: Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside the target; on success sync it to disk and give it the target's name.

    Raises `InputError` when the target exists and `force` is off, or its directory cannot be written. After an error
    or Ctrl-C nothing is left; after a kill only the hidden temporary file.
    """
    check_target(target, force)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _sync_directory(target.parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def check_target(target: Path, force: bool) -> None:
    """Raise `InputError` when a file cannot be written under this name."""
    if target.is_dir():
        raise InputError(f"{target}: is a directory; name a file with -o")
    if target.exists() and not target.is_file():
        raise InputError(f"{target}: is no regular file and cannot be replaced; name a file with -o")
    try:
        str(target).encode()
    except UnicodeEncodeError:
        raise InputError(f"{target}: the name is not UTF-8; name another output with -o") from None
    if target.exists() and not force:
        raise InputError(f"{target}: exists already; use --force to replace it, or -o to name another file")
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: no such directory; create it or name another output with -o")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target.parent}: no permission to write there; name another output with -o")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
