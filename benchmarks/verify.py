"""Grade the same rows with `ktae verify` and with math-verify called directly in one process.

    python benchmarks/verify.py [--data PATH]... [--rows N] [--jobs N] [--quick] [--markdown]

Without --data the rows are made here: word problems whose answers are numbers, as in GSM8K, and competition problems
whose answers are expressions, as in MATH500, groups of rollouts that repeat their answers, some of them wrong, some
without an answer. --data takes Parquet files with response, gold and a reward or verdict to hold the result against.
The direct call is what most training code does: parse(response), parse("\\boxed{gold}"), verify(gold, answer), its own
time-outs on, a verdict of False for whatever goes wrong. Wall time includes starting both; --jobs defaults to 2. Exit
status 1 where `ktae verify` is less than 4 times as fast, or has fewer right verdicts; --quick grades few rows and has
no target.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from _report import exit_status, find_ktae, format_table, say

TARGET = 4.0
MADE_ROWS = {"word": 5000, "competition": 4000}  # about those of GSM8K with 4 and MATH500 with 9 rollouts
FILLER = "We look at the problem step by step, write down what is given and simplify. "
DIRECT = """
import json, logging, sys
import pyarrow.parquet as pq
from math_verify import parse, verify

logging.disable(logging.CRITICAL)
table = pq.read_table(sys.argv[1], columns=["response", "gold"])
verdicts = []
for response, gold in zip(table["response"].to_pylist(), table["gold"].to_pylist(), strict=True):
    verdicts.append(verify(parse("\\\\boxed{" + gold + "}"), parse(response)))
print(json.dumps(verdicts))
"""


def word_problem(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """Return a gold number, ways to write it, and wrong answers."""
    n = rng.randrange(2, 9000)
    right = [str(n), f"{n:,}", f"\\${n}", f"{n}.00"]
    return str(n), right, [str(n + 1), str(2 * n), f"{n}.5"]


def competition_problem(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """Return a gold expression, ways to write it, and wrong answers."""
    a, b, c = rng.randrange(2, 30), rng.randrange(2, 30), rng.choice([2, 3, 5, 7, 11])
    kinds = [
        (
            f"\\frac{{{a}}}{{{a + b}}}",
            [f"\\dfrac{{{a}}}{{{a + b}}}", f"{a}/{a + b}"],
            [f"\\frac{{{a}}}{{{a + b + 1}}}"],
        ),
        (f"{a}\\sqrt{{{c}}}", [f"\\sqrt{{{a * a * c}}}", f"{a} \\sqrt{{{c}}}"], [f"{a + 1}\\sqrt{{{c}}}", str(a)]),
        (f"({a}, {b})", [f"({a},{b})", f"\\left( {a}, {b} \\right)"], [f"({b + 1}, {a})", str(a)]),
        (f"x^2+{a + b}x+{a * b}", [f"(x+{a})(x+{b})", f"{a * b} + {a + b}x + x^2"], [f"(x+{a})(x+{b + 1})"]),
        (f"{a}\\pi", [f"{a} \\pi", f"\\frac{{{2 * a}\\pi}}{{2}}"], [f"{a + 2}\\pi", f"{a}"]),
        (str(a * b), [str(a * b), f"{a * b}.0"], [str(a * b + 1)]),
    ]
    gold, right, wrong = rng.choice(kinds)
    return gold, [gold, *right], wrong


def working(kind: str, rng: random.Random) -> str:
    """Return what stands before the answer: sums as in GSM8K's solutions, or prose as long as a competition's."""
    if kind == "competition":
        return FILLER * rng.randrange(5, 60)
    pairs = [(rng.randrange(2, 60), rng.randrange(2, 60)) for _ in range(rng.randrange(2, 7))]
    return "".join(f"There are {a} boxes with {b} each, so {a} * {b} = <<{a}*{b}={a * b}>>{a * b}.\n" for a, b in pairs)


def made(kind: str, n_rows: int, size: int = 8) -> pa.Table:
    """Make rows of one kind: groups of `size` rollouts of a problem, with the verdict that is right by construction."""
    rng, rows = random.Random(kind), []
    while len(rows) < n_rows:
        gold, right, wrong = (word_problem if kind == "word" else competition_problem)(rng)
        for _ in range(size):
            correct = rng.random() < 0.6
            answer = rng.choice(right if correct else wrong)
            ending = f"The final answer is ${answer}$." if kind == "word" else f"Thus $\\boxed{{{answer}}}$."
            if rng.random() < 0.02:
                correct, ending = False, "I do not know."
            rows.append((working(kind, rng) + ending, gold, correct))
    response, gold, correct = zip(*rows[:n_rows], strict=True)
    return pa.table({"response": response, "gold": gold, "correct": correct})


def read(path: Path, n_rows: int) -> pa.Table:
    """Read response, gold and the verdict of a file, of at most n_rows rows spread over it."""
    table = pq.read_table(path)
    verdict = next((name for name in ("correct", "reward") if name in table.column_names), None)
    if verdict is None or not {"response", "gold"} <= set(table.column_names):
        sys.exit(f"{path}: needs the columns response, gold, and correct or reward")
    correct = [value is not None and value > 0 for value in table[verdict].to_pylist()]
    table = pa.table({"response": table["response"], "gold": table["gold"], "correct": correct})
    step = max(1, len(table) // n_rows) if n_rows else 1
    return table.take(list(range(0, len(table), step))[: n_rows or None])


def time_direct(path: Path) -> tuple[float, list[bool]]:
    """Return the seconds and the verdicts of math-verify called in a process of its own."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", DIRECT, str(path)], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return seconds, json.loads(done.stdout)


