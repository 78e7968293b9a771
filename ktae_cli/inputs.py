"""From what a user types to a list of files: a file, a directory, a glob or `-` for standard input."""

import glob
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ktae_cli.errors import InputError
from ktae_cli.readers.parquet import ParquetRollouts

TOKEN_TABLE_SUFFIX = ".tokens.parquet"


def expand_inputs(inputs: list[str], suffix: str = ".parquet") -> list[Path]:
    """Return the files of the inputs: in the given order, those of a directory or glob sorted by name.

    Token tables that lie beside scored files are no rollouts and are left out of directories and globs.
    Raises `InputError` for an input that names nothing.
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
        if not path.is_file():
            files = [p for p in files if not p.name.endswith(TOKEN_TABLE_SUFFIX) and not p.name.startswith(".")]
        if not files:
            raise InputError(f"{missing}; give a Parquet file, a directory, a glob or -")
        found += files
    return found


def spool_standard_input(directory: str) -> Path:
    """Copy standard input into a file of a temporary directory: Parquet is read from its end."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix="stdin-", suffix=".parquet", delete=False) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return Path(file.name)


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
    return ParquetRollouts(paths)
