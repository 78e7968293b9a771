"""Classes of units by declared rules."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktae_cli.units.classes import CLASSES, RULES, class_of, majority_script, script_of

EXPECTED = {
    "special": ["<|im_end|>", "</s>", "[PAD]"],
    "format": [
        "<think>", "</think>\n<answer>", "</answer>", "</", "think", "\\boxed{", "boxed", " \\", "\\frac{", "\\left(",
        "\\[", "\\)", "{", "}$", "$$", "[", "):\n", "\n\n", " \n", "**", "##", "---", "```python", "Answer:",
        "**Final Answer:**",
    ],
    "hedging": ["Wait", " But", "however,", "\n\nWait,", " let me check", "I think", "Hmm", " double-check", "等等",
        "但是",
    ],
    "number": ["12", " 3.5", "½", "$5", "-7", "1.", "50%", "٣"],
    "operator": ["+", " =", "->", "→", "\\times", " \\cdot", "<=", "≤", "%"],
    "language": ["привет", "的", "αβ"],
    "word": ["the", " x", "α", "don", " think", "Answer"],
    "whitespace": [" ", "\t", "  "],
    "other": ["", ",", ".", "(", "()", "“", "�", "🐕"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in EXPECTED.items() for text in texts])
def test_a_unit_has_the_class_of_its_text(name, text):
    assert class_of(text, script="latin") == name


def test_facts_about_a_unit_come_before_its_letters():
    assert class_of("the", repetition=0.2) == class_of("the", repetition=0.3, copied=1.0) == "repetition"
    assert class_of("the", repetition=0.19, copied=0.8) == "copied"
    assert class_of("the", repetition=0.19, copied=0.79) == "word"
    assert class_of("12", repetition=1.0, copied=1.0) == "number"
    assert class_of("the", special=True) == "special"


def test_language_is_judged_against_the_script_of_the_file():
    assert [class_of("the", script=script) for script in ("latin", "han", None)] == ["word", "language", "word"]
    assert class_of("ひと", script="han") == "word"


def test_the_script_is_that_of_most_letters():
    assert [script_of(text) for text in ("été", "日本語", "мир x", "12", "α", "𝑥", "αβγ")] == [
        "latin", "han", "cyrillic", None, None, None, "greek",
    ]  # fmt: skip
    assert majority_script(["the", "日", "12"], [1, 3, 9]) == "han"
    assert majority_script(["12"], [1]) is None


def test_every_class_has_a_rule():
    assert len(RULES) == len(CLASSES) == len(set(CLASSES))
    assert set(EXPECTED) | {"repetition", "copied"} == set(CLASSES)


@pytest.mark.parametrize(
    "text", [" " * 50_000 + "x", "\n" * 50_000 + "x", "{" * 50_000 + "x", "</" * 50_000, "re-" * 20_000]
)
def test_hostile_text_takes_no_long_time(text):
    start = time.process_time()
    class_of(text, script="latin")
    assert time.process_time() - start < 1


@given(st.text(max_size=20))
def test_every_text_has_a_class(text):
    assert class_of(text) in CLASSES