def time_verify(path: Path, jobs: int) -> tuple[float, list[bool | None]]:
    """Return the seconds and the verdicts of `ktae verify`."""
    output = path.with_suffix(".verified.parquet")
    command = [find_ktae(), "verify", str(path), "-o", str(output), "--force", "-q", "-j", str(jobs)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return seconds, pq.read_table(output, columns=["correct"])["correct"].to_pylist()


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, action="append", default=[], help="a Parquet file of graded responses")
    parser.add_argument("--rows", type=int, default=0, help="of each set; default 5000 and 4000, all of a file")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--quick", action="store_true", help="300 rows, no target")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    n_rows = 300 if options.quick else options.rows
    sets = {path.stem: read(path, n_rows) for path in options.data}
    sets = sets or {f"{kind} problems": made(kind, n_rows or MADE_ROWS[kind]) for kind in MADE_ROWS}
    rows, missed = [], []
    with tempfile.TemporaryDirectory(prefix="ktae-bench-") as directory:
        for name, table in sets.items():
            path = Path(directory) / "rows.parquet"
            pq.write_table(table.select(["response", "gold"]), path)
            say(f"{name}: {len(table)} rows")
            labels = table["correct"].to_pylist()
            right = {}
            for who, (seconds, verdicts) in {
                "math-verify": time_direct(path), f"ktae verify -j {options.jobs}": time_verify(path, options.jobs),
            }.items():  # fmt: skip
                right[who] = sum(ours == label for ours, label in zip(verdicts, labels, strict=True)), seconds
            (base, base_seconds), (ours, our_seconds) = right.values()
            for who, (count, seconds) in right.items():
                speed = [f"{seconds:.1f}", f"{len(table) / seconds:,.0f}", f"{base_seconds / seconds:.1f}"]
                rows.append([name, who, *speed, f"{count} of {len(table)}"])
            if base_seconds < TARGET * our_seconds:
                missed.append(f"{name}: {base_seconds / our_seconds:.1f} times as fast, wanted {TARGET:g}")
            if ours < base:
                missed.append(f"{name}: {ours} right verdicts, math-verify has {base}")
    print(format_table(["rows", "by", "s", "rows/s", "x", "right"], rows, options.markdown))
    return exit_status(missed, options.quick)


if __name__ == "__main__":
    sys.exit(main())
