"""Grade many responses in processes that can be killed: one job each, a deadline for each, results in input order.

A process pool of the standard library cannot cancel a running job, and one dead worker breaks it; an alarm inside the
grading process does not interrupt C code. So every worker is a process of its own behind a pipe with one job at a time,
and what it does to itself costs one job.

A job's deadline is processor time of its worker, kept by the kernel in the worker (ITIMER_PROF ends it even inside C
code) and by the parent (a worker that ignores the signal, or sleeps). Time spent waiting for a core counts for
nothing, so verdicts do not depend on the load or on the number of workers. A job that ran out of time or whose worker
died is tried once more, in a new worker while no other job runs; then it is a `timeout`, or an `error`. Equal (answer,
gold) get one verdict from a cache.
"""

import os
import pickle
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ktae_cli.errors import InputError, KtaeError, MachineError
from ktae_cli.grading.budget import MEMORY, SECONDS
from ktae_cli.grading.compare import Question, first_look
from ktae_cli.grading.verdict import GradingOptions, Verdict
from ktae_cli.grading.worker import Setup
from ktae_cli.grading.worker_process import WorkerProcess

NAMED_FORMATS = ("auto", "boxed", "gsm8k", "answer_tag", "last_line")
"""Answer formats that are not patterns of the user: a pattern may take for ever, so only a worker tries one."""
NO_RESPONSE = "no response"
"""The path of a row whose response is null."""

_WINDOW = 4096  # rows that may be ahead of the first unfinished one
_HELD_BYTES = 64 << 20
_LONG = 1 << 18  # characters of a response that the parent leaves to a worker
_CACHED = 1 << 16
_STARTING = 120.0  # seconds, of processor time or asleep
_GRACE = 1.0  # seconds that the kernel's timer is given before the parent kills
_LOOK = 0.1  # seconds between two looks at the clocks


@dataclass(eq=False)
class _Task:
    """A job for a worker and the rows that wait for its verdict."""

    key: bytes
    job: tuple
    size: int
    rows: list[int] = field(default_factory=list)
    is_retry: bool = False


