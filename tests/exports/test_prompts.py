"""`--to prompts`: which prompts are worth sampling again."""

import pytest

from tests.exports.cases import read_lines, write_case
from tests.rollout_files import ktae, refusal

PER_TOKEN = False


def recover(path):
    return {
        name: (line["status"], [line["pass_rate"], line["n_rollouts"], line["n_right"], line["n_wrong"]])
        for line in read_lines(path)
        for name in line["rollout_id"]
    }


def expected(rollouts):
    groups = {}
    for name, rollout in rollouts.items():
        row = rollout.row
        right = row["correct"] if "correct" in row else row["reward"] > 0
        groups.setdefault(row["group_id"], []).append((name, right))
    found = {}
    for members in groups.values():
        verdicts = [right for _, right in members]
        n_right, n_wrong = verdicts.count(True), verdicts.count(False)
        rate = n_right / (n_right + n_wrong) if n_right + n_wrong else None
        status = "unknown" if rate is None else "too_hard" if rate == 0 else "too_easy" if rate == 1 else "kept"
        found |= {name: (status, [rate, len(members), n_right, n_wrong]) for name, _ in members}
    return found


def test_line_holds_the_counts(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "prompts", "--null-advantages", "zero") == 0
    first, second, third = read_lines(tmp_path / "x.export.prompts.jsonl")
    assert first == {
        "group_id": "g", "rollout_id": ["hole", "tool first", "truncated", "wrong"], "step": 7, "prompt": "a?",
        "status": "kept", "pass_rate": 0.5, "n_rollouts": 4, "n_right": 2, "n_wrong": 2, "n_unknown": 0,
    }  # fmt: skip
    assert (second["status"], second["n_unknown"]) == ("kept", 2)
    assert (third["status"], third["pass_rate"]) == ("too_easy", 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert "2 prompts kept" in lines and "1 prompts too easy" in lines


@pytest.mark.parametrize(
    ("spec", "statuses"),
    [
        ("prompts(above=0.5)", ["too_hard", "too_hard", "too_easy"]),
        ("prompts(below=0.5)", ["too_easy", "too_easy", "too_easy"]),
    ],
)
def test_bounds_are_exclusive(tmp_path, spec, statuses):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", spec, "-q") == 0
    assert [line["status"] for line in read_lines(tmp_path / "x.export.prompts.jsonl")] == statuses


def test_options_of_values_are_refused(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet")
    message = refusal(capsys, tmp_path, "export", path, "--to", "prompts", "--advantages", "key_weight")
    assert "--advantages has no meaning for prompts" in message
