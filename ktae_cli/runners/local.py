"""Score on this machine: read, score in a thread pool, write, in the input's order and in bounded memory."""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import torch

from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import MAX_PASSES, pool_requests
from ktae_cli.groups import GroupIndex
from ktae_cli.mapping import Mapping
from ktae_cli.memory import release_freed_memory
from ktae_cli.names import Spec
from ktae_cli.partition import Chunker, Spill
from ktae_cli.pipeline import ScoredRows, column_plan, gather_pools, score_rows
from ktae_cli.readers.base import Source
from ktae_cli.rollouts import ReadOptions, Rollouts, read_rollouts, roots_to_read
from ktae_cli.schema import holds_flags
from ktae_cli.stats.pooled import Pool

CHUNK_TOKENS = {"cpu": 128 << 10, "cuda": 16 << 20}
"""Tokens scored at once: on a CPU what its caches hold, on a GPU what keeps it busy."""

PENDING_BYTES = 64 << 20
"""Rows that wait for their results are scored at once when they hold more: long texts beside few tokens."""


@dataclass(frozen=True)
class Job:
    """One call of `score`, resolved: what to compute from which rows."""

    source: Source
    mapping: Mapping
    index: GroupIndex
    specs: list[Spec]
    read: ReadOptions
    device: str = "cpu"
    jobs: int = 0
    eos_ids: tuple[int, ...] = ()
    want_tokens: bool = True
    progress: Callable[[int], None] = lambda rows: None
    pooled: dict[str, Pool] = field(default_factory=dict)
    """Statistics that are not gathered from this input: evidence of other labels, held fixed."""


@dataclass(frozen=True)
class ResultRows:
    """Results of consecutive rows of the input, ready to be written beside them."""

    lengths: np.ndarray
    scored: np.ndarray
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.lengths)


class Totals:
    """Counts that merge by addition."""

    def __init__(self):
        self.counts: dict[str, int] = {}
        self.spec_counts: dict[Spec, dict[str, int]] = {}
        self.pooled: dict[str, Pool] = {}
        self.first_error = ""

    def add(self, counts: dict[str, int]) -> None:
        """Add the counts of one part."""
        _add(self.counts, counts)

    def add_result(self, result: ScoredRows) -> None:
        """Add the counts of scored rows."""
        self.add(result.counts)
        for spec, counts in result.spec_counts.items():
            _add(self.spec_counts.setdefault(spec, {}), counts)


def _add(sums: dict[str, int], counts: dict[str, int]) -> None:
    for name, value in counts.items():
        sums[name] = sums.get(name, 0) + value


def run(job: Job, on_rows: Callable, on_tokens: Callable) -> Totals:
    """Score everything: on_rows(batch, results) in input order, on_tokens(token results of a chunk) by group.

    Rows whose group code is -1 (`--limit`) are left out. Contiguous groups take one pass; otherwise what scoring
    needs is spilled to temporary files in buckets of whole groups, scored, and joined to a second reading.
    Estimators of scope "batch" take passes of their own beforehand: over the input, or over the spilled buckets.
    """
    workers = job.jobs or os.cpu_count() or 1
    flow = _one_pass if job.index.contiguous else _through_spill
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one chunk a thread; torch's own threads would only wait for each other
    try:
        with ThreadPoolExecutor(workers if job.device == "cpu" else 1) as pool:
            return flow(job, pool, workers, on_rows, on_tokens)
    finally:
        torch.set_num_threads(threads)


def _one_pass(job: Job, pool: ThreadPoolExecutor, workers: int, on_rows: Callable, on_tokens: Callable) -> Totals:
    totals, waiting, ready = Totals(), deque(), ResultBuffer()
    pending: deque[pa.RecordBatch] = deque()
    held = 0
    chunker = _chunker(job)
    totals.pooled = _pool(job, pool, workers, lambda: _chunks_of_input(job))
    score = _scorer(job, totals.pooled)

    def collect(keep: int) -> None:
        while len(waiting) > keep:
            result = waiting.popleft().result()
            totals.add_result(result)
            on_tokens(result.tokens)
            ready.add(ResultRows(result.lengths, result.scored, result.columns))
        nonlocal held
        while pending and ready.rows >= len(pending[0]):
            batch = pending.popleft()
            held -= batch.nbytes
            on_rows(batch, ready.take(len(batch)))
            job.progress(len(batch))

    for batch, rows in _read(job, None, totals):
        pending.append(batch)
        held += batch.nbytes
        for chunk in chunker.push(rows, flush=held > PENDING_BYTES):
            waiting.append(pool.submit(score, chunk))
            collect(1 + workers)
    for chunk in chunker.rest():
        waiting.append(pool.submit(score, chunk))
    collect(0)
    return totals


