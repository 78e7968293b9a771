"""What a verifier does to its process costs one row: all others are right, in order, and no process stays behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from ktae_cli.errors import KtaeError, MachineError
from ktae_cli.grading.pool import grade_all
from ktae_cli.grading.verdict import GradingOptions, Verdict
from ktae_cli.grading.worker_process import Clock
from tests.helpers import ROOT

JUDGE = '''
import ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path


def spin():
    while True:
        pass


def judge(response, gold, options):
    """Do what the response says; else tell whether it equals the gold."""
    if response == "exit":
        os._exit(3)
    if response == "crash":
        ctypes.string_at(0)
    if response == "allocate":
        return len(bytearray(10 << 30)) > 0
    if response == "sleep":
        time.sleep(1000)
    if response == "spin":
        spin()
    if response == "deaf":
        for number in (signal.SIGTERM, signal.SIGPROF, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        spin()
    if response == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if response == "raise":
        raise ZeroDivisionError("by zero")
    if response == "leave":
        sys.exit(0)
    if response == "interrupt":
        raise KeyboardInterrupt
    if response == "nonsense":
        return "yes"
    if response == "unsure":
        return None
    if response == "fork" and os.fork() == 0:
        time.sleep(1000)
    if response == "twice":
        os.fork()
    if response == "orphan" and os.fork() == 0:
        time.sleep(1000)
    if response == "orphan":
        os._exit(4)
    if response == "child":
        subprocess.Popen(["sleep", "1000"])
    if response == "later":
        threading.Timer(0.3, os._exit, [5]).start()
        return True
    if response == "print":
        print("{}" * 100_000, flush=True)
        print("x" * 100_000, file=sys.stderr, flush=True)
        os.write(1, b"y" * 100_000)
        return sys.stdin.read() == ""
    if response.startswith("once "):
        mark = Path(response[5:])
        if not mark.exists():
            mark.touch()
            spin()
    if response.startswith("count "):
        with open(response[6:], "a") as file:
            file.write("x")
    return response == str(gold)
'''


@pytest.fixture
def judge(tmp_path, monkeypatch):
    path = tmp_path / "judge.py"
    path.write_text(JUDGE)
    # What is started from here on, and what that starts, carries the mark in its environment.
    monkeypatch.setenv("KTAE_TEST_MARK", str(tmp_path))
    return f"{path}:judge"


def left_behind(mark: Path) -> list[int]:
    """The running processes that carry the mark of a test, this one left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"KTAE_TEST_MARK={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def assert_nothing_left(mark: Path, seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while left_behind(mark) and time.monotonic() < until:
        time.sleep(0.02)
    assert left_behind(mark) == []


def graded(jobs, verifier, **options) -> list[Verdict]:
    return list(grade_all(jobs, verifier, **{"workers": 2, "seconds": 0.3, "memory": 1 << 28, **options}))


HOSTILE = {
    "exit": ("error", "worker ended with status 3"),
    "crash": ("error", "worker was ended by SIGSEGV"),
    "allocate": ("error", "MemoryError"),
    "sleep": ("timeout", "deadline"),
    "spin": ("timeout", "deadline"),
    "deaf": ("timeout", "deadline"),
    "stop": ("timeout", "deadline"),
    "raise": ("error", "ZeroDivisionError"),
    "leave": ("error", "SystemExit"),
    "interrupt": ("error", "KeyboardInterrupt"),
    "nonsense": ("error", "judge returned str"),
    "unsure": ("error", "judge returned None"),
    "orphan": ("error", "worker ended with status 4"),
}


def test_a_hostile_verifier_costs_its_own_rows(tmp_path, judge):
    jobs = [(f"a{i}", f"a{i if i % 3 else 0}") for i in range(400)]
    expected = [(i % 3 > 0 or i == 0, "ok", "judge") for i in range(400)]
    for place, (response, (status, path)) in enumerate(HOSTILE.items()):
        jobs.insert(31 * place, (response, "x"))
        expected.insert(31 * place, (None, status, path))
    for response, correct in (("print", True), ("child", False), ("fork", False), ("later", True)):
        jobs.append((response, "x"))
        expected.append((correct, "ok", "judge"))
    started = time.monotonic()
    verdicts = graded(jobs, judge)
    assert [(v.correct, v.status, v.path) for v in verdicts] == expected
    assert time.monotonic() - started < 60
    assert_nothing_left(tmp_path)


def test_one_worker_and_many_give_the_same(judge):
    jobs = [(f"a{i % 50}", f"a{i % 7}") for i in range(300)]
    jobs[100:100] = [("exit", "x"), ("spin", "x"), ("raise", "x")]
    assert graded(jobs, judge, workers=1) == graded(jobs, judge, workers=4)


def test_a_job_that_runs_out_of_time_once_is_tried_again(tmp_path, judge):
    jobs = [(f"once {tmp_path / 'mark'}", "x"), ("a", "a")]
    assert [(v.correct, v.status) for v in graded(jobs, judge)] == [(False, "ok"), (True, "ok")]


def test_equal_jobs_are_graded_once(tmp_path, judge):
    jobs = [(f"count {tmp_path / 'calls'}", "x"), ("a", "a")] * 20 + [(f"count {tmp_path / 'calls'}", "y")]
    assert [v.correct for v in graded(jobs, judge)] == [False, True] * 20 + [False]
    assert (tmp_path / "calls").read_text() == "xx"


def test_a_forked_copy_that_answers_too_decides_about_nothing(judge):
    jobs = [("twice" if i % 10 == 5 else f"a{i}", f"a{i}", i) for i in range(60)]
    verdicts = graded([(response, [gold, i] if response == "twice" else gold) for response, gold, i in jobs], judge)
    assert [v.correct for v in verdicts] == [response != "twice" for response, _, _ in jobs]


