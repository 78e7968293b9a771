"""The final answer of a response: which text it is, and which text it is not."""

import time

import numpy as np
import pytest

from ktae_cli.errors import InputError
from ktae_cli.grading.answer import check_answer_format, final_answer, prepare_gold


def text_of(response, answer_format="auto"):
    found = final_answer(response, answer_format)
    return found.text if found else None


@pytest.mark.parametrize(
    ("response", "text", "where"),
    [
        (r"So \boxed{7}.", "7", "boxed"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right.", "boxed"),
        (r"\fbox{3} and then \boxed 5", "5", "boxed"),
        (r"first \boxed{8}" + "\nNote that 7 is prime.", "8", "boxed"),
        (r"\boxed{5}, later \boxed{7 is cut", "5", "boxed"),
        ("He makes 9*2 = 18 dollars.\n#### 18", "18", "gsm8k"),
        ("#### 18\nChecked: <answer>19</answer>", "19", "answer_tag"),
        (r"<answer> \boxed{4} </answer>", "4", "boxed"),
        ("<answer>12", "12", "answer_tag"),
        ("They used 36 tickets.\nA: 36", "36", "sentence"),
        ("Sum 234.\n\nFinal Answer: **73**", "73", "sentence"),
        ("The answer is 42.", "42", "sentence"),
        ("The solutions are 1331 and 1728.", "1331 and 1728", "sentence"),
        ("答案是 42。", "42", "sentence"),
        ("Total: 73 apples", "73", "last_line"),
        ("pi/2", "pi/2", "last_line"),
        ("It is 4.", "4", "last_line"),
        ("值是5", "5", "last_line"),
        ("Checked twice: 5 = 5.\nSo the total is 1,234 dollars", "1,234", "last_line"),
        ("The number is 9.\n\nI think that's right.", "9", "last_line"),
        ("Yes", "Yes", "last_line"),
    ],
)
def test_final_answer_is_found_in_every_usual_form(response, text, where):
    assert final_answer(response) == (text, where)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I do not know.",
        r"We work it out and the value is \boxed{7",
        r"\boxed{",
        "so 3 and then (1/2",
        "9 + 2 = 11.\nAnswer:",
        "\x00" * 1000,
    ],
)
def test_response_that_gives_no_answer_has_none(response):
    assert final_answer(response) is None


def test_empty_box_is_found_and_holds_nothing():
    assert text_of(r"at first \boxed{3}, then \boxed{}") == ""


@pytest.mark.parametrize("end", ["</think>", "<|end_of_thought|>"])
def test_text_inside_a_closed_think_block_is_no_answer(end):
    assert text_of(rf"<think>maybe \boxed{{3}}{end} I cannot tell.") is None
    assert text_of(rf"<think>maybe \boxed{{3}}{end} It is \boxed{{4}}") == "4"


def test_open_think_block_counts_since_nothing_follows_it():
    assert text_of(r"<think>so it is \boxed{3}") == "3"


@pytest.mark.parametrize(
    "special", ["<|im_end|>", "<|im_end|><|endoftext|>", "</s>\n", "<|eot_id|> \x00\x00", "<eos><pad><pad>"]
)
def test_special_tokens_at_the_end_are_cut(special):
    assert text_of("Total: 73" + special) == "73"
    assert text_of(r"\boxed{73}" + special) == "73"


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (r"\boxed{2} and \boxed{3}", "2, 3"),
        (r"$\boxed{2}$, $\boxed{3}$", "2, 3"),
        (r"\boxed{2}" + "\n\n" + r"\boxed{2}", "2"),
        (r"\boxed{2} is too small, so \boxed{3}", "3"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
    ],
)
def test_boxes_with_only_a_separator_between_them_are_one_list(response, text):
    assert text_of(response) == text


@pytest.mark.parametrize(
    ("answer_format", "response", "text"),
    [
        ("boxed", "no box, but 7", None),
        ("boxed", r"\boxed{7} #### 8", "7"),
        ("gsm8k", r"\boxed{7}" + "\n#### 8", "8"),
        ("gsm8k", r"\boxed{7}", None),
        ("answer_tag", r"<answer>4</answer> \boxed{7}", "4"),
        ("last_line", r"\boxed{7}" + "\nThat makes 12 in all", "12"),
        (r"RESULT=(\d+)", "RESULT=3 RESULT=4", "4"),
        (r"\d+ apples", "3 apples or 5 apples", "5 apples"),
    ],
)
def test_answer_format_names_the_one_form_that_counts(answer_format, response, text):
    assert text_of(response, answer_format) == text


def test_pattern_that_does_not_compile_is_refused_with_the_names_there_are():
    with pytest.raises(InputError, match=r"--answer-format '\(': no regular expression .*auto, boxed, gsm8k"):
        check_answer_format("(")
    check_answer_format("auto")
    check_answer_format(r"RESULT=(\d+)")


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (72, "72"),
        (72.0, "72.0"),
        (np.int64(5), "5"),
        (["72"], "72"),
        ([1, 2], "1, 2"),
        (np.array([3]), "3"),
        (b"7", "7"),
        ("  7 ", "7"),
        (r"\boxed{Yes}", "Yes"),
        (r"We get $x$, so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("He sells 9.\n#### 18", "18"),
        (None, ""),
        (float("nan"), ""),
        ("", ""),
        ("See solution.", ""),
        ("N/A", ""),
        ({}, ""),
    ],
)
def test_gold_of_any_type_becomes_text(gold, text):
    assert prepare_gold(gold) == text


@pytest.mark.parametrize(
    "response",
    [
        "so 5 is " * 125_000 + r"\boxed{5}",
        r"\boxed{" * 150_000,
        r"\boxed{" + "{" * 500_000 + "}" * 500_000 + "}",
        "<answer>" * 125_000,
        "####" * 250_000,
        "\x00" * 1_000_000,
        "\n" * 1_000_000 + " " * 500_000 + "5",
        "5" + "<|im_end|>" * 100_000,
    ],
)
def test_a_megabyte_of_anything_is_looked_at_in_a_moment(response):
    start = time.process_time()
    final_answer(response)
    assert time.process_time() - start < 0.5
