"""Which reader a file is for, by what stands in it."""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from ktae_cli.catalogue import Declaration, declaration, names
from ktae_cli.errors import InputError
from ktae_cli.readers._lines import lines_of, open_plain, parse
from ktae_cli.readers._records import WholeFile, read_document
from ktae_cli.readers._torch import load_torch
from ktae_cli.readers._zipped_documents import is_zipped_log, zipped_documents
from ktae_cli.readers.base import ReaderOptions
from ktae_cli.readers.parquet import open_file, schema_of
from ktae_cli.schema import METADATA_KEY

PLAIN = {"lines": "jsonl", "parquet": "parquet"}
"""The readers of canonical rows: of files of these shapes that no other reader is for."""
OWN = object()
"""Stands for the schema of a Parquet file that `ktae` wrote."""
_LINES_TRIED = 100
_CANONICAL = {"group_id", "response_ids"}


def load_reader(name: str) -> Callable:
    """Return the function of a reader."""
    return getattr(import_module(f"ktae_cli.readers.{name}"), name)


def sniff(path: Path, options: ReaderOptions) -> tuple[str, list[str]]:
    """Return the reader for a file and the top-level names that it was recognised by.

    Of the readers whose keys all stand in the first record the one with the most is taken. Raises `InputError` where
    no reader fits, or two with equally many.
    """
    shapes, record = _first_record(path, options)
    if record is OWN:
        return PLAIN["parquet"], []
    declared = [declaration("readers", name) for name in names("readers")]
    fitting = [d for d in declared if d.shape in shapes and d.name not in PLAIN.values() and _fits(d, record)]
    most = max((len(d.keys) for d in fitting), default=0)
    best = [d.name for d in fitting if len(d.keys) == most]
    found = _names_of(record)
    if len(best) > 1:
        raise InputError(f"{path}: may be {' or '.join(best)}; say which with --format")
    if best:
        return best[0], found
    plain = next((PLAIN[shape] for shape in shapes if shape in PLAIN), None)
    if plain is None or (plain == "jsonl" and not isinstance(record, dict)):
        what = ", ".join(found[:20]) if found else f"a {type(record).__name__}"
        raise InputError(
            f"{path}: no reader knows this layout (found {what}); name one with --format: {', '.join(names('readers'))}"
        )
    return plain, found


def _fits(declared: Declaration, record: Any) -> bool:
    """Tell whether a record has what a reader declares; one that declares no keys leaves canonical names alone."""
    names = set(_names_of(record))
    if not set(declared.keys) <= names or (not declared.keys and names & _CANONICAL):
        return False
    fits = getattr(load_reader(declared.name), "fits", None)
    if fits is None:
        return bool(declared.keys)
    try:
        return bool(fits(record))
    except (TypeError, KeyError, AttributeError, ValueError, IndexError):  # values of kinds that its format never has
        return False


def _names_of(record: Any) -> list[str]:
    if isinstance(record, dict):
        return [str(name) for name in record]
    return list(getattr(record, "names", []))


def _first_record(path: Path, options: ReaderOptions) -> tuple[tuple[str, ...], Any]:
    """Return the shapes that a file may have and its first record, for Parquet its schema."""
    with open_plain(path) as file:
        head = file.read(4)
    if head == b"PAR1":
        own = METADATA_KEY in (open_file(path).metadata.metadata or {})
        return ("parquet",), OWN if own else schema_of(path)
    if head == b"PK\x03\x04":
        if is_zipped_log(path):
            return ("document",), next(zipped_documents(path))[0]
        return ("torch",), load_torch(path)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return ("pickle",), next(iter(WholeFile(path, options, "pickle"))).value
    return _first_of_text(path, head)


def _first_of_text(path: Path, head: bytes) -> tuple[tuple[str, ...], Any]:
    """Return the shapes and the first record of a file of JSON lines or of one JSON document."""
    lines = (line for line in lines_of(path, ReaderOptions()) if line.strip())
    for number, line in enumerate(islice(lines, _LINES_TRIED)):
        try:
            value, _ = parse(line)
        except ValueError:
            if number == 0:
                with suppress(InputError):
                    return ("document",), read_document(path)[0]
            continue
        whole = number == 0 and (".json" in path.suffixes or next(lines, None) is None)
        return ("lines", "document") if whole else ("lines",), value
    if not head:
        raise InputError(f"{path}: the file is empty; give a file of rollouts")
    raise InputError(
        f"{path}: not a file of rollouts (it begins with {head!r}: no Parquet, JSON or torch.save); "
        "`ktae list readers` shows what is read"
    )
