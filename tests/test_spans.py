"""Spans of decoded text: literal cuts, nesting, and a slow version on the joined text."""

import re
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import PrerequisiteError
from ktae_cli.estimators.sspo import span_starts
from ktae_cli.spans import marks_of, marks_of_ids, marks_of_texts
from tests.helpers import batch_of, rollout

DELIMITERS = ["paragraph", "line", "sentence", "clause", "token"]


def starts_of(responses, delimiters, ids="none", **fields) -> list[bool]:
    """Return where spans begin in responses given as texts of their tokens; ids count up from 0."""
    marks = torch.from_numpy(marks_of_texts([text for texts in responses for text in texts]))
    group = [rollout(range(len(texts)), 1, seed=i) for i, texts in enumerate(responses)]
    return span_starts(batch_of([group], text_marks=marks, **fields), delimiters, ids).tolist()


def cut(texts, delimiters, **fields) -> list[str]:
    """Join the tokens of one response span by span."""
    spans: list[str] = []
    for text, starts in zip(texts, starts_of([texts], delimiters, **fields), strict=True):
        spans = [*spans, text] if starts else [*spans[:-1], spans[-1] + text]
    return spans


@pytest.mark.parametrize(
    ("delimiters", "text", "expected"),
    [
        ("sentence", "So| x| =| 3|.|14|.| Then| stop|.", ["So x = 3.14.", " Then stop."]),
        ("sentence", "Is| it|?| Yes|!\n|Done", ["Is it?", " Yes!\n", "Done"]),
        ("sentence", "He| said| \"no|.\"| Then", ["He said \"no.\"", " Then"]),
        ("sentence", "**|Bold|.**| Next| $|x|=2|.$| End", ["**Bold.**", " Next $x=2.$", " End"]),
        ("sentence", "a|. B|c", ["a. B", "c"]),
        ("sentence", "一|。|二|！|三", ["一。", "二！", "三"]),
        ("sentence", "x|,| y|;| z", ["x, y; z"]),
        ("sentence", "a| b|\n|c", ["a b\n", "c"]),
        ("clause", "x|,| y|:| z|.| w|,|v", ["x,", " y:", " z.", " w,v"]),
        ("clause", "1|,|000| a", ["1,000 a"]),
        ("clause", "一|，|二|、|三", ["一，", "二、", "三"]),
        ("line", "a|.| b|\n|c| d|\n", ["a. b\n", "c d\n"]),
        ("paragraph", "a|\n|b|\n\n|c", ["a\nb\n\n", "c"]),
        ("paragraph", "a|.\n|\n|b", ["a.\n\n", "b"]),
        ("paragraph", "a|\n|  \n|b|\r\n|\r\n|c", ["a\n  \n", "b\r\n\r\n", "c"]),
        ("paragraph", "a|\nb|\n|c", ["a\nb\nc"]),
        ("paragraph", "a|\n  |\n|b", ["a\n  \n", "b"]),
        ("line", "a|\n|\n|\n|b", ["a\n\n\n", "b"]),
        ("sentence", "a|.| |\n|b", ["a. \n", "b"]),
        ("token", "a|.| b", ["a", ".", " b"]),
        ("none", "a|.| b|\n\n|c", ["a. b\n\nc"]),
    ],
)  # fmt: skip
def test_text_is_cut_after_its_ends(delimiters, text, expected):
    assert cut(text.split("|"), delimiters) == expected


def test_ids_end_a_span_too():
    texts = ["a", " b", ".", " c", " d", " e"]
    assert cut(texts, "sentence", ids=(0, 3)) == ["a", " b.", " c", " d e"]
    assert cut(texts, "none", ids=4) == ["a b. c d", " e"]
    assert cut(texts, "none", ids="eos", eos_ids=(1,)) == ["a b", ". c d e"]
    with pytest.raises(PrerequisiteError, match="ids=eos needs the end-of-text id"):
        cut(texts, "none", ids="eos")


def test_a_rollout_begins_a_span_and_knows_nothing_of_its_neighbours():
    responses = [["a", "."], [" b", "\n"], ["\n", "c"], [], ["d"]]
    for delimiters in DELIMITERS:
        alone = [flag for texts in responses for flag in starts_of([texts], delimiters)]
        assert starts_of(responses, delimiters) == alone
    assert starts_of(responses, "none") == [True, False, True, False, True, False, True]


def test_marks_come_from_texts_or_from_each_distinct_id():
    asked = []
    texts = {5: "a.", 7: "\n", 9: None}

    def text_of(token):
        asked.append(token)
        return texts[token]

    found = marks_of_ids(np.array([7, 5, 7, 9, 5]), text_of)
    assert found.dtype == np.uint8
    assert found.tolist() == [marks_of("\n"), marks_of("a."), marks_of("\n"), 0, marks_of("a.")]
    assert sorted(asked) == [5, 7, 9]
    assert marks_of_ids(np.array([], np.int64), text_of).tolist() == []
    assert marks_of_texts(["a.", None, ""]).tolist() == [marks_of("a."), 0, 0]
    assert marks_of("a.") > 0


def test_a_mark_fits_one_byte():
    assert all(
        0 <= marks_of(a + b) < 256 for a in ("", "\n", "\n\n", ". ", ", ", " ", "x") for b in ("", "\n", ".", ";")
    )


@pytest.mark.parametrize("text", ["." + "*" * 200_000, "\n" + " " * 200_000 + "x", "\n \r" * 70_000, ".)" * 100_000])
def test_marks_of_a_long_hostile_text_take_no_time(text):
    before = time.perf_counter()
    marks_of(text)
    assert time.perf_counter() - before < 1


TEXTS = st.lists(
    st.text(alphabet="ab.,!;:\n \r\"*。，", min_size=0, max_size=4), min_size=1, max_size=12
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(texts=TEXTS)
def test_finer_delimiters_begin_a_span_wherever_coarser_ones_do(texts):
    coarse = [False] * len(texts)
    for delimiters in ["none", *DELIMITERS]:
        fine = starts_of([texts], delimiters)
        assert all(f for c, f in zip(coarse, fine, strict=True) if c)
        coarse = fine


def ends_after(text, following, delimiters) -> bool:
    """Look for an end in a token's text, by the first character of the text that follows."""
    space = "" if delimiters in ("line", "paragraph") else following[:1]
    marks = {"sentence": ".!?…؟", "clause": ".!?…؟,;:،؛"}.get(delimiters, "")
    wide = {"sentence": "。｡！？।॥", "clause": "。｡！？।॥，、；："}.get(delimiters, "")
    for at, character in enumerate(text):
        rest = (text[at + 1 :] + space).lstrip("\"'”’»)]}$*_")
        if character in wide or (character in marks and rest[:1].isspace()):
            return True
    if delimiters != "paragraph":
        return "\n" in text
    inside = re.search(r"\n[ \t\r]*\n", text)
    closes, opens = re.search(r"\n[ \t\r]*\Z", text), re.match(r"[ \t\r]*\n", following)
    return bool(inside or (closes and opens))


@pytest.mark.parametrize("delimiters", ["paragraph", "line", "sentence", "clause"])
@settings(max_examples=200, deadline=None)
@given(texts=TEXTS)
def test_cuts_equal_a_slow_reading_of_the_text(delimiters, texts):
    expected, ended = [], True
    for place, text in enumerate(texts):
        following = texts[place + 1] if place + 1 < len(texts) else ""
        blank = place > 0 and text.isspace()
        expected.append(ended and not blank)
        ends = ends_after(text, following, delimiters)
        ended = ends or (ended and blank)
    assert starts_of([texts], delimiters) == expected