def grade_all(
    jobs: Iterable[tuple[str | None, Any]],
    verifier: str = "math",
    options: GradingOptions | None = None,
    workers: int = 0,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Iterator[Verdict]:
    """Yield the verdict of each (response, gold), in order; at most some thousand rows are held.

    workers: processes, 0 is one for each core that this process may use; they start when the first job needs one.
    seconds: of processor time, or asleep, for one job; memory: bytes that one job may add to its worker (on Linux).
    Closing or dropping the iterator, an exception and Ctrl-C end all workers. A response of None has no verdict.
    Raises `KtaeError` where the verifier cannot be loaded, `MachineError` where no process can be started.
    """
    if not seconds > 0:
        raise KtaeError(f"a job needs time: seconds is more than 0, found {seconds}")
    if workers < 0:
        raise KtaeError(f"workers is 0 (one a core) or more, found {workers}")
    pool = _Pool(Setup(verifier, options or GradingOptions(), seconds, memory), workers or cores())
    return _in_order(pool, jobs)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_order(pool: "_Pool", jobs: Iterable[tuple[str | None, Any]]) -> Iterator[Verdict]:
    ready: dict[int, Verdict] = {}
    rows, first = enumerate(jobs), 0
    row, job = next(rows, (0, None))
    try:
        while True:
            while first in ready:
                yield ready.pop(first)
                first += 1
            may_take = job is not None and row - first < _WINDOW and pool.held < _HELD_BYTES
            if may_take:
                verdict = pool.take(row, *job)
                if verdict is not None:
                    ready[row] = verdict
                row, job = next(rows, (row + 1, None))
            elif not pool.tasks:
                return
            if pool.tasks:
                for task, verdict in pool.step(0.0 if may_take else _LOOK):
                    ready.update(dict.fromkeys(task.rows, verdict))
    finally:
        pool.close()


class _Pool:
    """Decides who does what next; holds the workers, the tasks and the cache."""

    def __init__(self, setup: Setup, n_workers: int):
        self.setup, self.n_workers = setup, n_workers
        self.workers: list[WorkerProcess] = []
        self.selector: selectors.BaseSelector | None = None
        self.tasks: dict[bytes, _Task] = {}
        self.waiting: deque[_Task] = deque()
        self.retries: deque[_Task] = deque()
        self.cache: dict[bytes, Verdict] = {}
        self.held, self.looks_at = 0, 0.0
        self.looks_first = setup.verifier == "math" and setup.options.answer_format in NAMED_FORMATS

    def take(self, row: int, response: str | None, gold: Any) -> Verdict | None:
        """Return the verdict of a row if it is there at once, else see to it that a worker finds it."""
        if response is None:
            return Verdict(None, "no_answer", "", "", NO_RESPONSE)
        job: tuple = (response, gold)
        if self.looks_first and len(response) < _LONG and not (isinstance(gold, str) and len(gold) >= _LONG):
            found = first_look(response, gold, self.setup.options)
            if isinstance(found, Verdict):
                return found
            job = found
        content = pickle.dumps((isinstance(job, Question), *job))
        key = blake2b(content, digest_size=16).digest()
        if key in self.cache:
            return self.cache[key]
        task = self.tasks.get(key)
        if task is None:
            task = self.tasks[key] = _Task(key, job, len(content))
            self.waiting.append(task)
            self.held += task.size
        task.rows.append(row)
        return None

    def step(self, seconds: float) -> list[tuple[_Task, Verdict]]:
        """Give out jobs, wait up to `seconds` for answers, and return the tasks that are finished."""
        self._give_out()
        finished = []
        for key, _ in self.selector.select(seconds):
            finished += self._hear(key.data)
        if time.monotonic() >= self.looks_at:
            self.looks_at = time.monotonic() + _LOOK / 2
            for worker in [w for w in self.workers if not w.is_idle]:
                finished += self._check(worker)
        self._give_out()
        return finished

    def _give_out(self) -> None:
        """Give jobs to idle workers, first attempts before retries, and start workers that are missing."""
        busy = [worker.task for worker in self.workers if worker.task]
        if any(task.is_retry for task in busy):
            return
        if self.retries and not self.waiting and not busy:
            return self._give_out_retry()
        for worker in self.workers:
            if self.waiting and worker.is_idle:
                task = self.waiting.popleft()
                worker.give(task, task.job)
        starting = sum(not worker.ready for worker in self.workers)
        for _ in range(min(len(self.waiting) - starting, self.n_workers - len(self.workers))):
            self._start()

    def _give_out_retry(self) -> None:
        """Try a task once more, alone and in a worker in which no earlier job can have left anything."""
        fresh = next((worker for worker in self.workers if worker.is_idle and not worker.number), None)
        if fresh:
            task = self.retries.popleft()
            fresh.give(task, task.job)
        elif all(worker.ready for worker in self.workers):
            if len(self.workers) == self.n_workers:
                self._end(self.workers[0])
            self._start()

    def _start(self) -> None:
        self.selector = self.selector or selectors.DefaultSelector()
        worker = WorkerProcess(self.setup)
        self.workers.append(worker)
        self.selector.register(worker.answers, selectors.EVENT_READ, worker)

    def _end(self, worker: WorkerProcess) -> int:
        self.selector.unregister(worker.answers)
        self.workers.remove(worker)
        return worker.end()

    def _hear(self, worker: WorkerProcess) -> list[tuple[_Task, Verdict]]:
        """Take what a worker says, or note that it is dead."""
        try:
            answer = worker.receive()
        except EOFError:
            return self._lost(worker, None)
        if answer is None:
            return []
        if "refused" in answer:
            raise InputError(" ".join(str(answer["refused"]).split()))
        if not worker.ready:
            worker.ready = True
            return []
        if worker.task is None:  # an answer to nothing
            return self._lost(worker, None)
        task, worker.task = worker.task, None
        if answer.get("retires"):
            self._end(worker)
        return [self._finished(task, answer["verdict"])]

    def _check(self, worker: WorkerProcess) -> list[tuple[_Task, Verdict]]:
        """Kill a worker that has had its time, and note one that is dead behind an open pipe."""
        if worker.is_dead():
            return self._hear(worker) or (self._lost(worker, None) if worker in self.workers else [])
        used, asleep = worker.clock.look()
        limit = self.setup.seconds if worker.ready else _STARTING
        return [] if used <= limit + _GRACE and asleep <= limit else self._lost(worker, -signal.SIGPROF)

    def _lost(self, worker: WorkerProcess, status: int | None) -> list[tuple[_Task, Verdict]]:
        """End a worker; queue its task once more, or give it up. status: what ended it, None for what it says."""
        task, ended = worker.task, self._end(worker)
        status = ended if status is None else status
        if not worker.ready:
            raise MachineError(
                f"a grading process {_ending(status)} while it loaded the verifier {self.setup.verifier}; "
                "run it by itself to see why"
            )
        if task is None:
            return []
        if not task.is_retry:
            task.is_retry = True
            self.retries.append(task)
            return []
        if status == -signal.SIGPROF:
            return [self._finished(task, Verdict(None, "timeout", *_texts(task.job), "deadline"))]
        return [self._finished(task, Verdict(None, "error", *_texts(task.job), f"worker {_ending(status)}"))]

    def _finished(self, task: _Task, verdict: Verdict) -> tuple[_Task, Verdict]:
        del self.tasks[task.key]
        self.held -= task.size
        if len(self.cache) >= _CACHED:
            del self.cache[next(iter(self.cache))]
        self.cache[task.key] = verdict
        return task, verdict

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.end()
        if self.selector:
            self.selector.close()


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _texts(job: tuple) -> tuple[str, str]:
    """Return what is known of the answer and the gold where no verdict was reached."""
    return (job.answer, job.gold) if isinstance(job, Question) else ("", "")
