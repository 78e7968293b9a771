"""One worker as its parent sees it: started by a command line, fed through a pipe, timed, killed."""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from ktae_cli.errors import MachineError, PrerequisiteError
from ktae_cli.grading.verdict import STATUSES, Verdict
from ktae_cli.grading.worker import LENGTH, Setup

# The parent's module search path, not its main module: a script without `if __name__ == "__main__"`, a notebook and
# a program read from standard input start workers as well.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ktae_cli.grading.worker import serve; serve(int(sys.argv[2]))"
)
_LARGEST_FRAME = 64 << 20
_SENDING = 10.0  # seconds
WALL_PER_SECOND = 4
"""Without /proc a second of processor time is taken as this many seconds of the clock."""


class WorkerProcess:
    """A running worker; `task` is what the pool gave it, None while it is idle or starting."""

    def __init__(self, setup: Setup):
        if not sys.executable:
            raise PrerequisiteError("grading starts processes of its own, and sys.executable is empty; set it")
        path = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
        self.answers, theirs = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(path), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=[theirs],
                # Ctrl-C on a terminal reaches the parent alone, and what a verifier starts can be killed with it.
                start_new_session=True,
                # sympy orders by hash: the same text takes the same way in every worker of every run.
                env=os.environ | {"PYTHONHASHSEED": "0"},
            )
        except OSError as error:
            os.close(self.answers)
            raise MachineError(f"a grading process cannot be started ({error.strerror or error})") from None
        finally:
            os.close(theirs)
        for descriptor in (self.answers, self.process.stdin.fileno()):
            os.set_blocking(descriptor, False)
        self.ready, self.task, self.number, self.received = False, None, 0, bytearray()
        self.clock = Clock(self.process.pid)
        self._send(setup)

    @property
    def is_idle(self) -> bool:
        """Tell whether it waits for a job."""
        return self.ready and self.task is None

    def give(self, task: Any, job: tuple) -> None:
        """Send the job of a task; a worker that does not take it is seen to be dead or asleep later."""
        self.task, self.number = task, self.number + 1
        self._send((self.number, job))

    def _send(self, content: Any) -> None:
        frame = pickle.dumps(content)
        data = memoryview(LENGTH.pack(len(frame)) + frame)
        self.clock.restart()
        until, descriptor = time.monotonic() + _SENDING, self.process.stdin.fileno()
        while data and (left := until - time.monotonic()) > 0:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                poll = select.poll()  # select() takes no descriptor beyond 1023
                poll.register(descriptor, select.POLLOUT)
                poll.poll(1000 * left)
            except OSError:
                return

    def receive(self) -> dict[str, Any] | None:
        """Return the answer if a whole one has come; raise `EOFError` where none can come any more."""
        while True:
            try:
                part = os.read(self.answers, 1 << 16)
            except BlockingIOError:
                return None
            if not part:
                raise EOFError
            self.received += part
            end = LENGTH.size + LENGTH.unpack(self.received[: LENGTH.size].ljust(LENGTH.size, b"\0"))[0]
            if len(self.received) > _LARGEST_FRAME or end > _LARGEST_FRAME:
                raise EOFError
            if LENGTH.size < end <= len(self.received):
                content, self.received = bytes(self.received[LENGTH.size : end]), self.received[end:]
                return _decoded(content, self.number)

    def is_dead(self) -> bool:
        """Tell whether the process has ended, also where a process that it started keeps the pipe open."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> int:
        """End the worker and what it started, now; return its exit status, its own where it had ended before."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk cannot be killed
                self.process.wait(10)
        with suppress(OSError):
            self.process.stdin.close()
        os.close(self.answers)
        return self.process.returncode or 0


def _decoded(content: bytes, number: int) -> dict[str, Any]:
    """Return the answer to job `number`; raise `EOFError` for what only a disturbed worker can have sent."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise EOFError from None
    if not isinstance(answer, dict) or answer.get("number", number) != number:
        raise EOFError
    if number and "refused" not in answer:
        answer["verdict"] = _verdict(answer.get("verdict"))
    return answer


def _verdict(found: Any) -> Verdict:
    if not isinstance(found, list) or len(found) != 5 or not all(isinstance(text, str) for text in found[1:]):
        raise EOFError
    if found[1] not in STATUSES or not (found[0] is None or isinstance(found[0], bool)):
        raise EOFError
    return Verdict(*found)


class Clock:
    """What a job has taken of its worker: processor time, and time in which it neither ran nor waited for a core.

    The load of the machine lengthens neither, so that no verdict depends on it. Time asleep is summed over the calls
    of `look`, each at most a quarter of a second: it counts only while somebody looks. Without /proc both are guessed
    from the clock, `WALL_PER_SECOND` seconds for one.
    """

    def __init__(self, pid: int):
        self.pid = pid
        self.restart()

    def restart(self) -> None:
        """Begin a job."""
        self.looked = self.started = time.monotonic()
        self.before = self.last = _processor_seconds(self.pid)[0]
        self.asleep = 0.0

    def look(self) -> tuple[float, float]:
        """Return the seconds of processor time and the seconds asleep of this job so far."""
        now, (used, is_running) = time.monotonic(), _processor_seconds(self.pid)
        if used is None or self.before is None:
            return (now - self.started) / WALL_PER_SECOND, 0.0
        if not is_running and used == self.last:
            self.asleep += min(now - self.looked, 0.25)
        self.looked, self.last = now, used
        return used - self.before, self.asleep


def _processor_seconds(pid: int) -> tuple[float | None, bool]:
    """Return the processor time of a process, all threads and ended children, and whether it runs or waits to run."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None, False
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), fields[0] == b"R"
