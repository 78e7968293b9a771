"""Every rule finds what it is for, at its place, and accepts what comes near."""

import json

import pytest

from ktae_cli.catalogue import declaration, names, rule_names
from ktae_cli.checking import CheckOptions, Report, check_files
from ktae_cli.checks.base import SEVERITIES
from tests.checks.cases import CASES, PAD, TOKENIZER, clean, write

RULES = rule_names()


def run(path, change, case, rule: str) -> Report:
    """Check the rollouts that a change makes of clean ones, with one rule."""
    columns = clean(case.groups if case else 3)
    for name in case.without if case else ():
        columns[name] = None
    options = CheckOptions(select=(rule,), set=case.set if case else (), tokenizer=TOKENIZER, pad_ids=(PAD,))
    return check_files([str(write(path / "x.parquet", change(columns)))], options)


def test_every_rule_has_a_case_and_every_case_a_rule():
    assert sorted(CASES) == list(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_what_it_is_for(rule, tmp_path):
    case = CASES[rule]
    found = run(tmp_path, case.bad, case, rule)
    assert found.not_checked == {}
    assert [one.id for one in found.findings] == [rule]
    assert case.says in found.findings[0].message
    assert found.findings[0].row == case.at
    assert found.findings[0].severity == declaration("checks", RULES[rule]).severity


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_accepts_what_comes_near(rule, tmp_path):
    case = CASES[rule]
    found = run(tmp_path, case.near, case, rule)
    assert found.checked == [rule]
    assert found.findings == []
    assert found.status == 0


def test_clean_rollouts_pass_every_rule(tmp_path):
    path = write(tmp_path / "x.parquet", clean(12))
    found = check_files([str(path)], CheckOptions(tokenizer=TOKENIZER, pad_ids=(PAD,)))
    assert found.findings == []
    assert found.checked == list(RULES)
    assert (found.rollouts, found.groups) == (48, 12)


@pytest.mark.parametrize("rule", RULES)
def test_a_declaration_is_complete(rule):
    declared = declaration("checks", RULES[rule])
    assert len(declared.id) == 5
    assert declared.id.startswith("KT")
    assert declared.severity in SEVERITIES
    assert declared.sees in ("input", "rows", "table")
    assert declared.doc.count("\n") >= 2, "the docstring says what, why it matters and what to do"
    for parameter in declared.parameters.values():
        assert f"`{parameter.name}`" in declared.doc
    assert len(RULES) == len(names("checks")), "two rules have one id"


@pytest.mark.parametrize("rule", RULES)
def test_the_rows_may_come_in_any_batches(rule, tmp_path, monkeypatch):
    case = CASES[rule]
    whole = run(tmp_path, case.bad, case, rule)
    monkeypatch.setattr("ktae_cli.readers.parquet.BATCH_BYTES", 1)
    monkeypatch.setattr("ktae_cli.readers.parquet._rows_per_batch", lambda group, columns: 1)
    cut = run(tmp_path, case.bad, case, rule)
    assert json.dumps(cut.as_dict()) == json.dumps(whole.as_dict())
