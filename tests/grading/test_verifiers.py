"""Verifiers by name: what each takes for right, wrong, and for no answer."""

import pytest

from ktae_cli.errors import InputError, UnknownNameError
from ktae_cli.grading.compare import GradingOptions, Verdict
from ktae_cli.grading.verifier_loading import load_verifier, verifier_names

CASES = [
    ("math", "", r"\boxed{\frac{2}{4}}", "0.5", True, "ok"),
    ("math", "", r"\boxed{3}", r"2\sqrt{3}", False, "ok"),
    ("exact", "", "<answer>a b\nc</answer>", "a b\r\nc ", True, "ok"),
    ("exact", "", "<answer>A B</answer>", "a b", False, "ok"),
    ("exact", "", "<think>x</think>\n 1 2 3 \n<|im_end|>", "1 2 3", True, "ok"),
    ("exact", "", r"\boxed{1.0}", "1", False, "ok"),
    ("exact", "", "<|im_end|>", "1", False, "no_answer"),
    ("exact", "", "1", None, None, "gold_unparsed"),
    ("numeric", "", r"So \boxed{1/2}", 0.5, True, "ok"),
    ("numeric", "", "A: 1,000", "1000", True, "ok"),
    ("numeric", "", "It is 4.", "5", False, "ok"),
    ("numeric", "", r"\boxed{\sqrt{4}}", "2", False, "no_answer"),
    ("numeric", "", r"\boxed{4}", "four", None, "gold_unparsed"),
    ("numeric", "", r"\boxed{9^{9^{9}}}", "4", None, "too_complex"),
    ("regex", "", "the cat sat", r"\bcat\b", True, "ok"),
    ("regex", "", "the dog sat", r"\bcat\b", False, "ok"),
    ("regex", "", "<think>cat</think>dog", r"cat", False, "ok"),
    ("regex", "", "cat", "(", None, "gold_unparsed"),
    ("regex", r"move: (\w+)", "move: e2e4 then move: d4", "d4", True, "ok"),
    ("regex", r"move: (\w+)", "move: e4", "d4", False, "ok"),
    ("regex", r"move: (\w+)", "no such thing", "d4", False, "no_answer"),
    ("choice", "", "The answer is (C).", "C", True, "ok"),
    ("choice", "", r"\boxed{\text{E}}", "E", True, "ok"),
    ("choice", "", r"\boxed{b) nine}", "(B)", True, "ok"),
    ("choice", "", "I choose option D because A is wrong.", "D", True, "ok"),
    ("choice", "", r"\boxed{A + B}", "A", False, "no_answer"),
    ("choice", "", "A triangle has three sides.", "A", False, "no_answer"),
    ("choice", "", "The answer is (C).", "seven", None, "gold_unparsed"),
    ("json_field", "answer.0.name", '```json\n{"answer": [{"name": "Ada"}]}\n```', "Ada", True, "ok"),
    ("json_field", "n", 'first {"n": 1} then {"n": 2.0}', 2, True, "ok"),
    ("json_field", "n", '{"n": "2"}', 2, False, "ok"),
    ("json_field", "n", '{"n": true}', 1, False, "ok"),
    ("json_field", "", '{"b": [1, 2], "a": null}', '{"a": null, "b": [1.0, 2]}', True, "ok"),
    ("json_field", "n", '{"m": 2}', 2, False, "no_answer"),
    ("json_field", "n", "no JSON, {not: this}", 2, False, "no_answer"),
    ("json_field", "n", "[" * 20_000, 2, False, "no_answer"),
    ("json_field", "n", '{"n": 2}', None, None, "gold_unparsed"),
]


@pytest.mark.parametrize(("name", "argument", "response", "gold", "correct", "status"), CASES)
def test_verifier_grades(name, argument, response, gold, correct, status):
    verdict = load_verifier(name)(response, gold, GradingOptions(argument=argument))
    assert isinstance(verdict, Verdict)
    assert (verdict.correct, verdict.status) == (correct, status)


def test_every_verifier_has_a_case_of_right_and_wrong():
    assert verifier_names() == ["choice", "exact", "json_field", "math", "numeric", "regex"]
    for name in verifier_names():
        assert {True, False} <= {case[4] for case in CASES if case[0] == name}


def test_unknown_verifier_names_those_there_are():
    with pytest.raises(
        UnknownNameError, match=r"no verifier 'maths'; there are: choice, exact, .* or path.py:function"
    ):
        load_verifier("maths")


def test_pattern_of_the_command_line_that_does_not_compile_is_an_input_error():
    with pytest.raises(InputError, match=r"the pattern '\(' does not compile"):
        load_verifier("regex")("x", "x", GradingOptions(argument="("))


OWN = """
from ktae_cli.grading.compare import Verdict
def boolean(response, gold): return response == gold
def number(response, gold, options): return 0.75 if options.argument == gold else 0.25
def unknown(response, gold): return None
def broken(response, gold): return 1 / 0
def full(response, gold, options=None): return Verdict(False, "no_answer", "", "g", "mine")
def odd(response, gold): return "yes"
def one(response): return True
"""


@pytest.mark.parametrize(
    ("function", "correct", "status"),
    [("boolean", True, "ok"), ("number", False, "ok"), ("unknown", None, "error"), ("broken", None, "error"),
     ("full", False, "no_answer"), ("odd", None, "error")],
)  # fmt: skip
def test_function_of_a_file_grades(tmp_path, function, correct, status):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    verdict = load_verifier(f"{path}:{function}")("7", "7", GradingOptions())
    assert (verdict.correct, verdict.status) == (correct, status)


def test_file_that_cannot_be_used_is_one_line(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    with pytest.raises(InputError, match=r"mine.py: has no function nothing; it has: boolean, number, unknown"):
        load_verifier(f"{path}:nothing")
    with pytest.raises(InputError, match=r"one takes \(response, gold\) or \(response, gold, options\)"):
        load_verifier(f"{path}:one")
    with pytest.raises(InputError, match="no such file"):
        load_verifier(f"{tmp_path}/absent.py:f")
    path.write_text("import nothing_of_this_name")
    with pytest.raises(InputError, match=r"cannot be imported \(ModuleNotFoundError"):
        load_verifier(f"{path}:f")