def _through_spill(job: Job, pool: ThreadPoolExecutor, workers: int, on_rows: Callable, on_tokens: Callable) -> Totals:
    totals = Totals()
    with tempfile.TemporaryDirectory(prefix="ktae-") as directory:
        needed = roots_to_read(job.mapping, job.read, job.source.schema)
        spill, lengths = Spill(directory, len(job.index.keys), job.source.bytes_of(needed)), []
        for _, rows in _read(job, needed, totals):
            spill.add(rows)
            lengths.append(rows.lengths)
        spill.close()
        release_freed_memory()
        store = ResultStore(directory, np.concatenate(lengths), column_plan(job.specs))
        totals.pooled = _pool(job, pool, workers, lambda: (c for c, _ in _chunks_of_spill(job, spill, True)))
        score = _scorer(job, totals.pooled)
        for result, row_numbers in _score_buckets(job, pool, workers, spill, score):
            totals.add_result(result)
            on_tokens(result.tokens)
            store.put(row_numbers, result)
        release_freed_memory()
        first = 0
        for batch, _ in _filtered(job, None):
            on_rows(batch, store.take(first, first + len(batch)))
            first += len(batch)
            job.progress(len(batch))
        store.close()
    return totals


def _score_buckets(
    job: Job, pool: ThreadPoolExecutor, workers: int, spill: Spill, score: Callable[[Rollouts], ScoredRows]
) -> Iterator[tuple[ScoredRows, np.ndarray]]:
    waiting: deque[tuple[Future, np.ndarray]] = deque()
    for chunk, row_numbers in _chunks_of_spill(job, spill, keep=False):
        waiting.append((pool.submit(score, chunk), row_numbers))
        while len(waiting) > 1 + workers:
            future, numbers = waiting.popleft()
            yield future.result(), numbers
    for future, numbers in waiting:
        yield future.result(), numbers


def _chunks_of_spill(job: Job, spill: Spill, keep: bool) -> Iterator[tuple[Rollouts, np.ndarray]]:
    for rows, row_numbers in spill.buckets(keep):
        chunker, at = _chunker(job), 0
        for chunk in chain(chunker.push(rows), chunker.rest()):
            yield chunk, row_numbers[at : at + len(chunk)]
            at += len(chunk)


def _chunks_of_input(job: Job) -> Iterator[Rollouts]:
    chunker = _chunker(job)
    for _, rows in _read(job, roots_to_read(job.mapping, job.read, job.source.schema), Totals()):
        yield from chunker.push(rows)
    yield from chunker.rest()


def _chunker(job: Job) -> Chunker:
    return Chunker(job.index.sizes, CHUNK_TOKENS[torch.device(job.device).type])


def _pool(
    job: Job, pool: ThreadPoolExecutor, workers: int, chunks: Callable[[], Iterator[Rollouts]]
) -> dict[str, Pool]:
    """Gather the statistics of the whole input that the estimators need, in as many passes as they take."""
    requests = pool_requests(job.specs)
    known = {key: job.pooled[key] for key in requests if key in job.pooled}

    def is_open(key: str) -> bool:
        return key not in known or not known[key].complete

    for _ in range(MAX_PASSES):
        if not any(map(is_open, requests)):
            return known
        due = [r for r in requests.values() if is_open(r.key) and not any(map(is_open, r.after))]
        found: dict[str, Pool] = {}
        for part in _map(pool, workers, partial(gather_pools, requests=due, known=known, device=job.device), chunks()):
            found = {key: _merge(key, found[key], value) if key in found else value for key, value in part.items()}
        known = known | found
    raise KtaeError(f"{', '.join(filter(is_open, requests))}: not complete after {MAX_PASSES} passes over the input")


def _merge(key: str, first: Pool, second: Pool) -> Pool:
    try:
        return first.merge(second)
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise KtaeError(f"{key}: its statistics of two parts of the input do not merge: {error!r}") from error


def _map(pool: ThreadPoolExecutor, workers: int, work: Callable, items: Iterator) -> Iterator:
    """Yield work(item) in order, a few items ahead."""
    waiting: deque[Future] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > 1 + workers:
            yield waiting.popleft().result()
    for future in waiting:
        yield future.result()


def _scorer(job: Job, pooled: dict[str, Pool]) -> Callable[[Rollouts], ScoredRows]:
    return partial(
        score_rows,
        specs=job.specs,
        plan=column_plan(job.specs),
        device=job.device,
        eos_ids=job.eos_ids,
        want_tokens=job.want_tokens,
        pooled=pooled,
    )


