"""`export` as one function: a scored file -> the files of one target, complete or not at all."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ktae_cli.catalogue import Declaration, declaration, resolve_spec
from ktae_cli.errors import KtaeError

SIDECAR = ".meta"  # a name with .json in it would be read as rows by loaders that take a whole folder


def write_export(
    scored: Path,
    to: str,
    output: str | None = None,
    *,
    rollouts: Path | None = None,
    shards: int = 1,
    force: bool = False,
    stdout_taken: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Export a scored file and return the summary; see `ktae export --help`.

    to: a target, with its parameters as in `sft(min_weight=0.2)`. options: the fields of `ExportOptions`.
    """
    from ktae_cli.exports.base import ExportOptions, open_rows, refuse_retokenized
    from ktae_cli.readers.scored import ScoredFile

    spec = resolve_spec(to, kind="exports")
    target = declaration("exports", spec.name)
    chosen = ExportOptions(**options)
    _check_options(target, chosen, output, shards, stdout_taken)
    write = getattr(import_module(f"ktae_cli.exports.{target.name}"), target.name)
    file = ScoredFile(scored, rollouts)
    if not chosen.allow_retokenized and "allow_retokenized" not in target.refuses:
        refuse_retokenized(file)
    rows = open_rows(file, target.alignment, chosen, target.column, target.reads, target.needs)
    rows.metadata["target"] = str(spec)
    arguments = dict(spec.arguments)
    if output == "-":
        written = write(rows, sys.stdout.buffer, **arguments)
        sys.stdout.buffer.flush()
        return {**summary(rows, written), "output": "-"}
    path = default_output(scored, target) if output is None else Path(output)
    paths = [path] if shards == 1 else [shard_path(path, at, shards) for at in range(shards)]
    written = 0
    with ExitStack() as stack:
        temporaries = [stack.enter_context(_open(one, target, force, (scored, rollouts))) for one in paths]
        for temporary, part in zip(temporaries, split_rows(rows, shards), strict=True):
            count = write(part, temporary.data, **arguments)
            written += len(part) if count is None else count
            temporary.describe(part.metadata)
    return {**summary(rows, written), "output": str(path) if shards == 1 else [str(one) for one in paths]}


def _check_options(target: Declaration, options: Any, output: str | None, shards: int, stdout_taken: bool) -> None:
    default = type(options)()
    given = [name for name in target.refuses if getattr(options, name) != getattr(default, name)]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise KtaeError(f"{flags} has no meaning for {target.name}; leave it out")
    if output == "-" and (not target.stdout or stdout_taken):
        raise KtaeError(
            f"-o - writes {target.name} to stdout; leave out --json"
            if target.stdout
            else f"{target.name} needs {'a directory' if target.directory else 'a file'}, not -o -"
        )
    if shards < 1:
        raise KtaeError(f"--shards is 1 or more, found {shards}")
    if output == "-" and shards > 1:
        raise KtaeError("--shards writes several files; name them with -o")
    if options.max_length is not None and options.max_length < 1:
        raise KtaeError(f"--max-length is 1 or more, found {options.max_length}")
    if options.clip is not None and not 0 < options.clip < float("inf"):
        raise KtaeError(f"--clip is a number above 0, found {options.clip}")
    for name, words in _WORDS.items():
        if getattr(options, name) not in words:
            shown = " or ".join(str(word) for word in words if word)
            raise KtaeError(f"{name} is {shown}, found {getattr(options, name)!r}")


_WORDS = {"null_advantages": ("drop", "zero"), "normalize": ("none", "batch", "token"), "loss": (None, "plain_pg")}


class _Output:
    """Temporary paths of one output: the data, and where its metadata go if the format has no place for them."""

    def __init__(self, data: Path, metadata: Path | None):
        self.data, self.metadata = data, metadata

    def describe(self, metadata: dict[str, Any]) -> None:
        if self.metadata is not None:
            text = json.dumps(metadata, ensure_ascii=False, indent=1)
            self.metadata.write_text(text + "\n", encoding="utf-8")


