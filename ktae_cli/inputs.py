"""From what a user types to rollouts: files, directories, globs or `-`, and the reader that they are for."""

import glob
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ktae_cli.catalogue import declaration, names
from ktae_cli.errors import InputError
from ktae_cli.readers._sniff import load_reader, sniff
from ktae_cli.readers._spool import SpooledRollouts, spool
from ktae_cli.readers.base import ReaderOptions, Record, Source
from ktae_cli.readers.parquet import ParquetRollouts

TOKEN_TABLE_SUFFIX = ".tokens.parquet"
SCORED_SUFFIX = ".scored.parquet"
CONVERTED_SUFFIX = ".rollouts.parquet"
VERIFIED_SUFFIX = ".verified.parquet"
_COMPRESSED = (".gz", ".zst")
_NO_ROLLOUTS = (
    "metadata.json", "meta.json", "config.json", "generation_config.json", "vocab.json", "special_tokens_map.json",
    "added_tokens.json", "batch_summary.json", "aggregated_results.jsonl", "results.json",
)  # fmt: skip
"""Names of files that trainers and models put beside rollouts."""


def expand_inputs(inputs: list[str], suffixes: Iterable[str] = (".parquet",)) -> list[Path]:
    """Return the files of the inputs: in the given order, those of a directory or glob sorted by name.

    Token tables and metadata are no rollouts, and a scored, converted or verified file beside its input holds the same
    ones again: they are left out of directories and globs. Raises `InputError` for an input that names nothing or is
    no regular file.
    """
    suffixes = tuple(dict.fromkeys(suffixes))
    found: list[Path] = []
    for text in inputs:
        path = Path(text)
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.name.endswith(suffixes) and p.is_file())
            missing = f"{text}: the directory holds no {suffixes[0] if len(suffixes) == 1 else 'rollout'} file"
        elif path.exists():
            files, missing = [path], ""
        else:
            files = sorted(Path(p) for p in glob.glob(text, recursive=True) if os.path.isfile(p))
            is_pattern = any(c in text for c in "*?[")
            missing = f"{text}: no file matches" if is_pattern else f"{text}: no such file or directory"
        if path.is_dir() or not path.exists():
            files = [p for p in files if not _is_beside(p)]
            stems = {(p.parent, stem_of(p)) for p in files if not _is_made(p)}
            files = [p for p in files if not _is_made(p) or (p.parent, stem_of(p)) not in stems]
        if not files:
            raise InputError(f"{missing}; give a Parquet file, a dump, a directory, a glob or -")
        for file in files:
            _check_regular(file)
        found += files
    return found


def _is_beside(path: Path) -> bool:
    name = path.name
    return (
        name.startswith((".", "tokenizer"))
        or (name.startswith("results_") and name.endswith(".json"))
        or name.endswith((TOKEN_TABLE_SUFFIX, "_metadata.jsonl"))
        or name in _NO_ROLLOUTS
    )


def _is_made(path: Path) -> bool:
    return path.name.endswith((SCORED_SUFFIX, CONVERTED_SUFFIX, VERIFIED_SUFFIX))


def stem_of(path: Path) -> str:
    """Return a file's name without the suffixes of its format, of its compression and of what `ktae` makes of it."""
    name = path.name
    for suffix in (*_COMPRESSED, SCORED_SUFFIX, CONVERTED_SUFFIX, VERIFIED_SUFFIX):
        name = name.removesuffix(suffix)
    known = {suffix for reader in names("readers") for suffix in declaration("readers", reader).files}
    return next((name.removesuffix(suffix) for suffix in sorted(known, key=len) if name.endswith(suffix)), name)


def default_target(inputs: list[str], suffix: str, option: str = "-o OUT") -> Path:
    """Return `<stem><suffix>` beside a single file, `<dir><suffix>` beside a directory."""
    if len(inputs) != 1 or inputs[0] == "-" or not Path(inputs[0]).exists():
        expand_inputs([text for text in inputs if text != "-"], suffixes_of("auto"))  # says what is missing, if it is
        raise InputError(f"several inputs, a pattern or standard input have no default output; name one with {option}")
    path = Path(inputs[0])
    if path.is_dir():
        if not path.resolve().name:
            raise InputError(f"{path}: has no name to derive the output's from; name one with {option}")
        return path.resolve().with_name(f"{path.resolve().name}{suffix}")
    return path.with_name(f"{stem_of(path)}{suffix}")


