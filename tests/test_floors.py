"""One direction of flow: a module imports from the floors below, or from its own.

Within a floor a module may import its own folder, and the floor's top-level modules and its folders may import each
other as long as no circle arises; a folder never imports another folder of its floor.
"""

import ast
import graphlib
from pathlib import Path
from typing import NamedTuple

import pytest

import ktae_cli

PACKAGE = Path(ktae_cli.__file__).parent

FLOORS = (
    {
        "schema",
        "names",
        "errors",
        "token_text",
        "scale",
        "version",
        "catalogue",
        "extensions",
        "extension_guard",
        "extension_source",
        "spans",
        "tokenizer_file",
        "memory",
    },
    {
        "readers",
        "writers",
        "batch",
        "inputs",
        "mapping",
        "rollouts",
        "partition",
        "groups",
        "group_warnings",
        "off_policy",
        "off_policy_rows",
        "association",
        "grading",
        "gradable",
        "verdict_counts",
        "prompts",
        "trajectories",
    },
    {"stats", "units"},
    {"estimators"},
    {"pipeline"},
    {
        "plan",
        "scored_table",
        "inspection",
        "runners",
        "off_policy_facts",
        "off_policy_columns",
        "comparison",
        "converting",
        "key_weight",
        "verifying",
    },
    {"evidence", "key_weight_passes", "key_weight_facts", "scoring", "comparing"},
    {"cli", "integrations", "library", "exporting", "checking"},
)
LOOKING = {"reports", "exports", "plots", "checks"}
LOOKING_SEES = FLOORS[0] | FLOORS[1] - {"batch"}
COMPUTING = FLOORS[2] | FLOORS[3] | FLOORS[4]
TORCH_AT_THE_TOP = COMPUTING | {"batch", "runners", "integrations"}
TORCH_NOWHERE = (FLOORS[0] | FLOORS[1] | LOOKING) - {"batch"}
HEAVY = {"torch", "matplotlib", "scipy", "ray"}


class Import(NamedTuple):
    """`target` is a module of the package, or the first name of another package; `at_top` runs on import."""

    target: str
    at_top: bool


def module_name(path: Path, package: Path) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(package: Path) -> dict[str, Path]:
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


