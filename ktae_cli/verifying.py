"""`verify` as one function: inputs -> graded rows -> the same rows with a verdict and the reason for it."""

import contextlib
import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ktae_cli.catalogue import unknown_name
from ktae_cli.errors import InputError, KtaeError, MachineError
from ktae_cli.gradable import find_gradable
from ktae_cli.grading.budget import MEMORY, SECONDS
from ktae_cli.grading.pool import NAMED_FORMATS, grade_all
from ktae_cli.grading.verdict import GradingOptions, Verdict
from ktae_cli.grading.verifier_loading import verifier_names
from ktae_cli.groups import scan_groups
from ktae_cli.inputs import VERIFIED_SUFFIX, ReadInputs, default_target, open_rollouts, remaining_map, threshold_of
from ktae_cli.mapping import resolve_mapping
from ktae_cli.readers._graded import GRADED_COLUMNS, GradedRollouts, moved_names
from ktae_cli.readers._memory import TableRollouts
from ktae_cli.readers.base import Source, column_at, decoded, root_of
from ktae_cli.rollouts import ReadOptions, RowErrors, reward_and_verdict
from ktae_cli.schema import METADATA_KEY, SCHEMA_VERSION
from ktae_cli.verdict_counts import VerdictCounts
from ktae_cli.version import __version__
from ktae_cli.writers.atomic import atomic_path, check_target
from ktae_cli.writers.parquet import ParquetOutput

LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy", "gmpy2")
"""Versions of these decide about what is equal; one that is not installed is left out of the metadata."""

LONGEST_TEXT = 2000
"""Longer answers are cut in `answer_parsed` and `gold_parsed`; what is compared is whole."""

_PROGRESS_ROWS = 64


@dataclass(frozen=True)
class VerifyOptions:
    """The options of `ktae verify`, under their names on the command line."""

    gold: str | None = None
    grading: GradingOptions = field(default_factory=GradingOptions)
    verifier: str = "math"
    compare: bool = False
    correct_threshold: float | None = None
    """None is the reader's own."""
    jobs: int = 0
    timeout: float = SECONDS
    memory: int = MEMORY
    limit: int = 0
    group_by: tuple[str, ...] = ()
    map: dict[str, str] = field(default_factory=dict)
    strict: bool = False
    input: ReadInputs = field(default_factory=ReadInputs)
    notice: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None