@contextmanager
def _open(path: Path, target: Declaration, force: bool, sources: tuple[Path | None, ...]) -> Iterator[_Output]:
    from ktae_cli.writers.atomic import atomic_path
    from ktae_cli.writers.atomic_directory import MARKER, atomic_directory

    beside = sidecar_path(path) if target.sidecar else None
    for one in (path, beside):
        if one is not None and any(s is not None and one.exists() and one.samefile(s) for s in sources):
            raise KtaeError(f"{one} is the file that is read; choose another name with -o")
    if target.directory:
        with atomic_directory(path, force) as temporary:
            yield _Output(temporary, temporary / MARKER)
    elif beside is None:
        with atomic_path(path, force) as temporary:
            yield _Output(temporary, None)
    else:
        with atomic_path(path, force) as temporary, atomic_path(beside, force) as described:
            yield _Output(temporary, described)


def split_rows(rows: Any, shards: int) -> Iterator[Any]:
    """Yield the rows of each shard: whole groups, in order of appearance, about as many tokens in each."""
    if shards == 1:
        yield rows
        return
    facts = rows.facts
    tokens = np.bincount(facts.group[rows.rows], (facts.prompt + facts.response)[rows.rows], len(facts.groups))
    present = np.flatnonzero(np.bincount(facts.group[rows.rows], minlength=len(facts.groups)))
    if len(present) < shards:
        raise KtaeError(f"--shards {shards}: only {len(present)} groups are left, and a shard holds whole groups")
    shard = np.full(len(facts.groups), -1)
    shard[present] = cut_evenly(tokens[present], shards)
    for at in range(shards):
        part = rows.part(rows.rows[shard[facts.group[rows.rows]] == at])
        part.metadata = rows.metadata | {"shard": at, "shards": shards}
        yield part


def cut_evenly(sizes: np.ndarray, parts: int) -> np.ndarray:
    """Return the part of each item: consecutive items, no part empty, each cut nearest to an equal share."""
    middle = np.cumsum(sizes) - sizes / 2
    cuts = [0]
    for at in range(1, parts):
        nearest = int(np.searchsorted(middle, sizes.sum() * at / parts))
        cuts.append(min(max(nearest, cuts[-1] + 1), len(sizes) - (parts - at)))
    return np.searchsorted(cuts, np.arange(len(sizes)), side="right") - 1


def shard_path(path: Path, at: int, shards: int) -> Path:
    """Return STEM-00000-of-0000N.SUFFIX."""
    return path.with_name(f"{path.stem}-{at:05d}-of-{shards:05d}{path.suffix}")


def sidecar_path(path: Path) -> Path:
    """Return X.meta for X.jsonl."""
    return path.with_name((path.name if path.suffix == SIDECAR else path.stem) + SIDECAR)


def default_output(scored: Path, target: Declaration) -> Path:
    """Return X.export.<target><suffix> for X.scored.parquet: never the name of the scored file or what was scored."""
    suffix = "" if target.suffix == f".{target.name}" else target.suffix
    stem = scored.name.removesuffix(".parquet").removesuffix(".scored")
    return scored.with_name(f"{stem}.export.{target.name}{suffix}")


def summary(rows: Any, written: int) -> dict[str, Any]:
    """Return what was exported and what was left out."""
    facts = rows.facts
    unscored = facts.unscored & ~facts.kept
    return {
        "rollouts": len(rows),
        "written": written,
        "tokens": int((facts.prompt + facts.response)[rows.rows].sum()),
        "dropped": int((unscored & ~facts.too_long & ~facts.dead).sum()),
        "zeroed": int(facts.unscored[rows.rows].sum()),
        "too_long": int(facts.too_long.sum()),
        "dead_groups": len(set(facts.group[facts.dead].tolist())),
        "dead_rollouts": int(facts.dead.sum()),
        "masked_truncated": int(facts.truncated[rows.rows].sum()) if rows.options.mask_truncated else 0,
        "without_prompt_ids": int((~facts.has_prompt)[rows.rows].sum()),
        "advantages": rows.column,
        "notes": [f"{n} {what}" for what, n in rows.counts.items()] + rows.remarks,
    }
