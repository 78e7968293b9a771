"""The pages of docs/ say what the program does: their examples run, their tables and links hold."""

import contextlib
import importlib.util
import io
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
import torch

from ktae_cli import catalogue, schema
from ktae_cli.batch import GroupBatch
from ktae_cli.cli.app import app, run
from ktae_cli.estimators import base
from ktae_cli.writers.scored import TOKEN_SCHEMA
from tests.helpers import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
EXAMPLES = (
    "quickstart",
    "file-schema",
    "estimators",
    "input-formats",
    "dumps",
    "exports",
    "how-it-works",
    "scaling",
    "comparing",
    "off-policy",
    "verify",
)
VARIES = re.compile(r"[\d.]+ s, [\d,]+ (?:tokens|rows) a second|(?<= shuffled ).*")
"""Times, and figures of a shuffle, which is another one in another version of polars."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    text: str


class Ran(NamedTuple):
    status: int
    lines: list[str]


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page(name))]


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ +(.+)$", FENCE.sub("", text), re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(text)}


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """A working folder with the sample data, both as a checkout and as the quickstart copies it."""
    (tmp_path / "sample_data").mkdir()
    for name in ("rollouts.parquet", "tokenizer.json"):
        shutil.copy(ROOT / "sample_data" / name, tmp_path / name)
        shutil.copy(ROOT / "sample_data" / name, tmp_path / "sample_data" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ktae(command: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(shlex.split(command)[1:])
    return Ran(status, (err.getvalue() + out.getvalue()).splitlines())


def python(code: str) -> Ran:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    return Ran(0, out.getvalue().splitlines())


def assert_printed(shown: str, printed: list[str]) -> None:
    """Every line that a page shows was printed, in this order; `…` stands for what it leaves out."""
    rest = iter([VARIES.sub("*", line.rstrip()) for line in printed])
    for line in shown.splitlines():
        line = VARIES.sub("*", line.rstrip())
        if line and line != "…":
            assert line in rest, f"the page shows {line!r}, which is not printed, or not there"


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_and_print_what_the_page_shows(sample, name):
    printed: list[str] = []
    for block in blocks(name):
        if block.language == "bash":
            commands = block.text.splitlines()
            assert all(line.startswith("ktae ") for line in commands)
            results = [ktae(line) for line in commands]
            assert [result.status for result in results] == [0] * len(commands), results
            printed = [line for result in results for line in result.lines]
        elif block.language == "python":
            printed = python(block.text).lines
        elif block.language == "console":
            assert_refused(block.text.splitlines())
        elif block.language == "text":
            assert_printed(block.text, printed)


def assert_refused(lines: list[str]) -> None:
    for command, shown in zip(lines[::2], lines[1::2], strict=True):
        result = ktae(command.removeprefix("$ "))
        assert (result.status, result.lines[-1]) == (2, shown)


def test_a_page_that_shows_what_is_not_printed_fails():
    assert_printed("a\n…\n0.1 s, 5 tokens a second\n", ["a", "b", "2.0 s, 1,234 tokens a second"])
    with pytest.raises(AssertionError):
        assert_printed("a\nb\n", ["b", "a"])


def test_quickstart_runs_every_command():
    lines = [line for block in blocks("quickstart") if block.language == "bash" for line in block.text.splitlines()]
    assert {line.split()[1] for line in lines} == {str(command.name) for command in app.registered_commands}


@pytest.fixture
def new_estimator(tmp_path, monkeypatch):
    """The example of the page as a file of a folder that holds the project's own estimators too."""
    folder = tmp_path / "estimators"
    shutil.copytree(ROOT / "ktae_cli" / "estimators", folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = page("adding-an-estimator")
    name = re.search(r"`ktae_cli/estimators/(\w+)\.py`", text)[1]
    code = next(block.text for block in blocks("adding-an-estimator") if block.language == "python")
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"ktae_cli.estimators.{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    caches = (catalogue._names, catalogue._declarations, base.load)
    monkeypatch.setattr(catalogue, "_ROOT", tmp_path)
    monkeypatch.setitem(sys.modules, f"ktae_cli.estimators.{name}", module)
    for cache in caches:
        cache.cache_clear()
    yield name
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def test_the_example_estimator_is_found_and_runs(new_estimator):
    declared = catalogue.declaration("estimators", new_estimator)
    assert new_estimator in catalogue.names("estimators")
    assert (declared.needs, declared.level, declared.scope) == (("reward",), "rollout", "group")
    assert declared.summary and list(declared.parameters) == ["power"]
    rewards = torch.tensor([1, 0, 0, 0, 1, 1, 0.5], dtype=torch.float64)
    batch = GroupBatch(
        token_ids=torch.arange(7),
        offsets=torch.arange(8),
        rewards=rewards,
        correct=(rewards > 0).to(torch.int8),
        group_index=torch.tensor([0, 0, 0, 0, 1, 1, 2]),
    )
    plain = base.estimate(f"{new_estimator}(power=2)", batch).advantages
    assert plain.tolist() == pytest.approx([0.75 * 0.75**2, *[-0.25 * 0.75**2] * 3, 0, 0, 0])
    shifted = base.estimate(f"ktae(base={new_estimator}(power=2))", batch)
    assert (shifted.advantages - shifted.columns["key_weight"]).tolist() == pytest.approx(plain.tolist())


def test_command_lines_of_the_page_on_estimators_are_true(new_estimator, sample):
    lines = next(b.text for b in blocks("adding-an-estimator") if b.language == "sh").splitlines()
    assert [ktae(line).status for line in lines] == [0] * len(lines)


def documented(text: str, name: str) -> bool:
    return re.search(rf"`(?:[^`\n]*[^\w`])?{name}(?!\w)[^`\n]*`", text) is not None or f"`{name}`" in headings(text)


@pytest.mark.parametrize("command", [str(command.name) for command in app.registered_commands])
def test_every_command_is_documented(command):
    assert f"ktae {command}" in headings(page("cli"))
    assert documented(page("how-it-works"), f"ktae {command}")


@pytest.mark.parametrize("name", catalogue.names("estimators"))
def test_every_estimator_has_a_section_with_its_parameters(name):
    text = page("estimators")
    assert f"`{name}`" in headings(text)
    absent = [p for p in catalogue.declaration("estimators", name).parameters if not documented(text, p)]
    assert absent == []


@pytest.mark.parametrize("name", catalogue.names("readers"))
def test_every_reader_is_documented(name):
    assert documented(page("input-formats") + page("dumps"), name)


@pytest.mark.parametrize("name", catalogue.names("exports"))
def test_every_export_is_documented(name):
    assert f"`{name}`" in headings(page("exports"))
    assert any(re.search(rf"--to '?{name}\b", block.text) for block in blocks("exports"))


def test_every_module_stands_in_the_map():
    package = ROOT / "ktae_cli"
    modules = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if path.name != "__init__.py"}
    # one file a format, one file a rule: pages of their own name them
    modules -= {f"{kind}/{name}.py" for kind in ("readers", "checks", "exports") for name in catalogue.names(kind)}
    modules |= {"readers/parquet.py"}
    table = page("how-it-works").partition("## The map")[2]
    assert set(re.findall(r"^\|[^|]*\| `([\w/]+\.py)` \|", table, re.MULTILINE)) == modules


