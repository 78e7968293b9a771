"""The folder as registry: what is read from the source is what the imported function has."""

import inspect
import json
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path

import pytest

from ktae_cli import catalogue
from ktae_cli.catalogue import Ids, Numbers, declaration, needs, resolve_spec, spell_out, unknown_name
from ktae_cli.errors import KtaeError, UnknownNameError
from ktae_cli.names import Spec
from ktae_cli.schema import BY_NAME, SCORE_COLUMNS, SCORE_PREFIXES
from tests.helpers import ROOT

ESTIMATORS = catalogue.names("estimators")
KINDS = ("estimators", "readers", "exports")


def imported(name):
    return getattr(import_module(f"ktae_cli.estimators.{name}"), name)


def kind_of(annotation) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return "choice"
    return {Ids: "Ids", Numbers: "Numbers"}.get(annotation) or annotation.__name__


def test_listing_and_declarations_import_no_plugin():
    code = (
        "import json, sys\n"
        "from ktae_cli.catalogue import declaration, names, resolve_spec\n"
        f"found = {{kind: [declaration(kind, name).name for name in names(kind)] for kind in {KINDS}}}\n"
        "resolve_spec('ktae(base=dapo(max_length=4096))')\n"
        "print(json.dumps([found, sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    found, modules = json.loads(done.stdout)
    assert found == {kind: catalogue.names(kind) for kind in KINDS}
    assert not {"torch", "numpy", "pyarrow"} & set(modules)
    assert [name for name in modules if name.startswith(tuple(f"ktae_cli.{kind}" for kind in KINDS))] == []


def test_names_are_the_files_of_the_folder():
    folder = Path(catalogue.__file__).parent / "estimators"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")} - {"base"}
    assert set(ESTIMATORS) == files
    assert {"dapo", "dr_grpo", "grpo", "ktae", "ktae_paper", "ktae_reference", "rloo"} <= set(ESTIMATORS)
    assert sorted(ESTIMATORS) == ESTIMATORS
    assert not {"base", "scored"} & {name for kind in KINDS for name in catalogue.names(kind)}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_declaration_agrees_with_the_function(name):
    declared, function = declaration("estimators", name), imported(name)
    assert declared.needs == function.needs
    assert declared.level == function.level
    assert declared.scope == function.scope
    assert declared.columns == function.columns
    assert inspect.cleandoc(declared.doc) == inspect.getdoc(function)
    assert declared.summary and declared.summary == function.__doc__.split("\n")[0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_declared_parameters_agree_with_the_signature(name):
    parameters = declaration("estimators", name).parameters
    signature = inspect.signature(imported(name)).parameters
    hints = typing.get_type_hints(imported(name))
    declared = declaration("estimators", name)
    pooled = ["pooled"] if declared.scope == "batch" or declared.pools_when else []
    assert list(signature) == ["batch", *pooled, *parameters]
    assert hasattr(imported(name), "pool") == bool(pooled)
    for key, parameter in parameters.items():
        assert signature[key].kind is inspect.Parameter.KEYWORD_ONLY
        assert (parameter.default, type(parameter.default)) == (signature[key].default, type(signature[key].default))
        assert parameter.kind == kind_of(hints[key])
        assert parameter.choices == (typing.get_args(hints[key]) if parameter.kind == "choice" else ())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_declaration_keeps_to_the_contract(name):
    declared = declaration("estimators", name)
    assert declared.level in ("rollout", "token")
    assert declared.scope in ("group", "batch")
    assert {*declared.needs, *(c for columns in declared.needs_when.values() for c in columns)} <= set(BY_NAME)
    conditions = {*declared.needs_when, *declared.pools_when}
    assert {condition.partition("=")[0] for condition in conditions} <= set(declared.parameters)
    assert {*SCORE_COLUMNS, *(prefix[:-1] for prefix in SCORE_PREFIXES)} >= set(declared.columns)
    for key, parameter in declared.parameters.items():
        default = parameter.default
        assert str(resolve_spec(Spec(name, ((key, default),)))) == name, f"the default of {key} is not its default"


@pytest.mark.parametrize("kind", KINDS)
def test_every_plugin_says_what_it_does(kind):
    summaries = {name: declaration(kind, name).summary for name in catalogue.names(kind)}
    assert all(summary.endswith(".") for summary in summaries.values()), summaries


def test_an_unknown_estimator_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown estimator 'ktea' \(nearest: ktae\); known: cdpo, cispo, dapo"):
        resolve_spec("ktea")
    with pytest.raises(UnknownNameError, match=r"unknown estimator 'grpoo' \(nearest: grpo\)"):
        resolve_spec("ktae(base=grpoo)")


def test_unknown_names_are_reported_together():
    error = unknown_name("column in --group-by:", ["promt", "zzzz"], ["prompt", "step"])
    assert str(error) == "unknown columns in --group-by: 'promt' (nearest: prompt), 'zzzz'; known: prompt, step"
    assert str(unknown_name("export", ["x"], ["jsonl"])) == "unknown export 'x'; known: jsonl"


def test_an_unknown_parameter_is_named_with_those_that_every_estimator_has():
    with pytest.raises(
        UnknownNameError, match=r"unknown parameter of rloo: 'eps'.*known: aggregation, aggregation_length"
    ):
        resolve_spec("rloo(eps=1)")


@pytest.mark.parametrize("base", ["ktae", "ktae_paper", "ktae(loo=true)"])
def test_a_base_gives_one_advantage_per_rollout(base):
    with pytest.raises(KtaeError, match="gives one advantage per token; a base gives one per rollout"):
        resolve_spec(f"ktae(base={base})")


def test_choices_of_a_literal_are_the_only_words():
    parameters = declaration("estimators", "ktae").parameters
    assert parameters["tf"].choices == ("code", "bounded", "off")
    assert parameters["fisher"].choices == ("two_sided", "point")
    for choice in parameters["tf"].choices:
        assert spell_out(resolve_spec(f"ktae(tf={choice})"))["tf"] == choice
    with pytest.raises(KtaeError, match="ktae: tf takes code or bounded or off, found raw"):
        resolve_spec("ktae(tf=raw)")
    with pytest.raises(KtaeError, match="ktae: tf takes code or bounded or off, found 1"):
        resolve_spec("ktae(tf=1)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ktae(loo=1)", "loo takes true or false, found 1"),
        ("ktae(loo=yes)", "loo takes true or false, found yes"),
        ("ktae(alpha=true)", "alpha takes a number up to 1e30, found true"),
        ("ktae(alpha=big)", "alpha takes a number up to 1e30, found big"),
        ("ktae(alpha=1+2)", "alpha takes a number up to 1e30, found 1\\+2"),
        ("grpo(ddof=1.0)", "ddof takes a whole number of at most 32 bits, found 1.0"),
        ("grpo(ddof=true)", "ddof takes a whole number of at most 32 bits, found true"),
        ("dapo(max_length=3000000000)", "max_length takes a whole number of at most 32 bits"),
        ("ktae(base=1)", "base takes a rollout-level estimator, found 1"),
        ("ktae(base=grpo+rloo)", "base takes a rollout-level estimator, found grpo\\+rloo"),
        ("ktae(zero_ids=-1)", "zero_ids takes none, eos or token ids joined by \\+, found -1"),
        ("ktae(zero_ids=1+eos)", "zero_ids takes none, eos or token ids"),
        ("ktae(zero_ids=1.5)", "zero_ids takes none, eos or token ids"),
        ("ktae(zero_ids=2147483648)", "zero_ids takes none, eos or token ids"),
    ],
)
def test_values_of_another_type_are_refused(text, problem):
    with pytest.raises(KtaeError, match=problem):
        resolve_spec(text)


def test_a_whole_number_is_taken_for_a_float():
    assert resolve_spec("ktae(alpha=2)") == resolve_spec("ktae(alpha=2.0)")
    assert type(dict(resolve_spec("ktae(alpha=2)").arguments)["alpha"]) is float


def test_spell_out_gives_every_parameter():
    values = spell_out(resolve_spec("ktae(base=dapo(max_length=4096),zero_ids=5+2,alpha=2)"))
    assert values["base"] == "dapo(max_length=4096)"
    assert values["zero_ids"] == [2, 5]
    assert values["alpha"] == 2.0
    assert values["tf"] == "code"
    assert list(values) == list(declaration("estimators", "ktae").accepted)


def test_needs_include_those_of_the_base():
    assert needs(resolve_spec("ktae")) == ("response_ids", "reward")
    assert needs(resolve_spec("grpo")) == ("reward",)
    assert set(needs(resolve_spec("ktae(base=rloo)"))) == {"response_ids", "reward"}