def test_the_input_is_read_as_verdicts_are_taken(judge):
    read = []

    def jobs():
        for i in range(20_000):
            read.append(i)
            yield (f"a{i % 10}", "a1")

    verdicts = grade_all(jobs(), judge, workers=1)
    assert [next(verdicts).correct for _ in range(3)] == [False, True, False]
    assert len(read) < 6000
    verdicts.close()


def test_long_jobs_in_flight_are_few(judge):
    read = []

    def jobs():
        for i in range(400):
            read.append(i)
            yield (f"{i} " + "x" * (1 << 20), "x")

    verdicts = grade_all(jobs(), judge, workers=1)
    next(verdicts)
    assert len(read) < 200
    verdicts.close()


def test_a_response_of_a_megabyte_and_one_with_zero_bytes_arrive(judge):
    long, zeros, odd = "x" * (1 << 20), "a\0b\0", "a\ud800\n\r\u2028"
    assert [v.correct for v in graded([(long, long), (zeros, zeros), (odd, odd), (odd, "a")], judge)] == [True] * 3 + [
        False
    ]


def test_a_row_without_a_response_has_no_verdict(judge):
    assert graded([(None, "x")], judge) == [Verdict(None, "no_answer", "", "", "no response")]
    assert graded([], judge) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("def judge(:", "SyntaxError"),
        ("import os; os._exit(7)", "ended with status 7 while it loaded"),
    ],
)
def test_a_verifier_that_cannot_be_loaded_is_one_line(tmp_path, judge, source, said):
    (tmp_path / "judge.py").write_text(source)
    with pytest.raises(KtaeError, match=said) as raised:
        graded([("a", "a")], judge)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, MachineError) == ("status 7" in said)
    assert_nothing_left(tmp_path)


def test_wrong_options_are_refused_before_the_first_row(judge):
    with pytest.raises(KtaeError, match="seconds is more than 0, found 0"):
        grade_all([], judge, seconds=0)
    with pytest.raises(KtaeError, match="workers is 0"):
        grade_all([], judge, workers=-1)


def test_grading_works_in_a_thread(tmp_path, judge):
    found = []
    thread = threading.Thread(target=lambda: found.extend(graded([("a", "a"), ("spin", "a")], judge)))
    thread.start()
    thread.join(60)
    assert [v.status for v in found] == ["ok", "timeout"]
    assert_nothing_left(tmp_path)


def test_mathematics_is_graded_in_a_thread_after_torch_and_beside_an_alarm_of_the_caller(tmp_path, judge):
    import torch

    torch.ones(4, 4) @ torch.ones(4, 4)
    rang = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        found = []
        jobs = [("\\boxed{(x+1)^2}", "x^2+2x+1"), ("\\boxed{(x+1)^2}", "x^2+2x+2")]
        thread = threading.Thread(target=lambda: found.extend(grade_all(jobs, workers=1)))
        thread.start()
        thread.join(120)
        time.sleep(0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [v.correct for v in found] == [True, False]
    assert rang == [signal.SIGALRM]
    assert_nothing_left(tmp_path)


def test_an_exception_in_the_middle_ends_the_workers(tmp_path, judge):
    def jobs():
        yield from [("a", "a"), ("sleep", "a"), ("b", "a")]
        yield from [(f"c{i}", "a") for i in range(10_000)]

    with pytest.raises(RuntimeError, match="mine"):
        for _ in grade_all(jobs(), judge, workers=2, seconds=100):
            assert left_behind(tmp_path)
            raise RuntimeError("mine")
    assert_nothing_left(tmp_path)


PROGRAM = """
from ktae_cli.grading.pool import grade_all
jobs = [("a", "a"), ("sleep", "a"), ("deaf", "a")]
for verdict in grade_all(jobs, {judge!r}, workers=2, seconds={seconds}):
    print(verdict.status, flush=True)
"""


def start(judge: str, seconds: float, **options) -> subprocess.Popen:
    """A program without a main guard, read from standard input, that hangs in two workers after its first line."""
    process = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options
    )
    process.stdin.write(textwrap.dedent(PROGRAM).format(judge=judge, seconds=seconds))
    process.stdin.close()
    assert process.stdout.readline() == "ok\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_parent(tmp_path, judge, number):
    process = start(judge, 100, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    assert len(left_behind(tmp_path)) == 3
    process.send_signal(number)
    process.wait(30)
    assert_nothing_left(tmp_path, 10)


def test_a_program_without_a_main_guard_grades(tmp_path, judge):
    process = start(judge, 0.2)
    assert process.stdout.read() == "timeout\ntimeout\n"
    assert process.wait(30) == 0
    assert_nothing_left(tmp_path)


def test_the_clock_of_a_job_counts_work_and_sleep_and_not_waiting_for_a_core():
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); time.sleep(60)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3 * (os.cpu_count() or 1))
    ]
    try:
        clocks = [Clock(process.pid) for process in processes]
        until = time.monotonic() + 60
        while min(sum(clock.look()) for clock in clocks) < 0.9 and time.monotonic() < until:
            time.sleep(0.02)
        for clock in clocks:
            used, asleep = clock.look()
            assert 0.4 < used < 0.7
            assert asleep > 0.1
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_options_reach_the_verifier(tmp_path):
    path = tmp_path / "told.py"
    path.write_text(
        "from ktae_cli.grading.verdict import Verdict\n"
        "def told(response, gold, options):\n"
        "    return Verdict(True, 'ok', options.units, str(gold), options.argument)\n"
    )
    options = GradingOptions(units="ignore", argument="a.b")
    verdicts = graded([("r", 7)], f"{path}:told", options=options)
    assert verdicts == [Verdict(True, "ok", "ignore", "7", "a.b")]