def test_the_table_of_canonical_columns_is_that_of_the_schema():
    expected = []
    for column in schema.COLUMNS:
        aliases = ", ".join(f"`{alias}`" for alias in column.aliases)
        expected.append(f"| `{column.name}` | `{column.dtype}` | {column.meaning} | {aliases}{' ' if aliases else ''}|")
    table = page("input-formats").partition("| column | type | meaning |")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == expected


def test_the_token_table_is_documented_column_by_column():
    table = page("file-schema").partition("## The token table")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| `(\w+)` \|", table, re.MULTILINE)
    found = [(name, dtype) for names, dtype in rows for name in re.findall(r"`(\w+)`", names)]
    names = {"float": "float32", "double": "float64"}
    assert found == [(field.name, names.get(str(field.type), str(field.type))) for field in TOKEN_SCHEMA]


def load_generator():
    spec = importlib.util.spec_from_file_location("_generate_cli", DOCS / "_generate_cli.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_page_is_fresh(capsys):
    assert load_generator().main(["--check"]) == 0


def test_a_stale_command_page_is_noticed(tmp_path, monkeypatch, capsys):
    generator = load_generator()
    monkeypatch.setattr(generator, "PAGE", tmp_path / "cli.md")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0 == generator.main(["--check"])
    fresh = generator.PAGE.read_text(encoding="utf-8")
    generator.PAGE.write_text(fresh.replace("--truncated", "--cut"), encoding="utf-8")
    assert generator.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    # laid out by another version of typer: the options are compared
    monkeypatch.setattr(generator, "made_with", lambda: "typer 99")
    assert not generator.is_fresh(fresh.replace("--truncated", "--cut"))
    assert generator.is_fresh(fresh.replace("  ", " "))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_hold_no_private_paths_and_few_kinds_of_blocks(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/home/|\.\./shared", text)
    assert max(map(len, FENCE.sub("", text).splitlines())) < 420
    languages = {language for language, _ in FENCE.findall(text)}
    assert languages <= {"bash", "sh", "text", "python", "py", "console"}  # py needs a trainer: not run here


def test_figures_on_chance_are_those_of_the_sample(sample):
    # the page prints its command; the shares are checked here without the seed of a shuffle
    assert ktae("ktae score rollouts.parquet -q").status == 0
    tokens = pl.read_parquet(Path("rollouts.scored.tokens.parquet"))
    large = tokens.filter(pl.col("key_weight").abs() > 0.99)
    assert round(large.select((pl.col("p_value") > 0.05).mean()).item(), 2) == 0.93
    assert "93% have p > 0.05" in page("estimators")
