"""Verdicts on public answers and golds; skipped where the files are absent."""

import json

import pyarrow.parquet as pq
import pytest

from ktae_cli.grading.compare import GradingOptions, cheap_verdict, grade
from tests.helpers import SHARED

DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is absent")

# Rows of answer_pairs.jsonl whose verdict is not the file's, with ours; docs/verify.md has the reasons.
NOT_AS_LABELLED = {
    "EMPTY gold": (None, "gold_unparsed"),
    "tower power, int pow in C": (None, "too_complex"),
    "10^10^10": (None, "too_complex"),
    "factorial of 1e7": (None, "too_complex"),
    "long sum": (None, "too_complex"),
    "5000-digit integer (int str limit)": (False, "no_answer"),
}


def pairs():
    with (DATA / "answer_pairs.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_answer_pairs_are_graded_as_labelled_but_for_the_listed_ones():
    found = {row["note"]: (row, grade(row["response"], row["gold"], GradingOptions())) for row in pairs()}
    differing = {note: verdict[:2] for note, (row, verdict) in found.items() if verdict.correct != row["correct"]}
    assert differing == NOT_AS_LABELLED
    assert len(pairs()) - len(differing) == 95


def cheap_agreement(file):
    """Count (rows, rows decided without math-verify, of these equal to the label)."""
    table = pq.read_table(DATA / file, columns=["response", "gold", "reward"]).to_pylist()
    verdicts = [(row, cheap_verdict(row["response"], row["gold"], GradingOptions())) for row in table]
    decided = [(row, verdict) for row, verdict in verdicts if verdict]
    return len(table), len(decided), sum(verdict.correct == (row["reward"] > 0.5) for row, verdict in decided)


def test_gsm8k_is_graded_as_labelled_without_a_single_call_of_math_verify():
    assert cheap_agreement("gsm8k_openai_4x.parquet") == (5276, 5276, 5276)


@pytest.mark.parametrize(
    ("file", "share_decided", "share_agreeing"),
    [("math500_joined_models.parquet", 0.93, 0.985), ("rg_llama3b_amc_aime_50x.parquet", 0.93, 0.995)],
)
def test_real_rollouts_are_mostly_decided_cheaply_and_as_labelled(file, share_decided, share_agreeing):
    rows, decided, agreeing = cheap_agreement(file)
    assert decided >= share_decided * rows
    assert agreeing >= share_agreeing * decided
