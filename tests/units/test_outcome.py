"""Where a response settles its outcome, in characters and in tokens."""

import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ktae_cli.errors import KtaeError, MissingColumnError
from ktae_cli.token_text import IdDecoder, StoredDecoder
from ktae_cli.units.choice import units_of
from ktae_cli.units.outcome import before_positions, settled_at, settled_positions
from tests.helpers import SHARED
from tests.units.texts import batch_of, qwen, texts_batch

# The bar stands where the outcome is settled; without one the whole response counts.
TEXTS = [
    "She has 20 + 6 = 26.\n|A: 26",
    "48/2 = 24 clips.\nTotal 72.\n|#### 72",
    "Let x = 2. Then 2x = 4.\n|The answer is $\\boxed{4}$.",
    "We get 4. |So the final answer is 4. Check: 4.\n\nThus \\boxed{4}",
    "The answer is 5. |Wait, the answer is 6. So \\boxed{6}",
    "Add them.\n\n|**Final Answer**\n\n$\\boxed{26}$",
    "x = 1.5 or 15. |Answer: 15",
    "The answer should be positive. x = 7.\n|\\boxed{7}",
    "Half of it.\n|\\[\n\\boxed{\\frac{1}{2}}\n\\]",
    "So.\n|Thus the answer is:\n\\[\n\\boxed{\\frac{1}{2}}\n\\]",
    "<think>Maybe 5? |No, the answer is 7.</think>\nThe answer is \\boxed{7}.",
    "<think>Maybe 5? So x = 7|</think>\nThe answer is \\boxed{7}.",
    "<think>...|</think>\n<answer>C</answer>",
    "It is C. |So <answer> C </answer>",
    "Thus x = 4. |So we have n = 12 ways. We see 12 = 3 * 4, that is, all\n12",
    "It was maybe 12. |It must be 12. We are sure of this,\n12",
    "The value of $x$ must be odd.\n|She has 12 apples.",
    "Il y a trois cas. On obtient 5。|答案是6。",
    "I have no idea",
    "Here is the code:\n```python\ndef f(x):\n    return x + 1\n```",
    "No number. The box: \\boxed{}",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_an_outcome_is_settled_where_its_sentence_begins(text):
    before, bar, after = text.partition("|")
    assert settled_at(before + after) == (len(before) if bar else None)


def test_a_settled_position_is_that_of_the_token():
    rows = [
        ["x", " =", " 4", ".", " The", " answer", " is", " 4", "."],
        ["It", " is", " odd"],
        [],
        ["é", "\n", "A", ":", " 4"],
    ]
    batch, decoder = texts_batch(rows)
    assert settled_positions(batch, decoder).tolist() == [4, 3, 0, 2]
    assert before_positions(batch, "outcome", decoder).tolist() == [4, 3, 0, 2]


def test_masked_tokens_settle_nothing_but_are_passed():
    rows = [["A: 5\n", "so", "\n", "A: 4"]]
    batch, decoder = texts_batch(rows, mask=[[False, True, True, True]])
    assert settled_positions(batch, decoder).tolist() == [3]
    batch, decoder = texts_batch(rows, mask=[[True, False, True, False]])
    assert settled_positions(batch, decoder).tolist() == [0]


def test_outcomes_from_stored_tokens_and_from_the_response_alone():
    stored = pa.array(["x", "Ċ", "A", ":", "Ġ4"])
    assert settled_positions(batch_of([[1, 2, 3, 4, 5]], stored=stored), StoredDecoder()).tolist() == [2]
    batch = batch_of([[0] * 10, [1], []], texts=["0123456789abcde\nA: 7", None, "A: 7"])
    assert settled_positions(batch, IdDecoder()).tolist() == [8, 1, 0]
    with pytest.raises(MissingColumnError, match="before=outcome needs text"):
        settled_positions(batch_of([[1]]), IdDecoder())


def test_before_a_decile_are_its_tenths_of_the_counted_tokens():
    batch = batch_of([list(range(20)), [1, 2, 3], []], [[False] * 10 + [True] * 10, [True] * 3, []])
    assert before_positions(batch, "3", IdDecoder()).tolist() == [13, 1, 0]
    assert before_positions(batch, "9", IdDecoder()).tolist() == [19, 3, 0]


def test_what_stands_before_is_counted_alone():
    batch, decoder = texts_batch([["So", " A", "\n", "A: 4"], ["B"]], mask=[[False, True, True, True], [True]])
    short = batch.before(settled_positions(batch, decoder))
    assert short.mask.tolist() == [False, True, True, False, False]
    words = units_of("word", decoder)
    assert words.read(short).position.tolist() == [1]


@pytest.mark.parametrize("before", ["0", "10", "outcom", ""])
def test_a_before_that_is_none_is_one_line(before):
    with pytest.raises(KtaeError, match="expected outcome, or a number of deciles from 1 to 9"):
        before_positions(batch_of([[1]]), before, IdDecoder())


@pytest.mark.parametrize(
    "text",
    [
        "#" * 100_000 + "\nA: 4",
        "answer " * 30_000 + "\nA: 4",
        "1 " * 100_000 + "\n1",
        "\\boxed{" * 20_000,
        " " * 200_000 + "A: 4",
    ],
)
def test_hostile_text_takes_no_long_time(text):
    start = time.process_time()
    settled_at(text)
    assert time.process_time() - start < 2


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data beside the project")
def test_gsm8k_answers_are_settled_by_their_last_line():
    table = pq.read_table(SHARED / "data/gsm8k_openai_4x.parquet", columns=["response_ids", "response"]).slice(0, 400)
    decoder = qwen()
    batch = batch_of(table["response_ids"].to_pylist())
    found = settled_positions(batch, decoder)
    last_line = [len(text[: text.rfind("\nA: ") + 1].encode()) for text in table["response"].to_pylist()]
    ends = np.cumsum([len(decoder.token(i).data) for i in batch.token_ids.tolist()])
    starts = batch.starts
    before = [ends[starts[row] + at - 1] - (ends[starts[row] - 1] if row else 0) for row, at in enumerate(found)]
    assert sum(one == other for one, other in zip(before, last_line, strict=True)) >= 396