def verify_files(inputs: list[str], output: Path | None, force: bool, options: VerifyOptions) -> dict[str, Any]:
    """Grade files into `output` and return the summary. See `ktae verify --help`."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ktae-") as scratch, contextlib.ExitStack() as stack:
        output = output or default_target(inputs, VERIFIED_SUFFIX)
        check_target(output, force)
        source = open_rollouts(inputs, scratch, options.input)
        if any(output.exists() and output.samefile(path) for path in source.paths):
            raise InputError(f"{output}: is also an input; name another file with -o")
        graded = _Graded(source, options)
        path = stack.enter_context(atomic_path(output, force))
        sink = ParquetOutput(path, graded.schema)
        stack.callback(sink.abandon)
        for batch in graded.batches():
            sink.write(batch)
        graded.check()
        sink.close(graded.metadata())
    return _summary(graded, output, time.perf_counter() - started)


def verify_table(table: pa.Table, options: VerifyOptions) -> pa.Table:
    """Grade an Arrow table and return it with our columns; nothing is written."""
    graded = _Graded(TableRollouts(table), options)
    parts = list(graded.batches())
    graded.check()
    return pa.Table.from_batches(parts, graded.schema)


def with_verdicts(source: Source, options: VerifyOptions, scratch: str) -> GradedRollouts:
    """Grade a source once and return it with our columns; the verdicts wait in a file of the directory `scratch`."""
    graded = _Graded(source, options)
    path = Path(scratch) / "verdicts.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, GRADED_COLUMNS) as sink:
        for batch in graded.batches():
            sink.write(batch.select(GRADED_COLUMNS.names))
    graded.check()
    return GradedRollouts(source, pa.ipc.open_file(pa.memory_map(str(path))).read_all(), graded.described())


class _Graded:
    """A source with its verdicts: what is read, what is written, and what it all adds up to."""

    def __init__(self, source: Source, options: VerifyOptions):
        if source.n_rows == 0:
            raise InputError("no rollouts (0 rows): nothing to verify")
        options = replace(
            options,
            map=remaining_map(source, options.map),
            correct_threshold=threshold_of(source, options.correct_threshold),
        )
        self.source, self.options = source, options
        _check_options(options)
        self.columns = find_gradable(source.schema, options.map, options.gold, ".py:" not in options.verifier)
        if options.compare and not self.columns.earlier:
            raise InputError("--compare needs an earlier verdict: no correct and no reward; use --map correct=COLUMN")
        for text in self.columns.notices:
            options.notice(text)
        self.names = moved_names(source, options.notice)
        own = source.own_metadata() or {}
        if own.get("estimators"):
            options.warn("the input is scored: its advantages come from the earlier verdicts; score the output again")
        kept = [source.schema.field(name).with_name(written) for name, written in self.names.items()]
        metadata = {k: v for k, v in (source.schema.metadata or {}).items() if k not in (METADATA_KEY, b"pandas")}
        self.schema = pa.schema([*kept, *GRADED_COLUMNS], metadata=metadata or None)
        self.keep = _rows_of_groups(source, options) if options.limit else None
        self.n_rows = source.n_rows if self.keep is None else int(self.keep.sum())
        self.counts = VerdictCounts(source.place, options.compare)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the output. Responses are read ahead of the other columns, some thousand rows at most."""
        options, first = self.options, 0
        verdicts = grade_all(
            self._jobs(), options.verifier, options.grading, options.jobs, options.timeout, options.memory
        )
        with contextlib.closing(verdicts):
            for batch in self.source.batches():
                numbers = np.arange(first, first + len(batch))
                first += len(batch)
                if self.keep is not None:
                    chosen = self.keep[numbers]
                    batch, numbers = batch.filter(pa.array(chosen)), numbers[chosen]
                found = self._take(verdicts, len(batch))
                self.counts.add(numbers, found, self._earlier(batch, numbers) if options.compare else None)
                columns = [batch.column(name) for name in self.names]
                yield pa.RecordBatch.from_arrays([*columns, *_arrays(found)], schema=self.schema)

    def _take(self, verdicts: Iterator[Verdict], n_rows: int) -> list[Verdict]:
        found: list[Verdict] = []
        while len(found) < n_rows:
            found += islice(verdicts, min(_PROGRESS_ROWS, n_rows - len(found)))
            self.options.progress(self.counts.rows + len(found), self.n_rows)
        return found

    def _jobs(self) -> Iterator[tuple[str | None, Any]]:
        paths = [path for path in (self.columns.response, self.columns.gold) if path]
        roots, first = list(dict.fromkeys(root_of(self.source.schema, path) for path in paths)), 0
        for batch in self.source.batches(roots):
            texts, *golds = (decoded(column_at(batch, path), path, self.source.place(first)) for path in paths)
            for i, text in enumerate(texts):
                if self.keep is None or self.keep[first + i]:
                    yield text, golds[0][i] if golds else None
            first += len(batch)

    def _earlier(self, batch: pa.RecordBatch, numbers: np.ndarray) -> np.ndarray:
        name = "correct" if self.columns.correct else "reward"
        errors = RowErrors(len(batch), lambda i: self.source.place(int(numbers[i])), "skip")
        column = {name: column_at(batch, self.columns.earlier)}
        return reward_and_verdict(column, ReadOptions(self.options.correct_threshold), errors)[1]

    def check(self) -> None:
        """Say what went wrong with rows; raise where no verdict is worth anything, or under --strict any is missing."""
        statuses, given = self.counts.statuses, self.counts.given
        if self.counts.failed:
            raise MachineError(
                f"every row ended in a time-out or an error, nothing is written; the first: {self.counts.first_failure}"
            )
        if not given:
            raise InputError(
                f"column {self.columns.response!r} is null in all {self.n_rows} rows: no response to grade"
            )
        if statuses["gold_unparsed"] == given:
            raise InputError(
                f"column {self.columns.gold!r}: no gold answer can be read in {given} rows; name another with --gold"
            )
        warnings = [
            f"{statuses[name]} row(s) {what}, their verdict is unknown"
            for name, what in (
                ("gold_unparsed", "have a gold answer that cannot be read"),
                ("timeout", f"took more than {self.options.timeout:g} s"),
                ("error", "ended in an error"),
                ("too_complex", "are too complex to compare"),
            )
            if statuses[name]
        ]
        if statuses["no_answer"] == self.counts.rows:
            form = self.options.grading.answer_format
            warnings.append(f"no response states an answer, so all count as wrong: is --answer-format {form} right?")
        if self.counts.first_failure:
            warnings.append(f"the first failure: {self.counts.first_failure}")
        for text in warnings:
            self.options.warn(text)
        if self.options.strict and warnings:
            raise InputError(f"--strict, nothing is written: {warnings[0]}")

    def described(self) -> dict[str, Any]:
        """Return how the verdicts came about: the options, the versions, the counts."""
        options = self.options
        return {
            "verifier": _origin(options.verifier),
            "options": asdict(options.grading),
            "timeout": options.timeout,
            "response": self.columns.response,
            "gold": self.columns.gold,
            "columns": GRADED_COLUMNS.names,
            "libraries": _versions() if options.verifier == "math" else {},
            "counts": {name: value for name, value in self.counts.summary().items() if name != "compare"},
        }

    def metadata(self) -> dict[str, Any]:
        """Return what the output says about itself: that of a scored input stays, the verdicts are described."""
        own = self.source.own_metadata() or {}
        moved = {name: self._written(path) for name, path in (own.get("columns") or {}).items()}
        found = {"response": self.columns.response, "ground_truth": self.columns.gold}
        found = {name: self._written(path) for name, path in found.items() if path}
        return {
            **own,
            "version": __version__,
            "schema_version": SCHEMA_VERSION,
            "reader": self.source.reader,
            "columns": {**moved, **found, "correct": "correct"},
            "inputs": self.source.fingerprints(),
            "verify": self.described(),
        }

    def _written(self, path: str) -> str:
        """Return where an input path stands in the output."""
        root = path if path in self.names else root_of(self.source.schema, path) if path else path
        return self.names.get(root, root) + path[len(root) :]


