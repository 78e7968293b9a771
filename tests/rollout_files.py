"""Rollout files for the tests of reading and scoring, and the command line, run in this process or beside it."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ktae_cli.batch import TOKEN_COLUMNS
from ktae_cli.cli.app import run

SHARED = Path(__file__).parents[2] / "shared"

# Rewards 1, 0, 0, 0: mean 0.25, standard deviation 0.5 (ddof 1).
HIGH, LOW = 0.75 / (0.5 + 1e-6), -0.25 / (0.5 + 1e-6)


def four(**columns) -> pa.Table:
    """One group of four rollouts, the first right; a column given replaces one, None takes it out."""
    base = {
        "group_id": ["g"] * 4,
        "rollout_id": ["a", "b", "c", "d"],
        "reward": [1.0, 0.0, 0.0, 0.0],
        "response_ids": [[1, 2], [2, 3], [3], [1]],
    }
    return pa.table({name: values for name, values in (base | columns).items() if values is not None})


def with_every_column(rollouts: pa.Table) -> pa.Table:
    """Add whatever an estimator may need: every per-token column, stored text, and the parts of the reward."""
    lengths = [len(ids) for ids in rollouts["response_ids"].to_pylist()]
    columns = {name: [[0.25] * n for n in lengths] for name in TOKEN_COLUMNS}
    columns["response_tokens"] = [["a "] * n for n in lengths]
    columns["rewards"] = [{"exact": reward, "format": 0.5} for reward in rollouts["reward"].to_pylist()]
    for name, values in columns.items():
        rollouts = rollouts.append_column(name, pa.array(values))
    return rollouts


def write(path: Path, table: pa.Table, **options) -> Path:
    """Write a table as Parquet and return the path."""
    pq.write_table(table, path, **options)
    return path


def ktae(*arguments) -> int:
    """Run the command line in this process and return its exit status."""
    return run([str(argument) for argument in arguments])


def score(directory: Path, rollouts: pa.Table | list[Path], *options) -> pa.Table:
    """Score a table, or files, with the real command line and return the scored table."""
    inputs = [write(directory / "in.parquet", rollouts)] if isinstance(rollouts, pa.Table) else rollouts
    output = directory / "out.parquet"
    assert ktae("score", *inputs, "-o", output, "--force", *options) == 0
    return pq.read_table(output)


def tokens_of(directory: Path) -> pa.Table:
    """Return the token table beside the output of `score`."""
    return pq.read_table(directory / "out.tokens.parquet")


def refusal(capsys, directory: Path, *arguments) -> str:
    """Run a command that must refuse: exit 2, one or two lines on stderr, nothing written. Return the lines."""
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    status = ktae(*arguments)
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith(("error:", "try "))]
    assert status == 2, err
    assert 1 <= len(errors) <= 2, err
    assert "Traceback" not in err
    assert out == ""
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    return "\n".join(errors)


def command(*arguments, **options) -> subprocess.Popen:
    """Start the command line in a process of its own."""
    code = "import sys; from ktae_cli.cli.app import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], **options,
    )  # fmt: skip
