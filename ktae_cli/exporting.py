"""`export` as one function: a scored file -> the files of one target, complete or not at all."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ktae_cli.catalogue import names, unknown_name
from ktae_cli.errors import KtaeError


def write_export(
    scored: Path,
    to: str,
    output: str | None = None,
    advantages: str = "advantages",
    null_advantages: str = "drop",
    rollouts: Path | None = None,
    force: bool = False,
    stdout_taken: bool = False,
    allow_retokenized: bool = False,
) -> dict[str, Any]:
    """Export a scored file and return the summary; see `ktae export --help`."""
    from ktae_cli.exports.base import read_rows, refuse_retokenized, refuse_source
    from ktae_cli.readers.scored import ScoredFile
    from ktae_cli.writers.atomic import atomic_path

    if to not in names("exports"):
        raise unknown_name("export", [to], names("exports"))
    if output == "-" and (to != "jsonl" or stdout_taken):
        raise KtaeError(
            "-o - writes jsonl to stdout; " + ("leave out --json" if stdout_taken else f"{to} needs a file")
        )
    write = getattr(import_module(f"ktae_cli.exports.{to}"), to)
    file = ScoredFile(scored, rollouts)
    rows = read_rows(file, advantages, null_advantages)
    if not allow_retokenized:
        refuse_retokenized(file)
    target = default_output(scored, to) if output is None else Path(output)
    if output == "-":
        write(rows, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        refuse_source(target, (scored, rollouts))
        with atomic_path(target, force) as temporary:
            write(rows, temporary)
    shown = "-" if output == "-" else str(target)
    return {**rows.counts, "advantages": advantages, "output": shown}


def default_output(scored: Path, target: str) -> Path:
    """Return X.export.<target> for X.scored.parquet: never the name of the scored file or of what was scored."""
    return scored.with_name(f"{scored.name.removesuffix('.parquet').removesuffix('.scored')}.export.{target}")