def _check_options(options: VerifyOptions) -> None:
    if not (0 < options.timeout < float("inf")):
        raise KtaeError(f"--timeout takes seconds, more than 0, found {options.timeout:g}")
    if not (0 <= options.grading.tolerance < 1):
        raise KtaeError(f"--tolerance takes a number from 0 to below 1, found {options.grading.tolerance:g}")
    _check_format(options.grading.answer_format)
    path, colon, _ = options.verifier.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; a verifier of your own is given as path.py:function")
    elif options.verifier not in verifier_names():
        raise unknown_name("verifier", [options.verifier], verifier_names())


def _check_format(text: str) -> None:
    """Raise `KtaeError` for a pattern that does not compile, and for a word: no answer would ever match it."""
    if text in NAMED_FORMATS:
        return
    if not text or re.fullmatch(r"[A-Za-z_0-9]+", text):
        raise unknown_name("answer format", [text], list(NAMED_FORMATS))
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise KtaeError(f"--answer-format: the pattern {text[:60]!r} does not compile ({error})") from None


def _rows_of_groups(source: Source, options: VerifyOptions) -> np.ndarray:
    """Tell for each row (n_rows,) whether it belongs to the first groups of --limit."""
    mapping = resolve_mapping(source.schema, options.map, list(options.group_by))
    return scan_groups(source.batches, source.schema, mapping, source.place).codes < options.limit


def _arrays(verdicts: list[Verdict]) -> list[pa.Array]:
    texts = [[_shown(text) for text in column] for column in zip(*(verdict[1:] for verdict in verdicts), strict=True)]
    status, answer, gold, path = texts or [[], [], [], []]
    correct = pa.array([verdict.correct for verdict in verdicts], pa.bool_())
    return [correct, *(pa.array(column, pa.string()) for column in (status, answer, gold, path))]


def _shown(text: str) -> str | None:
    """Return a text as the file holds it: null for none, cut where it is long, UTF-8 throughout."""
    cut = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
    return cut.encode("utf-8", "replace").decode() or None


def _origin(verifier: str) -> str:
    """Return what the file says of a verifier: never an absolute path."""
    path, colon, function = verifier.rpartition(":")
    if not colon:
        return verifier
    return f"{Path(path).name}:{function}, sha256 {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _summary(graded: _Graded, output: Path, seconds: float) -> dict[str, Any]:
    rows = graded.counts.rows
    return {
        **graded.counts.summary(),
        "earlier": graded.columns.earlier if graded.options.compare else None,
        "verifier": graded.options.verifier,
        "output": str(output),
        "schema_version": SCHEMA_VERSION,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds) if seconds else 0,
    }
