"""The process that grades: it takes one job at a time from its standard input and answers on a pipe of its own.

Frames are four bytes of length (big-endian), then the content: jobs are pickled, answers are JSON, since a process in
which any text may have been evaluated is not trusted with a pickle.
"""

import gc
import json
import os
import pickle
import resource
import signal
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ktae_cli.errors import KtaeError
from ktae_cli.grading.compare import Question, settle
from ktae_cli.grading.verdict import STATUSES, GradingOptions, Verdict

LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Setup:
    """What a worker is told first; seconds of processor time and bytes of memory are those of one job."""

    verifier: str
    options: GradingOptions
    seconds: float
    memory: int


def serve(answers: int) -> None:
    """Grade until the parent closes the pipe or ends; what a verifier reads or prints goes nowhere.

    answers: the descriptor that answers are written to.
    """
    os.set_inheritable(answers, False)
    jobs, nothing = os.dup(0), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(jobs, inbox), daemon=True).start()
    setup: Setup = pickle.loads(inbox.get())
    try:
        verify = _prepare(setup)
    except KtaeError as error:
        return _send(answers, {"refused": str(error)})
    except BaseException as error:
        return _send(
            answers, {"refused": f"the verifier {setup.verifier} cannot be loaded: {type(error).__name__}: {error}"}
        )
    # Parsing makes and drops many objects beside hundreds of thousands that stay: rarer collections save an eighth.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    _send(answers, {"number": 0})
    at_first = _bytes_in_use()
    while True:
        number, job = pickle.loads(inbox.get())
        try:
            verdict = _grade(verify, job, setup)
        except KtaeError as error:  # a pattern that does not compile: no row can be graded
            return _send(answers, {"refused": str(error)})
        # What a job leaves in memory must not decide about a later one.
        retires = _bytes_in_use() - at_first > setup.memory // 2
        _send(answers, {"number": number, "verdict": verdict, "retires": retires})


def _receive(descriptor: int, inbox: "SimpleQueue[bytes]") -> None:
    """Put the frames into the inbox; end the process when the parent has closed the pipe, whatever is going on."""
    with open(descriptor, "rb") as stream:
        while len(head := stream.read(LENGTH.size)) == LENGTH.size:
            inbox.put(stream.read(LENGTH.unpack(head)[0]))
    os._exit(0)


def _send(descriptor: int, answer: dict[str, Any]) -> None:
    content = json.dumps(answer).encode()
    data = memoryview(LENGTH.pack(len(content)) + content)
    while data:
        data = data[os.write(descriptor, data) :]


def _prepare(setup: Setup) -> Callable[..., Any]:
    """Load the verifier and what it needs, so that no job pays for it."""
    from ktae_cli.grading.verifier_loading import load_verifier

    verify = load_verifier(setup.verifier)
    if setup.verifier == "math":
        settle(Question("x + 1", "1 + x"), setup.options)
    return verify


def _grade(verify: Callable[..., Any], job: tuple, setup: Setup) -> Verdict:
    """Grade one job under its limits; the kernel ends the process (SIGPROF) where the time is used up."""
    _limit_memory(setup.memory)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, setup.seconds)
    try:
        if isinstance(job, Question):
            return _checked(settle(job, setup.options))
        return _checked(verify(*job, setup.options))
    except KtaeError:
        raise
    except BaseException as error:  # time-outs of math-verify are no `Exception`
        return Verdict(None, "error", "", "", type(error).__name__)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _checked(found: Any) -> Verdict:
    """Return a verdict in which everything has the type that the parent expects."""
    correct, status, *texts = found
    if status not in STATUSES or not (correct is None or isinstance(correct, bool)):
        raise TypeError
    return Verdict(correct, status, *map(str, texts))


def _bytes_in_use() -> int:
    """Return the data and stack of this process in bytes, as RLIMIT_DATA counts them; 0 where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def _limit_memory(size: int) -> None:
    """Let this process take `size` bytes more than it has."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = _bytes_in_use() + size
    with suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
