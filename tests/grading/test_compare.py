"""Two answers compared: every value is worked out by hand; numbers also against Python's fractions."""

import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.grading.compare import GradingOptions, Question, cheap_verdict, first_look, grade, settle
from ktae_cli.grading.normalise import normalise
from ktae_cli.grading.rational import TooComplexError, read_number

DEFAULT = GradingOptions()


def graded(gold, answer, **options):
    return grade(f"\\boxed{{{answer}}}", gold, GradingOptions(**options))


EQUAL = [
    # bare golds, user-pains H1
    (r"2\sqrt{3}", r"2\sqrt{3}"),
    (r"e^{16}-1", r"e^{16} - 1"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    ("2, 3", "3, 2"),
    ("x^2+2x+1", "(x+1)^2"),
    # numbers in any spelling
    (r"\frac12", "0.5"),
    (r"2\frac12", "2.5"),
    ("2 1/2", r"\frac{5}{2}"),
    ("-1\\frac{1}{2}", "-1.5"),
    ("1{,}000", "1000"),
    ("1000", r"1\,000"),
    ("1000", "1 000"),
    ("1,234,567", "1234567"),
    (r"\$1{,}234.50", "1234.5"),
    ("3", "−3.0".replace("−", "")),
    ("-3", "−3"),
    ("42", "４２"),
    ("6.02e23", r"6.02 \times 10^{23}"),
    (r"3 \times 10^8", "3e8"),
    (r"0.\overline{3}", r"\frac13"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\sqrt{2}", "1.414214"),
    ("2005", "2005."),
    ("2^{10}", "1024"),
    ("5!", "120"),
    (r"2^{100000}", r"2^{50000} \cdot 2^{50000}"),
    # typography
    (r"\sqrt{2}", "√2"),
    (r"12\pi", "12π"),
    (r"\emptyset", r"\varnothing"),
    (r"1 - \frac{1}{\mathrm{e}}", "1 - e^{-1}"),
    (r"\cotx", r"\frac{\cos x}{\sin x}"),
    ("73", "**73**"),
    ("2", "$2$"),
    # percent, units, degrees: the defaults
    (r"28\%", "28"),
    (r"28\%", "0.28"),
    (r"28\%", r"28 \text{ percent}"),
    ("35", r"35\,\mathrm{cm}^2"),
    ("12 cm", "12"),
    ("5 hours", "5 h"),
    ("100", r"100\text{ square units}"),
    (r"90^\circ", "90"),
    ("12", r"12^{\mathrm{th}} \text{ grade}"),
    (r"\tan 60^\circ", r"\sqrt{3}"),
    # letters, words, times
    ("E", r"\text{E}"),
    ("E", "E: long text"),
    ("(C)", r"\textbf{(C)} 5"),
    ("Yes", r"\text{yes}"),
    (r"\text{no solution}", r"\text{No solution.}"),
    ("3:30 PM", r"3:30 \text{ p.m.}"),
    ("12:00", "12:00"),
    ("3:4", "3 : 4"),
    # lists, sets, pairs, intervals
    (r"\{1,2,3\}", "3, 2, 1"),
    (r"19, 46, \text{ and } 82", "82, 19, 46"),
    (r"x=\pm 3", r"x=3 \text{ or } x=-3"),
    (r"1 \pm \sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    ("n=2, 3, 4", "2, 3, 4"),
    ("(2,3)", "x=2, y=3"),
    (r"(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"-2 \le x \le 5", "[-2,5]"),
    ("[-2,5]", r"-2 \le x \le 5"),
    (r"m \in [\sqrt{2}, +\infty)", r"m \geq \sqrt{2}"),
    (r"(-\infty, 2) \cup (3, \infty)", r"x<2 \text{ or } x>3"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3, \infty) \cup (-\infty, 2)"),
    (r"1,2,\ldots,n", r"1, 2, \dots, n"),
    (r"\begin{pmatrix}-18-49\end{pmatrix}", r"\begin{pmatrix} -18 \\ -49 \end{pmatrix}"),
    # algebra
    (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}"),
    (r"\sqrt{x^2}", "|x|"),
    ("14 - i", "14.0 + -1.0i"),
    ("2x+4y-3=0", r"y = -\frac{1}{2}x + \frac{3}{4}"),
    ("2x+3", "y = 2x + 3"),
    (r"\frac{17}{50}", r"\frac{34}{100} = \frac{17}{50}"),
    ("4210_{5}", "4210_5"),
]  # fmt: skip

DIFFERENT = [
    # a fragment of the gold, H1 and H21
    (r"2\sqrt{3}", "2"),
    ("(3, \\pi/2)", "3"),
    ("e^{16}-1", "1"),
    ("x^2+2x+1", "1"),
    (r"1 - \frac{1}{\mathrm{e}}", "1"),
    (r"0.\overline{3}", "0"),
    (r"0.\overline{3}", "0.3"),
    ("6.02e23", "6.02"),
    ("2, 3", "3"),
    ("1331 and 1728", "1728"),
    (r"1,2,\ldots,n", "2"),
    (r"\pm 2021", "2021"),
    (r"\{1,2\}", "1, 2, 3"),
    # numbers
    (r"\frac{1}{3}", "0.333"),
    ("10^{-7}", r"2\cdot 10^{-7}"),
    ("10^{-7}", "10^{-8}"),
    ("1000000007", "1000000008"),
    ("276543.25", "276543.26"),
    (r"2^{100000}", r"2^{100001}"),
    (r"\pi", "3.14"),
    ("-\\frac{1}{2}", r"\frac{1}{2}"),
    ("2 1/2", r"\frac{21}{2}"),
    ("12", "1, 2"),
    ("0", "0.0000001"),
    ("5", "1/0"),
    ("4343_6", "4343"),
    ("4343_6", "4343_7"),
    # percent, units
    (r"28\%", r"0.28\%"),
    (r"28\%", "2800"),
    (r"35\text{ cm}", r"35\text{ m}"),
    ("5 apples", "5 oranges"),
    (r"90^\circ", r"\frac{\pi}{2}"),
    ("2h", "2"),
    ("3R^2", "3"),
    ("2xy", "2"),
    # letters, words
    ("no", "on"),
    ("AB", "BA"),
    ("A", "B"),
    ("A", "A + B"),
    ("x", "X"),
    (r"\text{Monday}", r"\text{Tuesday}"),
    ("Evelyn", "7"),
    ("12:00", "12:30"),
    ("3:4", "6:8"),
    # order, brackets
    ("(1,2)", "(2,1)"),
    ("[0,1)", "(0,1]"),
    ("[0,1]", "(0,1)"),
    ("[0,1]", "0, 1"),
    ("-2 \\le x \\le 5", "(-2,5)"),
    ("x < 2", "x > 2"),
    (r"x \neq 2", r"x \neq 3"),
    ("n=2, 3, 4", "n=1, 2, 3"),
    ("x=1, y=2", "x=2, y=1"),
    ("x = 5", "y = 5"),
    (r"\infty", r"-\infty"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
    # algebra
    ("|x|", "x"),
    (r"\sqrt{x^2}", "x"),
    ("1+2i", "1-2i"),
    ("X + x", "2x"),
    ("2^{n-1}", "2^n - 1"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_answers_that_are_the_same_are_right(gold, answer):
    assert graded(gold, answer)[:2] == (True, "ok")


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_answers_that_differ_are_wrong(gold, answer):
    assert graded(gold, answer)[:2] == (False, "ok")


@pytest.mark.parametrize(
    "gold", ["", None, float("nan"), "see solution", r"\text{See solution.}", r"\frac{1}{0}", r"x +* \foo{"]
)
def test_gold_that_cannot_be_read_gives_no_verdict(gold):
    assert graded(gold, "7")[:2] == (None, "gold_unparsed")


def test_response_without_an_answer_is_wrong_and_says_why():
    assert grade("I do not know.", "7", DEFAULT) == (False, "no_answer", "", "7", "answer")
    assert grade(r"It is \boxed{7", "7", DEFAULT)[:2] == (False, "no_answer")


@pytest.mark.parametrize("gold", [72, 72.0, ["72"], "72", b"72", r"\boxed{72}", "... #### 72"])
def test_gold_of_any_type_is_compared_by_value(gold):
    assert grade(r"\boxed{72}", gold, DEFAULT).correct is True
    assert grade(r"\boxed{7}", gold, DEFAULT).correct is False


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}",
        "10^{10^{10}}",
        "(10^{8})!",
        "10000!",
        "x^{100000}",
        "(((9^{99})^{99})^{99})^{99}",
        "1e999999999",
        r"\sum_{k=1}^{10^9} \frac{1}{k}",
        "(" * 9 + "x" + ")" * 9,
        "(" * 10_000 + "x" + ")" * 10_000,
        "x+" * 300 + "1",
        "x" + "9" * 1_000_000,
        r"\frac{1}{" * 40 + "2" + "}" * 40,
        ",".join(f"x_{place}" for place in range(60)) + "," + ",".join(f"{place}y" for place in range(60)),
    ],
)
def test_expression_beyond_the_bounds_is_refused_before_anything_computes_it(answer):
    gold = ",".join(f"{place}z" for place in range(120)) if answer.startswith("x_0,") else "5"
    verdict = cheap_verdict(f"\\boxed{{{answer}}}", gold, DEFAULT)
    assert verdict[:2] == (None, "too_complex")
    assert len(verdict.answer) <= 1000


def test_numbers_of_any_length_are_compared_digit_by_digit():
    digits = "9" * 5000
    assert graded(digits, digits).correct is True
    assert graded(digits, digits[:-1] + "8").correct is False
    assert graded("8", "0." + "3" * 3000).correct is False
    assert graded(r"\frac{1}{3}", "0." + "3" * 3000).correct is True


def test_units_strict_compares_units_that_both_name_and_ignore_drops_them():
    assert graded("35 cm", "35 m", units="ignore").correct is True
    assert graded("35 cm", "35 m", units="strict").correct is False
    assert graded("35 cm", "36 cm", units="ignore").correct is False
    assert graded("5 meters", "5 m").correct is True


def test_percent_strict_takes_the_share_alone():
    assert graded(r"28\%", "0.28", percent="strict").correct is True
    assert graded(r"28\%", r"28\%", percent="strict").correct is True
    assert graded(r"28\%", "28", percent="strict").correct is False
    assert graded("28", r"28\%", percent="strict").correct is False


def test_tolerance_is_relative_and_only_for_decimals():
    assert graded("9.81", "9.8", tolerance=0.01).correct is True
    assert graded("9.81", "9.8").correct is False
    assert graded("5000", "5010.5", tolerance=0.01).correct is True
    assert graded("100", "101", tolerance=0.05).correct is False
    assert graded(r"\frac{1}{3}", "0.333333", tolerance=0).correct is False
    assert graded(r"\sqrt{2}", "1.41", tolerance=0.01).correct is True


def test_gold_goes_first_since_intervals_and_relations_are_compared_differently_the_other_way_round(monkeypatch):
    import math_verify

    calls = []
    real = math_verify.verify
    monkeypatch.setattr(math_verify, "verify", lambda **given: calls.append(given) or real(**given))
    assert settle(Question("6y + 3x = 3", "x + 2y = 1"), DEFAULT).correct is True
    assert [str(calls[0][side]) for side in ("gold", "target")] == ["Eq(x + 2*y, 1)", "Eq(3*x + 6*y, 3)"]
    assert calls[0]["timeout_seconds"] is None


def test_answer_without_value_is_wrong_and_an_error_of_the_library_is_no_verdict(monkeypatch):
    from ktae_cli.grading import symbolic

    assert graded("5", "1/0") == (False, "ok", "1/0", "5", "answer_undefined")

    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(symbolic, "same_expression", broken)
    assert graded("5", r"\sqrt{26}")[:2] == (None, "error")


def test_path_says_which_step_decided():
    paths = {
        "text": ("7", "7"), "number": ("7", "8"), "letter": ("A", "(B)"), "word": ("yes", "no"), "items": ("1,2", "1"),
        "brackets": ("[0,1]", "(0,1)"), "points": (r"\sqrt{2}", r"\sqrt{3}"), "math_verify": ("x+y=1", "y=1-x"),
    }  # fmt: skip
    assert {path: graded(*pair).path for path, pair in paths.items()} == {path: path for path in paths}


def test_cheap_verdict_leaves_algebra_to_a_worker():
    assert cheap_verdict(r"\boxed{2\sqrt{12}}", r"4\sqrt{3}", DEFAULT) is None
    question = first_look(r"so \boxed{2 \sqrt{12}}", r"4\sqrt{3}", DEFAULT)
    assert isinstance(question, Question) and settle(question, DEFAULT).correct is True


def test_cheap_paths_import_neither_sympy_nor_math_verify():
    code = (
        "import sys; from ktae_cli.grading.compare import GradingOptions, cheap_verdict as v;"
        "o = GradingOptions(); assert v('\\\\boxed{1/2}', '0.5', o).correct; v('\\\\boxed{x+1}', 'y', o);"
        "assert not {'sympy', 'math_verify', 'torch', 'numpy'} & set(sys.modules), set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


integers = st.integers(-(10**12), 10**12)
fractions = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


def spellings(value: Fraction) -> list[str]:
    """Write a fraction in ways that all mean it."""
    top, bottom = value.numerator, value.denominator
    sign = "-" if top < 0 else ""
    written = [f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}", f"${sign}\\dfrac{{{abs(top)}}}{{{bottom}}}$"]
    if bottom == 1:
        written += [
            str(top),
            f"{top}.0",
            f"{top:,}",
            f"{top:,}".replace(",", "{,}"),
            f"{top} \\text{{ cm}}",
            f"x = {top}",
        ]
    elif abs(top) > bottom:
        written.append(f"{sign}{abs(top) // bottom}\\frac{{{abs(top) % bottom}}}{{{bottom}}}")
    return written


@settings(max_examples=150, deadline=None)
@given(st.one_of(fractions, integers.map(Fraction)), st.data())
def test_equal_fractions_in_any_spelling_are_equal(value, data):
    one, other = (data.draw(st.sampled_from(spellings(value))) for _ in range(2))
    verdict = cheap_verdict(f"\\boxed{{{one}}}", other, DEFAULT)
    assert verdict is not None and verdict.correct is True


@settings(max_examples=150, deadline=None)
@given(st.one_of(fractions, integers.map(Fraction)), st.one_of(fractions, integers.map(Fraction)), st.data())
def test_different_fractions_are_never_equal(one, other, data):
    if one != other:
        texts = [data.draw(st.sampled_from(spellings(value))) for value in (one, other)]
        verdict = cheap_verdict(f"\\boxed{{{texts[0]}}}", texts[1], DEFAULT)
        assert verdict is not None and verdict.correct is False


pieces = st.sampled_from(
    [*"0123456789xyzei+-*/^!=<>,;:.%()[]{}| \n\t$&_\\", "\\frac", "\\sqrt", "\\text{", "\\boxed{", "\\pi", "π", "√",
     "½", "²", "４", "\\left", "\\,", "\\!", "{,}", " and ", "cm", "**", "\\pm", "^\\circ", "1 000", "1,000", "th",
     "\x00", "sqrt("]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(pieces, max_size=25).map("".join))
def test_normalising_twice_is_normalising_once(text):
    once = normalise(text)
    assert normalise(once) == once


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=25).map("".join), st.lists(pieces, max_size=12).map("".join))
def test_cheap_path_never_raises_and_never_takes_long(answer, gold):
    verdict = cheap_verdict(f"\\boxed{{{answer}}}", gold, DEFAULT)
    assert verdict is None or verdict.status in ("ok", "no_answer", "gold_unparsed", "too_complex")


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.integers(0, 30).map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
    lambda parts: f"({parts[0]}{parts[1]}{parts[2]})"), max_leaves=6))  # fmt: skip
def test_rational_value_is_that_of_python(text):
    try:
        expected = eval(__import__("re").sub(r"(\d+)", r"Fraction(\1)", text), {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    found = read_number(text)
    assert (found.value if found else None) == expected


def test_rational_refuses_what_has_too_many_digits():
    for text in ("9^{99999999}", "99999!", "1e99999", "((9^{9999})^{9999})"):
        with pytest.raises(TooComplexError):
            read_number(text)
    assert read_number("3^{20}").value == 3486784401
    assert read_number("-2^2").value == -4
    assert read_number("(-2)^{-3}").value == Fraction(-1, 8)
    assert read_number("1^{999999999}").value == 1
    assert read_number("1/0") is None
