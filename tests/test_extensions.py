"""Estimators from elsewhere: the page's file and package as a stranger writes them, and every way to get one wrong."""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from ktae_cli import catalogue
from ktae_cli.errors import KtaeError
from ktae_cli.estimators import base
from ktae_cli.extensions import installed_extensions, load_extension, split_files
from ktae_cli.schema import METADATA_KEY
from tests.helpers import ROOT
from tests.rollout_files import four, refusal, score, write
from tests.rollout_files import ktae as run_here

PAGE = ROOT / "docs" / "adding-an-estimator.md"
FILE = re.compile(r"^`([\w./-]+\.\w+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAMPLE = ROOT / "sample_data" / "rollouts.parquet"

HEAD = "import torch\nfrom ktae_cli.estimators.base import Estimate, centred, estimator\n\n\n"
DECLARED = '@estimator(needs=("reward",), level="rollout", scope="group")\n'
GOOD = (
    f"{HEAD}{DECLARED}def mine(batch, *, power: float = 1.0):\n"
    '    """Centre."""\n    return centred(batch, batch.rewards) * power\n'
)
TOKEN = '@estimator(needs=("reward",), level="token", scope="group", columns=("share",))\ndef mine(batch):\n'
PLACES = "place = torch.arange(len(batch.token_ids)) - batch.offsets[:-1].repeat_interleave(batch.lengths)"


class Done(NamedTuple):
    """What a process left: exit status, and lines on stdout and stderr."""

    status: int
    out: list[str]
    err: list[str]


def files_of_the_page() -> dict[str, str]:
    return dict(FILE.findall(PAGE.read_text(encoding="utf-8")))


def commands_of_the_page(section: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return [
        line
        for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def shell(command: str, folder: Path, *path: Path, **variables: str) -> Done:
    """Run a command line in a process of its own, with folders on Python's path."""
    known = {
        "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120,
        env=os.environ | known | variables,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.splitlines(), done.stderr.splitlines())


def assert_refused(done: Done, message: str) -> None:
    """Exit 2, one line of error, no traceback."""
    errors = [line for line in done.err if line.startswith("error:")]
    assert (done.status, len(errors), done.err[-1:]) == (2, 1, errors), done
    assert message in errors[0]


def estimators_of(path: Path) -> list[dict]:
    return json.loads(pq.ParquetFile(path).metadata.metadata[METADATA_KEY])["estimators"]


def declare(site: Path, package: str, *entries: str, version: str = "1.0") -> Path:
    """Install a distribution of entry points into a folder, as an installer leaves it."""
    folder = site / f"{package.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text("\n".join(["[ktae.estimators]", *entries, ""]))
    return site


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """The package of the page, as a project of its own."""
    folder = tmp_path_factory.mktemp("acme")
    for name in ("src/acme_credit/whitened.py", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(files_of_the_page()[name], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def site(project, tmp_path_factory) -> Path:
    """A folder into which pip has installed the package; without setuptools its files are laid out by hand."""
    site = tmp_path_factory.mktemp("site")
    if importlib.util.find_spec("setuptools") and importlib.util.find_spec("pip"):
        pip = "pip install -q --disable-pip-version-check --no-index --no-deps --no-build-isolation"
        done = shell(f"{sys.executable} -m {pip} --target {site} .", project)
        assert done.status == 0, done.err
    else:
        shutil.copytree(project / "src" / "acme_credit", site / "acme_credit")
        declare(site, "acme-credit", "step_whitened = acme_credit.whitened:step_whitened", version="1.2")
    assert (site / "acme_credit" / "whitened.py").is_file()
    return site


@pytest.fixture(scope="module")
def scored(site, tmp_path_factory) -> Path:
    """A folder in which the commands that the page shows for the package have run."""
    folder = tmp_path_factory.mktemp("scored")
    shutil.copy(SAMPLE, folder)
    for command in commands_of_the_page("A package of your own"):
        assert shell(command, folder, site).status == 0
    return folder


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test finds the estimators of its own files and packages, and none of another test."""

    def clear() -> None:
        installed_extensions.cache_clear()
        catalogue._read_extension.cache_clear()
        load_extension.cache_clear()
        base.load.cache_clear()

    monkeypatch.setattr(catalogue, "_from_files", {})
    clear()
    yield
    clear()


def write_file(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# --- a package ------------------------------------------------------------------------------------------------------


def test_an_installed_package_is_listed_with_its_source_and_not_imported(site, tmp_path):
    write_file(tmp_path, GOOD.replace("import torch\n", "import no_such_module\n"), "acme_raises.py")
    declare(tmp_path, "acme-raises", "mine = acme_raises:mine")
    done = shell("ktae list estimators", tmp_path, site, tmp_path)
    assert (done.status, done.err) == (0, [])
    summary = "Give every token of a rollout the z-score of its reward among all rollouts of its step."
    line = next(line for line in done.out if line.startswith("step_whitened "))
    assert line.split(maxsplit=1)[1] == f"{summary} (package acme-credit 1.2)"
    assert any(re.match(r"mine +Centre\. \(package acme-raises 1\.0\)$", line) for line in done.out)
    assert shell("ktae explain mine", tmp_path, tmp_path).out[0] == "mine (estimator of package acme-raises 1.0)"
    refused = shell(f"ktae score {SAMPLE} -e mine -o x.parquet", tmp_path, tmp_path)
    assert_refused(refused, "estimator 'mine' of package acme-raises cannot be imported: ModuleNotFoundError")
    assert not (tmp_path / "x.parquet").exists()


def test_listing_a_package_that_imports_torch_leaves_torch_alone(site, tmp_path):
    show = "print('torch' in sys.modules)"
    write_file(tmp_path, f"import sys\nfrom ktae_cli.cli.app import run\nrun(sys.argv[1:])\n{show}\n", "run.py")
    done = shell(f"{sys.executable} run.py list estimators", tmp_path, site)
    assert any("step_whitened" in line for line in done.out) and done.out[-1] == "False"
    write_file(tmp_path, f"import sys, acme_credit.whitened\n{show}\n", "import.py")
    assert shell(f"{sys.executable} import.py", tmp_path, site).out == ["True"]


def test_list_as_json_names_the_source(site, tmp_path):
    found = {item["name"]: item for item in json.loads(shell("ktae list estimators --json", tmp_path, site).out[0])}
    assert found["step_whitened"]["source"] == "package acme-credit 1.2"
    assert (found["step_whitened"]["needs"], found["grpo"]["source"]) == (["reward"], "")


def test_explain_shows_what_a_package_declares(site, tmp_path):
    out = shell("ktae explain step_whitened", tmp_path, site).out
    assert out[0] == "step_whitened (estimator of package acme-credit 1.2)"
    for line in (
        "A_i = (R_i - mean R) / (std R + eps), mean and std (divisor N - 1) over the N rollouts of the step.",
        "needs: reward",
        "level: rollout; scope: batch (statistics of all rollouts of a step, read beforehand)",
        "  eps=1e-06  (float)",
    ):
        assert line in out
    assert sum(line.startswith("  aggregation=none") for line in out) == 1


def test_scope_batch_of_a_package_pools_over_the_groups_of_a_step(scored):
    table = pq.read_table(scored / "whitened.scored.parquet")
    rewards, steps = table["reward"].to_numpy(), table["step"].to_numpy()

    def whitened(eps: float) -> list[float]:
        out = np.zeros(len(rewards))
        for step in np.unique(steps):
            own = rewards[steps == step]
            out[steps == step] = (own - own.mean()) / (own.std(ddof=1) + eps)
        return out.tolist()

    assert [row[0] for row in table["advantages"].to_pylist()] == pytest.approx(whitened(0.001), rel=1e-6)
    shifted, weight = (table[name].to_pylist() for name in ("adv_ktae__base_step_whitened", "key_weight"))
    base = [a[0] - k[0] for a, k in zip(shifted, weight, strict=True)]
    assert base == pytest.approx(whitened(1e-6), abs=2e-6)


def test_metadata_spells_out_an_estimator_of_a_package(scored):
    own, shifted = estimators_of(scored / "whitened.scored.parquet")
    assert (own["spec"], own["sources"]) == ("step_whitened(eps=0.001)", {"step_whitened": "package acme-credit 1.2"})
    assert (own["parameters"]["eps"], own["scope"]) == (0.001, "batch")
    assert own["columns"] == ["advantages", "adv_step_whitened__eps_0p001"]
    assert (shifted["spec"], shifted["scope"]) == ("ktae(base=step_whitened)", "batch")
    assert shifted["sources"] == own["sources"]


def test_a_second_run_writes_the_same_bytes(scored, site):
    (command,) = (c for c in commands_of_the_page("A package of your own") if " score " in c)
    again = command.replace("whitened.scored", "again.scored")
    assert shell(f"{again} -j 1", scored, site).status == 0
    names = [f"{name}.scored{kind}.parquet" for name in ("whitened", "again") for kind in ("", ".tokens")]
    first, tokens, second, more_tokens = (pq.read_table(scored / name) for name in names)
    assert first.equals(second) and tokens.equals(more_tokens)


def test_a_scored_file_is_read_without_the_package(scored, tmp_path, capsys):
    scored = scored / "whitened.scored.parquet"
    message = refusal(capsys, tmp_path, "score", SAMPLE, "-e", "step_whitened", "-o", tmp_path / "no.parquet")
    assert "unknown estimator 'step_whitened'" in message
    assert run_here("export", scored, "--to", "jsonl", "-o", tmp_path / "x.jsonl") == 0
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 1152
    chosen = ["--advantages", "adv_step_whitened__eps_0p001"]
    assert run_here("export", scored, "--to", "parquet", "-o", tmp_path / "y.parquet", *chosen) == 0
    written, own = (pq.read_table(path)["advantages"].to_pylist() for path in (tmp_path / "y.parquet", scored))
    assert [row[-1] for row in written] == [row[-1] for row in own]
    assert run_here("highlight", scored, "--by", "adv_step_whitened__eps_0p001") == 0
    capsys.readouterr()
    assert run_here("inspect", scored, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["scored_with"] == ["step_whitened(eps=0.001)", "ktae(base=step_whitened)"]
    assert "step_whitened" not in facts["estimators"]
    assert run_here("score", scored, "-e", "grpo", "-o", tmp_path / "grpo.parquet") == 0
    assert [name for name in pq.read_schema(tmp_path / "grpo.parquet").names if "whitened" in name] == []


def test_inspect_tells_what_an_estimator_of_a_package_needs(tmp_path, site):
    text = GOOD.replace('needs=("reward",)', 'needs=("reward", "ref_log_probs")')
    write_file(tmp_path, text, "acme_ref.py")
    declare(tmp_path, "acme-ref", "mine = acme_ref:mine", "broken = acme_ref:broken")
    done = shell(f"ktae inspect {SAMPLE}", tmp_path, site, tmp_path)
    lines = [line.split(maxsplit=1) for line in done.out]
    assert ["mine", "needs ref_log_probs"] in lines and ["step_whitened", "ready"] in lines
    assert not any(line[:1] == ["broken"] for line in lines)


def test_an_editable_install_is_found(project, tmp_path):
    site = declare(tmp_path / "site", "acme-credit", "step_whitened = acme_credit.whitened:step_whitened")
    (site / "__editable__.acme_credit.pth").write_text(f"{project / 'src'}\n")
    write_file(tmp_path, f"import site\nsite.addsitedir({str(site)!r})\n", "sitecustomize.py")
    out = shell("ktae list estimators", tmp_path, tmp_path).out
    assert any(line.startswith("step_whitened ") for line in out)


def test_an_editable_install_with_a_finder_is_found(project, tmp_path):
    site = declare(tmp_path / "site", "acme-credit", "step_whitened = acme_credit.whitened:step_whitened")
    package = project / "src" / "acme_credit"
    finder = (
        "import sys\nfrom importlib.machinery import ModuleSpec, PathFinder\n\n\nclass Finder:\n"
        "    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{str(package.parent)!r}]) if name == 'acme_credit' else None\n\n\n"
        "sys.meta_path.append(Finder)\n"
    )
    write_file(site, finder, "acme_finder.py")
    (site / "acme.pth").write_text("import acme_finder\n")
    write_file(tmp_path, f"import site\nsite.addsitedir({str(site)!r})\n", "sitecustomize.py")
    out = shell("ktae explain step_whitened", tmp_path, tmp_path).out
    assert out[0] == "step_whitened (estimator of package acme-credit 1.0)"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("grpo = acme_mine:mine", "estimator 'grpo' of package acme cannot be used: ktae has one of that name"),
        ("mine-too = acme_mine:mine", "its name has other characters than letters, digits and _"),
        ("other = acme_mine", "its entry point is module:function, found 'acme_mine'"),
        ("other = acme_absent.mine:mine", "there is no source file of the module 'acme_absent.mine'"),
        ("other = acme_mine.deeper:mine", "there is no source file of the module 'acme_mine.deeper'"),
        ("other = acme_mine:other", "no function other with @estimator(...) above it; found mine"),
        ("other = acme_torn:other", "SyntaxError: '(' was never closed (acme_torn.py, line 1)"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_a_warning_of_the_list(tmp_path, capsys, monkeypatch, entry, reason):
    write_file(tmp_path, GOOD, "acme_mine.py")
    write_file(tmp_path, "def other(", "acme_torn.py")
    declare(tmp_path, "acme", "mine = acme_mine:mine", entry)
    monkeypatch.syspath_prepend(tmp_path)
    assert run_here("list", "estimators") == 0
    out, err = capsys.readouterr()
    assert err.startswith("warning: ") and reason in err and err.count("\n") == 1
    names = [line.split()[0] for line in out.splitlines()]
    assert "mine" in names and names.count("grpo") == 1 and not {"other", "mine-too"} & set(names)
    assert run_here("explain", "ktae") == 0
    if entry.startswith("other"):
        assert reason in refusal(capsys, tmp_path, "explain", "other")


def test_a_name_of_the_project_stays_its_own(tmp_path, monkeypatch):
    write_file(tmp_path, GOOD.replace("def mine", "def grpo"), "acme_grpo.py")
    declare(tmp_path, "acme", "grpo = acme_grpo:grpo")
    monkeypatch.syspath_prepend(tmp_path)
    assert catalogue.declaration("estimators", "grpo").source == ""
    assert base.load("grpo")[0].__module__ == "ktae_cli.estimators.grpo"


def test_two_packages_with_one_name_are_refused(tmp_path, capsys, monkeypatch):
    write_file(tmp_path, GOOD, "acme_mine.py")
    declare(tmp_path, "acme", "mine = acme_mine:mine")
    declare(tmp_path, "bolt", "mine = acme_mine:mine")
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" not in catalogue.names("estimators")
    message = refusal(capsys, tmp_path, "explain", "mine")
    assert re.search(
        r"package (acme and package bolt|bolt and package acme) both declare the estimator 'mine'", message
    )


def test_a_damaged_list_of_entry_points_is_named(tmp_path, capsys, monkeypatch):
    declare(tmp_path, "acme", "no sign of an entry")
    monkeypatch.syspath_prepend(tmp_path)
    assert "an entry_points.txt is damaged" in refusal(capsys, tmp_path, "list", "estimators")
    assert run_here("explain", "grpo") == 2  # it looks at all names
    assert score(tmp_path, four(), "-e", "grpo").num_rows == 4


def test_commands_that_ask_for_no_estimator_from_elsewhere_scan_no_packages(tmp_path):
    code = (
        "import sys\nfrom ktae_cli import extensions\nfrom ktae_cli.cli.app import run\n"
        "extensions.metadata = None\nsys.exit(run(sys.argv[1:]))"
    )
    path = write_file(tmp_path, code, "run.py")
    for command in (
        "--help",
        "list readers",
        f"score {SAMPLE} -n 1 -e ktae -o {tmp_path / 'x.parquet'}",
    ):
        assert shell(f"{sys.executable} {path} {command}", ROOT).status == 0, command
    assert shell(f"{sys.executable} {path} list estimators", ROOT).status == 2


# --- a file ---------------------------------------------------------------------------------------------------------


def test_the_file_of_the_page_runs_as_shown(tmp_path):
    text = files_of_the_page()["credit.py"]
    assert len(text.splitlines()) <= 22
    write_file(tmp_path, text, "credit.py")
    shutil.copy(SAMPLE, tmp_path)
    explained, *rest = (shell(command, tmp_path) for command in commands_of_the_page("A file of your own"))
    assert [explained.status, *(done.status for done in rest)] == [0, 0, 0], rest
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert explained.out[0] == f"by_entropy (estimator of file credit.py, sha256 {digest})"
    assert "  with any gain but the default: old_entropy too" in explained.out
    plain, gain = (pq.read_table(tmp_path / f"{name}.scored.parquet") for name in ("plain", "gain"))
    values = [table["advantages"].combine_chunks().values.to_numpy() for table in (plain, gain)]
    entropy = gain["old_entropy"].combine_chunks().values.to_numpy()
    assert values[1].tolist() == pytest.approx((values[0] * (1 + 0.5 * entropy)).tolist(), rel=1e-5, abs=1e-7)
    rewards = plain["reward"].to_numpy().reshape(-1, 16)
    centred = (rewards - rewards.mean(1, keepdims=True)).ravel().tolist()
    assert [row[0] for row in plain["advantages"].to_pylist()] == pytest.approx(centred)
    weights = gain["loss_weight_by_entropy__aggregation_token_mean__gain_0p5"].combine_chunks().values.to_numpy()
    assert weights.sum() == pytest.approx(len(set(plain["step"].to_pylist())), rel=1e-5)
    (written,) = estimators_of(tmp_path / "gain.scored.parquet")
    assert written["sources"] == {"by_entropy": f"file credit.py, sha256 {digest}"}
    assert str(tmp_path) not in json.dumps(written)
    assert not (tmp_path / "__pycache__").exists()


def test_further_needs_are_those_of_the_parameters_given(tmp_path, capsys):
    path = write_file(tmp_path, files_of_the_page()["credit.py"], "credit.py")
    assert score(tmp_path, four(), "-e", f"{path}:by_entropy")["advantages"].to_pylist()[0] == [0.75, 0.75]
    rollouts = write(tmp_path / "in.parquet", four())
    message = refusal(
        capsys, tmp_path, "score", rollouts, "-e", f"{path}:by_entropy(gain=1)", "-o", tmp_path / "x.parquet"
    )
    assert "by_entropy(gain=1.0) needs old_entropy, which the input does not have" in message


@pytest.mark.parametrize("folder", ["plain", "with a blank", "run (2)", "a=b,c+d", "déjà/vu", "x.py"])
def test_a_path_may_hold_any_character(tmp_path, monkeypatch, folder):
    path = write_file(tmp_path / folder, GOOD)
    monkeypatch.chdir(tmp_path)
    for shown in (path, f"{folder}/mine.py", f"./{folder}/mine.py"):
        assert score(tmp_path, four(), "-e", f"{shown}:mine(power=2)")["advantages"].to_pylist()[1] == [-0.5, -0.5]


def test_a_path_may_begin_with_the_home_directory(tmp_path, monkeypatch):
    write_file(tmp_path, GOOD)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert score(tmp_path, four(), "-e", "~/mine.py:mine")["advantages"].to_pylist()[2] == [-0.25]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ktae", ("ktae", [])),
        ("ktae(base=grpo(eps=1),top=0.5)", ("ktae(base=grpo(eps=1),top=0.5)", [])),
        ("a.py:b", ("b", [("a.py", "b")])),
        ("a (1)/x.py:b(c=d.py:e(f=1))", ("b(c=e(f=1))", [("a (1)/x.py", "b"), ("d.py", "e")])),
        ("ktae( base = a b/x.py:mine )", ("ktae( base =mine )", [("a b/x.py", "mine")])),
        ("C:\\x.py:b", ("b", [("C:\\x.py", "b")])),
    ],
)
def test_paths_are_taken_out_of_a_spec(text, expected):
    assert split_files(text) == expected


def test_a_file_is_the_base_of_another_estimator(tmp_path):
    path = write_file(tmp_path, GOOD)
    table = score(tmp_path, four(), "-e", f"ktae(base={path}:mine(power=2))", "-e", "mine")
    assert table["adv_mine"].to_pylist()[0] == [0.75, 0.75]
    shift = [a - k for a, k in zip(table["advantages"].to_pylist()[0], table["key_weight"].to_pylist()[0], strict=True)]
    assert shift == pytest.approx([1.5, 1.5])


def test_another_estimator_is_the_base_of_a_file(tmp_path):
    text = (
        f"{HEAD}from ktae_cli.estimators.base import rollout_advantages\nfrom ktae_cli.names import Spec\n\n\n"
        f'{DECLARED}def mine(batch, *, base: Spec = "grpo(eps=0.0001)"):\n'
        "    return 2 * rollout_advantages(base, batch)\n"
    )
    path = write_file(tmp_path, text)
    found = score(tmp_path, four(), "-e", f"{path}:mine", "-e", "mine(base=rloo)")
    assert found["adv_mine"].to_pylist()[0] == pytest.approx([2 * 0.75 / 0.5001] * 2)
    assert found["adv_mine__base_rloo"].to_pylist()[0] == [2.0, 2.0]


def test_a_file_runs_once_for_all_its_specs(tmp_path):
    log = tmp_path / "log"
    path = write_file(tmp_path, f"open({str(log)!r}, 'a').write('x')\n{GOOD}")
    score(tmp_path, four(), "-e", f"{path}:mine", "-e", "mine(power=2)", "-e", "ktae(base=mine)")
    assert log.read_text() == "x"


def test_columns_of_a_file_are_written_under_its_name(tmp_path):
    body = (
        '@estimator(needs=("reward",), level="token", scope="group", columns=("share", "mask"))\ndef mine(batch):\n'
        f"    {PLACES}\n    return Estimate(torch.ones(len(place)), {{'share': place.float(), 'mask': place > 0}})\n"
    )
    table = score(tmp_path, four(), "-e", f"{write_file(tmp_path, HEAD + body)}:mine")
    assert table["share_mine"].to_pylist() == [[0, 1], [0, 1], [0], [0]]
    assert table["mask_mine"].to_pylist() == [[False, True], [False, True], [False], [False]]


def test_a_method_of_a_file_that_leaves_rollouts_out_has_no_loss_weight_there(tmp_path):
    text = f"{GOOD}\n\nmine.in_loss = lambda batch, power=1.0: batch.rewards > 0\n"
    path = write_file(tmp_path, text)
    table = score(tmp_path, four(), "-e", f"{path}:mine(aggregation=token_mean)")
    assert table["loss_weight_mine__aggregation_token_mean"].to_pylist() == [[0.5, 0.5], [0, 0], [0], [0]]


def test_a_decorator_of_torch_may_stand_below(tmp_path):
    path = write_file(tmp_path, GOOD.replace("def mine", "@torch.no_grad()\ndef mine"))
    assert score(tmp_path, four(), "-e", f"{path}:mine")["advantages"].to_pylist()[2] == [-0.25]


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = write_file(tmp_path, "\ufeff" + GOOD)
    assert score(tmp_path, four(), "-e", f"{path}:mine")["advantages"].to_pylist()[2] == [-0.25]


def test_a_file_that_changes_within_a_process_is_refused(tmp_path, capsys):
    path = write_file(tmp_path, GOOD)
    score(tmp_path, four(), "-e", f"{path}:mine")
    write_file(tmp_path, GOOD.replace("* power", "* 3"))
    message = refusal(
        capsys, tmp_path, "score", tmp_path / "in.parquet", "-e", f"{path}:mine", "-o", tmp_path / "x.parquet"
    )
    assert "file mine.py has changed since this process read it" in message


def test_a_file_may_be_corrected_after_an_error(tmp_path, capsys):
    path = write_file(tmp_path, GOOD.replace("float = 1.0", "float"))
    assert "has no default" in refusal(capsys, tmp_path, "explain", f"{path}:mine")
    write_file(tmp_path, GOOD)
    assert run_here("explain", f"{path}:mine") == 0


# --- what is wrong in a file ----------------------------------------------------------------------------------------


def signature(text: str, decorator: str = DECLARED) -> str:
    return f"{HEAD}{decorator}def mine{text}:\n    return centred(batch, batch.rewards)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def mine(:", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("x = 1\0", "null bytes"),
        (HEAD, "no function mine with @estimator(...) above it; docs/adding-an-estimator.md shows one"),
        ("def mine(batch):\n    return 1\n", "no function mine with @estimator(...) above it; docs"),
        (GOOD.replace("def mine", "def other"), "no function mine with @estimator(...) above it; found other"),
        (GOOD + GOOD.removeprefix(HEAD), "mine is defined twice, at lines 6 and 10"),
        (signature("(batch, power=1.0)"), "line 6: parameter 'power' stands before the *; parameters are keyword-only"),
        (signature("(batch, *, power: float)"), "line 6: parameter 'power' has no default"),
        (
            signature("(batch, *, power=1.0)"),
            "parameter 'power' is annotated as one of float, int, bool, Spec, Ids, Numbers",
        ),
        (signature("(batch, *, power: list = 1)"), "parameter 'power' is annotated as one of"),
        (
            signature("(batch, *, power: float = torch.pi)"),
            "line 6: the default of 'power' is not a literal but torch.pi",
        ),
        (signature("(batch, *, power: int = 1.5)"), "mine: power takes a whole number of at most 32 bits, found 1.5"),
        (signature("(batch, *, how: Literal['a', 'b'] = 'c')"), "mine: how takes a or b, found c"),
        (signature("(batch, *, base: Spec = 'grpo(eps=1e-4)')"), "'grpo(eps=1e-4)'; write it as 'grpo(eps=0.0001)'"),
        (signature("(batch, *, base: Spec = 'mine')"), "unknown estimator 'mine'"),
        (signature("(batch, *, aggregation: int = 1)"), "parameter 'aggregation': every estimator has it"),
        (signature("(batch, **options)"), "mine takes *args or **kwargs"),
        (signature("(batch, pooled)"), "with scope 'group' the signature is mine(batch, *, …)"),
        (
            signature("(batch)", DECLARED.replace("group", "batch")),
            "with scope 'batch' the signature is mine(batch, pooled, *, …)",
        ),
        (
            signature("(batch)", DECLARED.replace('("reward",)', '("reward")')),
            "needs is a tuple of columns, as in (\"reward\",); found 'reward'",
        ),
        (
            signature("(batch)", DECLARED.replace('"reward"', '"rewrad"')),
            "needs has 'rewrad' (nearest: reward); it may have: response_ids, reward, ",
        ),
        (
            signature("(batch)", DECLARED.replace('("reward",)', "NEEDS")),
            "needs of @estimator is not a literal but NEEDS",
        ),
        (signature("(batch)", DECLARED.replace("rollout", "rollouts")), "level is rollout or token, found 'rollouts'"),
        (signature("(batch)", DECLARED.replace("group", "step")), "scope is group or batch, found 'step'"),
        (signature("(batch)", "@estimator(needs=(), level='token')\n"), "line 5: @estimator without scope"),
        (signature("(batch)", DECLARED.replace("needs", "need")), "line 5: @estimator without needs"),
        (signature("(batch)", DECLARED.replace(")\n", ", cost=1)\n")), "line 5: @estimator with cost; it takes needs"),
        (signature("(batch)", DECLARED.replace(")\n", ", columns=('a',))\n")), 'they go with level "token"'),
        (signature("(batch)", DECLARED.replace(")\n", ", columns='a')\n")), "columns is a tuple of names"),
        (
            signature("(batch)", DECLARED.replace(")\n", ", needs_when={'x': ('entropy',)})\n")),
            "the condition 'x'; it begins with",
        ),
    ],
)
def test_a_declaration_that_cannot_be_read_is_one_line(tmp_path, capsys, text, message):
    path = write_file(tmp_path, text)
    found = refusal(capsys, tmp_path, "explain", f"{path}:mine")
    assert message in found and found.startswith("error: estimator 'mine' of file mine.py: ")
    rollouts = write(tmp_path / "in.parquet", four())
    assert message in refusal(capsys, tmp_path, "score", rollouts, "-e", f"{path}:mine", "-o", tmp_path / "x.parquet")


def test_default_bases_in_a_circle_are_refused(tmp_path, capsys, monkeypatch):
    first = signature("(batch, *, base: Spec = 'bolt')").replace("def mine", "def acme")
    write_file(tmp_path, first, "acme_circle.py")
    write_file(tmp_path, first.replace("'bolt'", "'acme'").replace("def acme", "def bolt"), "bolt_circle.py")
    declare(tmp_path, "acme", "acme = acme_circle:acme", "bolt = bolt_circle:bolt")
    monkeypatch.syspath_prepend(tmp_path)
    assert "its default bases go in a circle" in refusal(capsys, tmp_path, "explain", "acme")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{folder}/mine.py", "mine.py: name the function of the file too, as in"),
        ("{folder}/mine.py:", "name the function of the file too"),
        ("{folder}/mine.py(power=2)", "name the function of the file too"),
        ("{folder}/none.py:mine", "none.py: No such file or directory; an estimator of your own is named as"),
        ("{folder}/folder.py:mine", "folder.py: Is a directory"),
        ("ktae(base={folder}/none.py:mine)", "none.py: No such file or directory"),
        ("{folder}/mine.py:mine(pwoer=2)", "unknown parameter of mine: 'pwoer' (nearest: power)"),
        ("{folder}/mine.py:mine(power=true)", "mine: power takes a number up to 1e30, found true"),
        ("{folder}/grpo.py:grpo", "file grpo.py: 'grpo' is the name of an estimator of ktae; give yours another name"),
        ("ktae(base={folder}/token.py:token)", "token gives one advantage per token; a base gives one per rollout"),
    ],
)
def test_a_file_that_cannot_be_taken_is_one_line(tmp_path, capsys, text, message):
    write_file(tmp_path, GOOD)
    write_file(tmp_path, GOOD.replace("def mine", "def grpo"), "grpo.py")
    write_file(tmp_path, HEAD + TOKEN.replace("def mine", "def token") + "    return None\n", "token.py")
    (tmp_path / "folder.py").mkdir()
    rollouts = write(tmp_path / "in.parquet", four())
    assert message in refusal(capsys, tmp_path, "score", rollouts, "-e", text.format(folder=tmp_path))


def test_two_files_with_one_name_are_refused(tmp_path, capsys):
    first, second = write_file(tmp_path, GOOD), write_file(tmp_path / "other", GOOD)
    rollouts = write(tmp_path / "in.parquet", four())
    message = refusal(capsys, tmp_path, "score", rollouts, "-e", f"{first}:mine", "-e", f"{second}:mine(power=2)")
    assert f"{second}: {first} has an estimator 'mine' too; give one another name" in message


def test_a_file_does_not_take_the_name_of_an_installed_package(tmp_path, capsys, monkeypatch):
    write_file(tmp_path, GOOD, "acme_mine.py")
    declare(tmp_path, "acme", "mine = acme_mine:mine")
    monkeypatch.syspath_prepend(tmp_path)
    message = refusal(capsys, tmp_path, "explain", f"{tmp_path / 'acme_mine.py'}:mine")
    assert "'mine' is the name of an estimator of the installed package acme" in message


ONES = "torch.ones(len(batch.token_ids))"
POOLED = signature("(batch, pooled)", DECLARED.replace("group", "batch"))
EXIT = "import sys\n{0}sys.exit(0)\n{0}"


def doing(statement: str) -> str:
    return signature("(batch)").replace("return", f"{statement}\n    return")


def giving(result: str) -> str:
    return f"{HEAD}{DECLARED}def mine(batch):\n    return {result}\n"


def per_token(advantages: str, columns: str = f"{{'share': {ONES}}}") -> str:
    return f"{HEAD}{TOKEN}    return Estimate({advantages}, {columns})\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"import no_such\n{GOOD}", "cannot be imported: ModuleNotFoundError: No module named 'no_such' (line 1)"),
        (EXIT.format("") + GOOD, "cannot be imported: SystemExit: 0 (line 2)"),
        (f"{GOOD}1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (line 9)"),
        (f"{GOOD}mine = 3\n", "@estimator(...) of ktae_cli.estimators.base is not the outermost decorator"),
        (POOLED, 'scope "batch" needs mine.pool = gather'),
        (f"{POOLED}mine.pool = lambda batch, known: 3\n", "pools a int; expected an object with merge(other)"),
        (f"{POOLED}mine.pool = lambda batch: 3\n", "failed: TypeError"),
        (doing(EXIT.format("    ")), "failed: SystemExit: 0 (line 8)"),
        (doing("1 / 0"), "failed: ZeroDivisionError: division by zero (line 7)"),
        (doing("batch.rewards.mul_(2)"), "changes its input in place"),
        (giving("None"), "returns advantages: nothing; expected a tensor of shape (2,)"),
        (giving("[1.0]"), "returns advantages: a list; expected a tensor"),
        (giving("batch.rewards[:1]"), "a tensor of shape (1,) and torch.float64"),
        (giving("batch.rewards > 0"), "a tensor of shape (2,) and torch.bool; expected"),
        (giving("batch.rewards.clone().requires_grad_()"), "with a gradient; compute it under torch.no_grad()"),
        (f"{HEAD}{TOKEN}    return batch.rewards\n", "is of level token and returns a tensor of shape (2,)"),
        (per_token(ONES, "{}"), "returns advantages; it declares advantages, share"),
        (per_token(ONES, f"{{'shares': {ONES}}}"), "returns advantages, shares; it declares advantages, share"),
        (per_token(f"{ONES}.double()"), "and torch.float64; expected a tensor of shape (2,) and torch.float32"),
        (per_token(ONES, f"{{'share': {ONES} > 0}}"), "returns share: a tensor of shape (2,) and torch.bool"),
        (per_token(f"{ONES}[:1]"), "returns advantages: a tensor of shape (1,)"),
        (per_token(f"{ONES} / 0"), "not finite"),
    ],
)
def test_an_estimator_that_fails_is_one_line(tmp_path, capsys, text, message):
    path = write_file(tmp_path, text)
    rollouts = write(tmp_path / "in.parquet", four())
    found = refusal(capsys, tmp_path, "score", rollouts, "-e", f"{path}:mine", "-o", tmp_path / "x.parquet")
    assert message in found
    assert "mine" in found and str(tmp_path) not in found


def test_a_failure_on_real_rollouts_only_is_one_line_and_leaves_no_file(tmp_path):
    write_file(tmp_path, f"{HEAD}{TOKEN}    return Estimate(batch.rewards.float(), {{'share': {ONES}}})\n")
    done = shell(f"ktae score {SAMPLE} -e mine.py:mine -o x.parquet", tmp_path)
    assert_refused(done, "estimator 'mine' of file mine.py returns advantages: a tensor of shape (")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_value_off_the_mask_is_refused(tmp_path, capsys):
    path = write_file(tmp_path, f"{HEAD}{TOKEN}    return Estimate({ONES}, {{'share': {ONES}}})\n")
    masked = four(response_mask=[[True, False], [True, True], [True], [True]])
    rollouts = write(tmp_path / "in.parquet", masked)
    found = refusal(capsys, tmp_path, "score", rollouts, "-e", f"{path}:mine", "-o", tmp_path / "x.parquet")
    assert "estimator 'mine' of file mine.py returns advantages that are not 0 where response_mask is false" in found


def test_a_lack_of_memory_stays_one(tmp_path):
    path = write_file(tmp_path, signature("(batch)").replace("return", "raise MemoryError\n    return"))
    rollouts = write(tmp_path / "in.parquet", four())
    assert run_here("score", rollouts, "-e", f"{path}:mine", "-o", tmp_path / "x.parquet") == 3


def test_a_package_that_fails_is_named(tmp_path, capsys, monkeypatch):
    write_file(tmp_path, signature("(batch)").replace("return", "1 / 0\n    return"), "acme_fails.py")
    declare(tmp_path, "acme", "mine = acme_fails:mine")
    monkeypatch.syspath_prepend(tmp_path)
    rollouts = write(tmp_path / "in.parquet", four())
    found = refusal(capsys, tmp_path, "score", rollouts, "-e", "mine", "-o", tmp_path / "x.parquet")
    assert "estimator 'mine' of package acme failed: ZeroDivisionError: division by zero (line 7)" in found


def test_the_library_takes_the_same_specs(tmp_path):
    import ktae_cli

    path = write_file(tmp_path, GOOD)
    table = ktae_cli.score(four(), f"{path}:mine(power=2)")
    assert table["advantages"].to_pylist()[0] == [1.5, 1.5]
    with pytest.raises(KtaeError, match="No such file"):
        ktae_cli.score(four(), "nowhere.py:mine")