def _filtered(job: Job, columns: list[str] | None) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Yield (batch, row numbers in the input) without the rows that `--limit` leaves out."""
    first, last = 0, int(np.flatnonzero(job.index.codes >= 0).max(initial=-1))
    for batch in job.source.batches(columns):
        if first > last:
            return
        numbers = np.arange(first, first + len(batch))
        first += len(batch)
        keep = job.index.codes[numbers] >= 0
        if not keep.all():
            batch, numbers = batch.filter(pa.array(keep)), numbers[keep]
        if len(batch):
            yield batch, numbers


def _read(job: Job, columns: list[str] | None, totals: Totals) -> Iterator[tuple[pa.RecordBatch, Rollouts]]:
    for batch, numbers in _filtered(job, columns):
        codes = job.index.codes[numbers]
        rows = read_rollouts(batch, job.mapping, codes, job.read, lambda i, n=numbers: job.source.place(int(n[i])))
        totals.add({"truncated": rows.n_truncated, "skipped": rows.n_skipped})
        totals.first_error = totals.first_error or rows.first_error
        yield batch, rows


class ResultBuffer:
    """Results in input order, taken in the batches of the reader."""

    def __init__(self):
        self.parts: deque[ResultRows] = deque()
        self.rows = 0

    def add(self, part: ResultRows) -> None:
        """Append the results of the next rows."""
        self.parts.append(part)
        self.rows += len(part)

    def take(self, n_rows: int) -> ResultRows:
        """Remove and return the results of the next n_rows rows."""
        taken, missing = [], n_rows
        while missing:
            part = self.parts.popleft()
            if len(part) > missing:
                cut = int(part.lengths[:missing].sum())
                rest = {name: values[cut:] for name, values in part.columns.items()}
                self.parts.appendleft(ResultRows(part.lengths[missing:], part.scored[missing:], rest))
                head = {name: values[:cut] for name, values in part.columns.items()}
                part = ResultRows(part.lengths[:missing], part.scored[:missing], head)
            taken.append(part)
            missing -= len(part)
        self.rows -= n_rows
        if len(taken) == 1:
            return taken[0]
        columns = {name: np.concatenate([p.columns[name] for p in taken]) for name in taken[0].columns}
        return ResultRows(
            np.concatenate([p.lengths for p in taken]), np.concatenate([p.scored for p in taken]), columns
        )


def _write_at(file: int, values: memoryview, place: int) -> None:
    """Write all of the values: near a full disk the system takes a part of them and reports no error."""
    while values:
        done = os.pwrite(file, values, place)
        values, place = values[done:], place + done


class ResultStore:
    """Results by row in temporary files: one flat file a column, each row at its place in the input."""

    def __init__(self, directory: str, lengths: np.ndarray, plan: dict[str, tuple[Spec, str]]):
        self.lengths, self.scored = lengths, np.zeros(len(lengths), bool)
        self.starts = np.concatenate([[0], np.cumsum(lengths)])
        self.dtypes = {
            name: np.dtype(bool if holds_flags(result) else np.float32) for name, (_, result) in plan.items()
        }
        self.files = {
            name: os.open(os.path.join(directory, f"result-{i}"), os.O_RDWR | os.O_CREAT) for i, name in enumerate(plan)
        }

    def put(self, rows: np.ndarray, result: ScoredRows) -> None:
        """Store the results of rows in any order."""
        self.scored[rows] = result.scored
        ends = np.concatenate([[0], np.cumsum(result.lengths)]).tolist()
        starts = self.starts[rows].tolist()
        for name, file in self.files.items():
            dtype = self.dtypes[name]
            size, values = dtype.itemsize, memoryview(np.ascontiguousarray(result.columns[name], dtype)).cast("B")
            for i, start in enumerate(starts):
                if ends[i + 1] > ends[i]:
                    _write_at(file, values[size * ends[i] : size * ends[i + 1]], size * start)

    def take(self, first: int, last: int) -> ResultRows:
        """Return the results of rows first..last."""
        start, stop = int(self.starts[first]), int(self.starts[last])
        scored = self.scored[first:last]
        kept = None if scored.all() else np.repeat(scored, self.lengths[first:last])
        columns = {}
        for name, file in self.files.items():
            dtype = self.dtypes[name]
            n_bytes = dtype.itemsize * (stop - start)
            raw = os.pread(file, n_bytes, dtype.itemsize * start).ljust(n_bytes, b"\0")
            values = np.frombuffer(raw, dtype)
            columns[name] = values if kept is None else values[kept]
        return ResultRows(np.where(scored, self.lengths[first:last], 0), scored, columns)

    def close(self) -> None:
        """Close the files; their directory goes with the run."""
        for file in self.files.values():
            os.close(file)
