"""From what a user types to a list of files: a file, a directory, a glob or `-` for standard input."""

import glob
import os
import shutil
import sys
from pathlib import Path

from ktae_cli.errors import InputError
from ktae_cli.readers.parquet import ParquetRollouts

TOKEN_TABLE_SUFFIX = ".tokens.parquet"
SCORED_SUFFIX = ".scored.parquet"


def expand_inputs(inputs: list[str], suffix: str = ".parquet") -> list[Path]:
    """Return the files of the inputs: in the given order, those of a directory or glob sorted by name.

    Token tables are no rollouts, and a scored file beside its input holds the same ones again: both are left out of
    directories and globs. Raises `InputError` for an input that names nothing or is no regular file.
    """
    found: list[Path] = []
    for text in inputs:
        path = Path(text)
        if path.is_dir():
            files = sorted(p for p in path.rglob(f"*{suffix}") if p.is_file())
            missing = f"{text}: the directory holds no {suffix} file"
        elif path.exists():
            files, missing = [path], ""
        else:
            files = sorted(Path(p) for p in glob.glob(text, recursive=True) if os.path.isfile(p))
            is_pattern = any(c in text for c in "*?[")
            missing = f"{text}: no file matches" if is_pattern else f"{text}: no such file or directory"
        if path.is_dir() or not path.exists():
            files = [p for p in files if not p.name.endswith(TOKEN_TABLE_SUFFIX) and not p.name.startswith(".")]
            files = [p for p in files if not p.name.endswith(SCORED_SUFFIX) or _input_of(p) not in files]
        if not files:
            raise InputError(f"{missing}; give a Parquet file, a directory, a glob or -")
        for file in files:
            _check_regular(file)
        found += files
    return found


def _input_of(scored: Path) -> Path:
    return scored.with_name(scored.name.removesuffix(SCORED_SUFFIX) + ".parquet")


def _check_regular(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: not a regular file; pipe it into standard input and give -")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path}: the name is not UTF-8; rename the file") from None


def spool_standard_input(directory: str) -> Path:
    """Copy standard input into `stdin.parquet` of a temporary directory: Parquet is read from its end."""
    path = Path(directory) / "stdin.parquet"
    if path.exists():
        raise InputError("-: given twice; standard input can be read once")
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def open_rollouts(inputs: list[str], scratch: str) -> ParquetRollouts:
    """Open the inputs as one source of rollouts; `-` is copied into the directory `scratch` first."""
    paths: list[Path] = []
    for text in inputs:
        paths += [spool_standard_input(scratch)] if text == "-" else expand_inputs([text])
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path}: given twice; its rollouts would count twice")
        seen.add(path.resolve())
    source = ParquetRollouts(paths)
    twice = source.scored_from_each_other()
    if twice:
        raise InputError(f"{twice[0]}: was scored from {twice[1]}, which is an input too; leave one of them out")
    return source
