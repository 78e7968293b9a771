"""The JSON documents of a ZIP file, one at a time: Inspect's `.eval` logs."""

import errno
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._lines import parse

MAX_MEMBER_BYTES = 1 << 30
_SAMPLES = "samples/"
_HEADERS = ("header.json", "_journal/start.json")


def is_zipped_log(path: Path) -> bool:
    """Tell whether a file is a ZIP archive with the header or the samples of a log in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name in _HEADERS or name.startswith(_SAMPLES) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        return False


def zipped_documents(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield (the value, lone surrogates replaced in it) of an Inspect log's header and of each of its samples.

    The header comes first, then `samples/*.json` in the order of the archive; a log that was not finished has its
    header in `_journal/start.json`. Raises `InputError` for a damaged archive and one without samples.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            samples = [name for name in names if name.startswith(_SAMPLES) and name.endswith(".json")]
            if not samples:
                raise InputError(f"{path}: a ZIP file without samples/*.json; is it the log of Inspect?")
            for name in [*[header for header in _HEADERS if header in names][:1], *samples]:
                yield _document(archive, name, path)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a damaged offset
            raise
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{path}: the archive cannot be read ({reason}); write it again, or as JSON with "
            "`inspect log convert --to json`"
        ) from None


def _document(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[Any, int]:
    if archive.getinfo(name).file_size > MAX_MEMBER_BYTES:
        raise InputError(f"{path}: {name} is over {MAX_MEMBER_BYTES >> 20} MiB")
    try:
        return parse(archive.read(name))
    except ValueError as error:
        raise InputError(f"{path}: {name} is not a JSON document ({error})") from None