def suffixes_of(format: str) -> list[str]:
    """Return the suffixes of a reader's files, or of every reader's for "auto"."""
    chosen = names("readers") if format == "auto" else [format]
    found = dict.fromkeys(suffix for name in chosen for suffix in declaration("readers", name).files)
    return [*found, *(f"{s}{c}" for s in found if s in (".jsonl", ".ndjson", ".json") for c in _COMPRESSED)]


def _check_regular(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: not a regular file; pipe it into standard input and give -")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path}: the name is not UTF-8; rename the file") from None


def spool_standard_input(directory: str) -> Path:
    """Copy standard input into a file of a temporary directory: Parquet is read from its end."""
    path = Path(directory) / "stdin"
    if path.exists() or path.with_suffix(".parquet").exists():
        raise InputError("-: given twice; standard input can be read once")
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    with open(path, "rb") as file:
        is_parquet = file.read(4) in (b"PAR1", b"")
    return path.rename(path.with_suffix(".parquet")) if is_parquet else path


@dataclass(frozen=True)
class ReadInputs:
    """How inputs are read: the reader, or "auto" to recognise it, and its options."""

    format: str = "auto"
    reader: ReaderOptions = field(default_factory=ReaderOptions)
    strict: bool = False


def open_rollouts(
    inputs: list[str], scratch: str, read: ReadInputs | None = None
) -> "ParquetRollouts | SpooledRollouts":
    """Open the inputs as one source of rollouts.

    `-` is copied into the directory `scratch` first; what is no canonical Parquet is spooled there. Files are
    recognised by what they hold; all must be for one reader, which `read.reader.notice` is told.
    """
    read = read or ReadInputs()
    paths = _paths(inputs, scratch, read.format)
    name, found = _reader_of(paths, read)
    if name == "parquet" and read.reader.on_mismatch != "drop":
        source = ParquetRollouts(paths)
        twice = source.scored_from_each_other()
        if twice:
            raise InputError(f"{twice[0]}: was scored from {twice[1]}, which is an input too; leave one of them out")
        return source
    if name == "parquet":
        found = []
    shown = ", ".join(found[:12]) + (", …" if len(found) > 12 else "")
    read.reader.notice(f"read as {name}" + (f" ({shown})" if shown else ""))
    warned: list[str] = []
    options = replace(read.reader, warn=_both(warned.append, read.reader.warn), counts={}, taken=set())
    reader = load_reader(name) if name != "parquet" else _batches
    source = spool(name, reader, declaration("readers", name), paths, scratch, options)
    source.taken = frozenset(options.taken)
    for what, times in options.counts.items():
        read.reader.notice(f"{times} {what}")
    read.reader.counts.update(options.counts)
    if read.strict and warned:
        raise InputError(f"--strict, nothing is written: {warned[0]}")
    return source


def _batches(records: Iterator[Record], options: ReaderOptions) -> Iterator[Any]:
    for record in records:
        yield record.value


def threshold_of(source: Source, given: float | None) -> float:
    """Return the reward above which a rollout is right: as given, else what the reader declares, else 0."""
    declared = getattr(source, "threshold", None)
    return given if given is not None else declared if declared is not None else 0.0


def remaining_map(source: Source, given: dict[str, str]) -> dict[str, str]:
    """Return --map without what the reader itself has taken from it."""
    taken = getattr(source, "taken", ())
    return {name: column for name, column in given.items() if name not in taken}


def _both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    def call(text: str) -> None:
        first(text)
        second(text)

    return call


def _paths(inputs: list[str], scratch: str, format: str) -> list[Path]:
    suffixes = suffixes_of(format)
    paths: list[Path] = []
    for text in inputs:
        paths += [spool_standard_input(scratch)] if text == "-" else expand_inputs([text], suffixes)
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path}: given twice; its rollouts would count twice")
        seen.add(path.resolve())
    return paths


def _reader_of(paths: list[Path], read: ReadInputs) -> tuple[str, list[str]]:
    """Return the one reader that all files are for, and the names by which the first was recognised."""
    if read.format != "auto":
        return declaration("readers", read.format).name, []
    first: dict[str, Path] = {}
    found: list[str] = []
    for path in paths:
        name, names_found = sniff(path, read.reader)
        found = found or names_found
        first.setdefault(name, path)
    if len(first) > 1:
        shown = "; ".join(f"{path} is read as {name}" for name, path in first.items())
        raise InputError(f"files of several formats: {shown}; give them apart, or name one with --format")
    return next(iter(first)), found
