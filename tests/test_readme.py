"""The README: its file tree is the tree, its Python runs, and its commands print what it shows."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```", README, re.DOTALL)


@pytest.fixture
def workplace(tmp_path):
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    return tmp_path


def test_tree_names_every_file_of_the_project():
    shown, folders = set(), []
    for line in blocks("text")[0].split("\n"):
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], line.split()[0]]
        if not folders[-1].endswith("/"):
            shown.add("".join(folders))
    there = {
        str(path.relative_to(ROOT))
        for top in ("ktae_cli", "sample_data", "benchmarks", "docs", "tests")
        for path in (ROOT / top).rglob("*")
        if path.is_file()
        and not {"__pycache__", "dumps"} & {*path.parts}
        and (path.name != "__init__.py" or path.stat().st_size)
    }
    assert there - shown == set()
    assert {name for name in shown if not (ROOT / name).exists()} == set()


def test_python_example_runs(workplace):
    (code,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=workplace,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "72 of 72 groups have right and wrong rollouts" in done.stdout


def test_commands_print_what_is_shown(workplace, monkeypatch, capfd):
    from ktae_cli.cli.app import run

    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for part in blocks("console")[0].split("$ ")[1:]:
        command, _, shown = part.partition("\n")
        assert run(shlex.split(command)[1:]) == 0
        captured = capfd.readouterr()
        printed = [line.rstrip() for line in (captured.out + captured.err).strip().split("\n")]
        expected = [line.rstrip() for line in shown.strip().split("\n")]
        timed = re.compile(r"^[\d.]+ s, [\d,]+ tokens a second$")
        assert [line for line in printed if not timed.match(line)] == [
            line for line in expected if not timed.match(line)
        ]
