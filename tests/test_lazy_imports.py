"""What only lists, explains or looks answers at once: it leaves torch, matplotlib, scipy and ray alone."""

import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.helpers import ROOT

HEAVY = {"torch", "matplotlib", "scipy", "ray", "sympy", "math_verify"}
SAMPLE = ROOT / "sample_data" / "rollouts.parquet"
MARK = "modules loaded:"
CODE = f"""
import sys
from ktae_cli.cli.app import run
status = run(sys.argv[1:])
print({MARK!r}, *sorted(sys.modules), file=sys.stderr)
sys.exit(status)
"""


class Done(NamedTuple):
    """What a command printed, and the heavy packages that it loaded."""

    stdout: str
    heavy: set[str]


def run_command(*arguments) -> Done:
    """Run a command in a process of its own; it must exit with 0."""
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    modules = done.stderr.splitlines()[-1]
    assert modules.startswith(MARK)
    return Done(done.stdout, HEAVY & {name.partition(".")[0] for name in modules.removeprefix(MARK).split()})


@pytest.fixture(scope="module")
def scoring(tmp_path_factory):
    """Score two groups of the sample; the file and what the command loaded."""
    path = tmp_path_factory.mktemp("scored") / "x.scored.parquet"
    return path, run_command("score", SAMPLE, "-o", path, "-n", "2", "-j", "1", "-q")


def test_the_check_fails_for_a_command_that_computes(scoring):
    path, done = scoring
    assert "torch" in done.heavy
    assert path.exists()


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("--help", "score"),
        ("--version", "ktae "),
        ("score --help", "--estimator"),
        ("highlight --help", "--rollout"),
        ("export --help", "--to"),
        ("verify --help", "--gold"),
        ("tokens --help", "--length-control"),
        ("list estimators", "ktae_paper"),
        ("explain ktae", "arXiv 2505.16826"),
        ("inspect SAMPLE", "72 groups"),
    ],
)
def test_a_command_that_computes_nothing_loads_nothing_heavy(command, printed):
    done = run_command(*[SAMPLE if word == "SAMPLE" else word for word in command.split()])
    assert printed in done.stdout
    assert done.heavy == set()


def test_highlight_loads_nothing_heavy(scoring):
    done = run_command("highlight", scoring[0], "--json")
    assert '"rollouts"' in done.stdout
    assert done.heavy == set()
    assert run_command("highlight", scoring[0]).heavy == set()


def test_verify_loads_nothing_heavy_and_leaves_sympy_to_its_workers(tmp_path):
    done = run_command("verify", SAMPLE, "-o", tmp_path / "x.parquet", "-n", "3", "--json", "-q")
    assert '"accuracy"' in done.stdout
    assert done.heavy == set()


@pytest.mark.parametrize("target", ["jsonl", "parquet"])
def test_export_loads_nothing_heavy(scoring, tmp_path, target):
    output = tmp_path / f"x.{target}"
    done = run_command("export", scoring[0], "--to", target, "-o", output)
    assert output.stat().st_size > 0
    assert done.heavy == set()


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, ktae_cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "ktae_cli.version" in done.stdout
    assert not {*HEAVY, "numpy", "pyarrow"} & set(done.stdout.split())