def imports_of(path: Path, package: Path, known: set[str]) -> list[Import]:
    """List the imports of a module, those inside functions and by `import_module` included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        for name in _imported(node, module_name(path, package), path.name == "__init__.py", known):
            inside = name == package.name or name.startswith(f"{package.name}.")
            found.append(Import(name if inside else name.partition(".")[0], id(node) not in late))
    return found


def _imported(node: ast.AST, module: str, is_package: bool, known: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        return [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
        first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        return [first.value.rstrip(".")] if isinstance(first, ast.Constant) else []
    return []


def part_of(module: str) -> str:
    """Return the folder or the top-level module that a module of the package belongs to."""
    return module.split(".")[1] if "." in module else ""


def floor_of(part: str) -> int:
    return next((floor for floor, parts in enumerate(FLOORS) if part in parts), -1)


def find_violations(package: Path) -> list[str]:
    """Check every import of a package; return one line for each that breaks a rule."""
    modules = modules_of(package)
    folders = {part_of(name) for name, path in modules.items() if path.parent != package}
    found = [
        f"{name} has no floor" for name in modules if part_of(name) and floor_of(part_of(name)) < 0
        and part_of(name) not in LOOKING
    ]  # fmt: skip
    for name, path in modules.items():
        for target, at_top in imports_of(path, package, set(modules)):
            if target.split(".")[0] == package.name:
                problem = _inside_problem(part_of(name), target, at_top, folders)
            else:
                problem = _outside_problem(part_of(name), target, at_top)
            if problem:
                found.append(f"{name} imports {target}{'' if at_top else ' late'}: {problem}")
    return found


def _inside_problem(own: str, target: str, at_top: bool, folders: set[str]) -> str:
    other = part_of(target)
    if not own:
        return "" if other == "version" or (other == "library" and not at_top) else "the top package is lazy"
    if not other:
        return "nothing inside imports the top package"
    if own == other:
        return ""
    if own in LOOKING:
        return "" if other in LOOKING_SEES else "the looking side sees floors 0 and 1 without batch"
    if other in LOOKING:
        return "" if floor_of(own) == len(FLOORS) - 1 else "only the top floor calls the looking side"
    if floor_of(own) < floor_of(other):
        return f"floor {floor_of(own)} imports floor {floor_of(other)}"
    sideways = floor_of(own) == floor_of(other) and own in folders and other in folders
    return "sideways between folders of one floor" if sideways else ""


def _outside_problem(own: str, target: str, at_top: bool) -> str:
    if target == "torch":
        if own in TORCH_NOWHERE:
            return "this side of the border computes nothing"
        return "" if own in TORCH_AT_THE_TOP or not at_top else "torch is imported inside the function"
    return f"{target} is imported inside the function" if target in HEAVY and at_top and own != "plots" else ""


def circles(package: Path) -> list[str]:
    """Return the modules of one circle of imports, or nothing."""
    modules = modules_of(package)
    graph = {
        name: {target for target, _ in imports_of(path, package, set(modules)) if target in modules} - {name}
        for name, path in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def write_package(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "ktae_cli"
    for name, text in {"__init__": "", **files}.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_every_import_goes_down():
    assert find_violations(PACKAGE) == []


def test_no_imports_run_in_a_circle():
    assert circles(PACKAGE) == []


def test_the_check_sees_the_imports_of_the_package():
    modules = modules_of(PACKAGE)
    seen = {name: set(imports_of(path, PACKAGE, set(modules))) for name, path in modules.items()}
    assert Import("ktae_cli.stats.counts", True) in seen["ktae_cli.estimators._ktae_family"]
    assert Import("torch", True) in seen["ktae_cli.batch"]
    assert Import("ktae_cli.scoring", False) in seen["ktae_cli.cli.score"]
    assert Import("ktae_cli.cli.options", True) in seen["ktae_cli.cli.score"]
    assert Import("ktae_cli.estimators", False) in seen["ktae_cli.estimators.base"]


@pytest.mark.parametrize(
    ("file", "text", "violation"),
    [
        ("stats/a", "from ktae_cli.estimators import base", "stats.a imports ktae_cli.estimators.base: floor 2"),
        ("stats/a", "def f():\n    from ktae_cli.pipeline import x", "ktae_cli.pipeline late: floor 2 imports floor 4"),
        ("stats/a", "from ..estimators.base import x", "imports ktae_cli.estimators.base: floor 2 imports floor 3"),
        ("names", "from .pipeline import x", "names imports ktae_cli.pipeline: floor 0 imports floor 4"),
        ("readers/a", "import ktae_cli.writers.b", "sideways between folders of one floor"),
        ("writers/a", "from ktae_cli.readers import b", "sideways between folders of one floor"),
        ("cli/a", "import ktae_cli.integrations.b", "sideways between folders of one floor"),
        ("reports/a", "from ktae_cli.batch import GroupBatch", "the looking side sees floors 0 and 1 without batch"),
        ("exports/a", "from ktae_cli.reports.b import x", "the looking side sees floors 0 and 1 without batch"),
        ("checks/a", "from ktae_cli import stats", "nothing inside imports the top package"),
        ("checks/a", "import ktae_cli.stats.b", "the looking side sees floors 0 and 1 without batch"),
        ("pipeline", "from ktae_cli.reports.b import x", "only the top floor calls the looking side"),
        ("plan", "import ktae_cli", "nothing inside imports the top package"),
        ("plan", "from ktae_cli import __version__", "nothing inside imports the top package"),
        ("__init__", "from ktae_cli.pipeline import x", "the top package is lazy"),
        ("__init__", "import ktae_cli.library", "the top package is lazy"),
        (
            "mapping",
            "from importlib import import_module\nimport_module(f'ktae_cli.estimators.{1}')",
            "floor 1 imports",
        ),
        ("plan", "import torch", "torch is imported inside the function"),
        ("cli/a", "from torch import Tensor", "torch is imported inside the function"),
        ("cli/a", "if True:\n    import ray", "ray is imported inside the function"),
        ("readers/a", "def f():\n    import torch.nn", "readers.a imports torch late: this side"),
        ("reports/a", "import torch", "this side of the border computes nothing"),
        ("stats/a", "import scipy.stats", "scipy is imported inside the function"),
        ("utils", "", "utils has no floor"),
        ("misc/a", "", "misc.a has no floor"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, text, violation):
    others = dict.fromkeys(("stats/b", "readers/b", "writers/b", "integrations/b", "reports/b", "pipeline"), "")
    others["estimators/base"] = ""
    found = find_violations(write_package(tmp_path, others | {file: text}))
    assert len(found) == 1
    assert violation in found[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("__init__", "from ktae_cli.version import x\ndef __getattr__(name):\n    from ktae_cli import library"),
        ("stats/a", "import torch\nfrom ktae_cli.stats.b import x\nfrom . import b\nfrom ktae_cli.batch import y"),
        ("plan", "def f():\n    import torch\nfrom ktae_cli.runners.local import x"),
        ("inputs", "from ktae_cli.readers.b import x"),
        ("cli/a", "from ktae_cli.reports.b import x\nfrom ktae_cli.pipeline import y"),
        ("plots/a", "import matplotlib.pyplot\nfrom ktae_cli.readers.b import x\nfrom ktae_cli.scale import color"),
    ],
)
def test_an_import_that_goes_down_is_allowed(tmp_path, file, text):
    others = dict.fromkeys(
        ("stats/b", "readers/b", "runners/local", "reports/b", "pipeline", "scale", "version", "library"), ""
    )
    assert find_violations(write_package(tmp_path, others | {file: text})) == []


def test_a_planted_circle_is_found(tmp_path):
    files = {"plan": "def f():\n    import ktae_cli.scoring", "scoring": "from ktae_cli.plan import f"}
    assert set(circles(write_package(tmp_path, files))) == {"ktae_cli.plan", "ktae_cli.scoring"}
