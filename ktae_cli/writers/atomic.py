"""A file appears under its final name complete or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ktae_cli.errors import InputError

_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def atomic_path(target: Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside the target; on success sync it to disk and give it the target's name.

    Raises `InputError` when the target exists and `force` is off, also where it came to be meanwhile, or when its
    directory cannot be written. With `force` a symbolic link stays and the file that it leads to is replaced. After an
    error or Ctrl-C nothing is left; after a kill only the hidden temporary file.
    """
    if force and target.is_symlink():
        target = Path(os.path.realpath(target))
    check_target(target, force)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        _publish(temporary, target, force)
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
    if os.path.lexists(target) and not force:
        raise _exists(target)
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: no such directory; create it or name another output with -o")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target.parent}: no permission to write there; name another output with -o")


def check_no_input(target: Path, others: list[Path], option: str, what: str = "an input") -> None:
    """Raise `InputError` when a file to be written is one that is read, or another one that is written."""
    for path in others:
        if target.resolve() == path.resolve() or (target.exists() and path.exists() and target.samefile(path)):
            raise InputError(f"{target}: is also {what}; name another file with {option}")


def _exists(target: Path) -> InputError:
    return InputError(f"{target}: exists already; use --force to replace it, or -o to name another file")


def _publish(temporary: Path, target: Path, force: bool) -> None:
    """Give the file its final name; without `force` never over a file that another run wrote meanwhile."""
    if not force:
        try:
            os.link(temporary, target)
            return
        except FileExistsError:
            raise _exists(target) from None
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
        if os.path.lexists(target):
            raise _exists(target)
    os.replace(temporary, target)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
