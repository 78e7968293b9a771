"""`--to dpo`: pairs of siblings, the most contrasting first."""

import numpy as np
import pytest

from tests.exports.cases import ROWS, read_lines, write_case
from tests.rollout_files import ktae

COLUMN = "key_weight"
PER_TOKEN = False


def recover(path):
    return {
        line["rollout_id"]: (line["chosen_ids"] + line["rejected_ids"], [line["rejected_rollout_id"], line["contrast"]])
        for line in read_lines(path)
    }


def expected(rollouts):
    """One pair a mixed group: the right one of the highest mean key weight, the wrong one of the lowest."""
    groups = {}
    for name, rollout in rollouts.items():
        values = np.float64([v for v, on in zip(rollout.values, rollout.mask, strict=True) if on])
        row = rollout.row
        right = row["correct"] if "correct" in row else row["reward"] > 0
        if len(values) and right is not None:
            groups.setdefault(row.get("group_id"), ([], []))[not right].append((name, values.mean(), row))
    found = {}
    for right, wrong in groups.values():
        if right and wrong:
            (name, high, one), (other, low, two) = max(right, key=lambda r: r[1]), min(wrong, key=lambda w: w[1])
            found[name] = (one["response_ids"] + two["response_ids"], [other, pytest.approx(high - low)])
    return found


def test_line_holds_texts_and_ids(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "dpo", "-q") == 0
    assert read_lines(tmp_path / "x.export.dpo.jsonl") == [
        {
            "rollout_id": "hole", "rejected_rollout_id": "truncated", "group_id": "g",
            "contrast": pytest.approx(0.5 / 3 + 1.75 / 4), "prompt": "a?", "chosen": "5 6 7 8 2",
            "rejected": "6 0 0 9", "prompt_ids": [1, 90, 91], "chosen_ids": [5, 6, 7, 8, 2],
            "rejected_ids": [6, 0, 0, 9],
        }
    ]  # fmt: skip


def test_no_rollout_is_used_twice(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "dpo(pairs_per_group=0)", "-q") == 0
    lines = read_lines(tmp_path / "x.export.dpo.jsonl")
    assert [(line["rollout_id"], line["rejected_rollout_id"]) for line in lines] == [
        ("hole", "truncated"), ("tool first", "wrong"),
    ]  # fmt: skip
    assert [line["contrast"] for line in lines] == sorted((line["contrast"] for line in lines), reverse=True)


def test_truncated_responses_leave_the_pairs_on_demand(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "dpo", "-q", "--mask-truncated") == 0
    [line] = read_lines(tmp_path / "x.export.dpo.jsonl")
    assert line["rejected_rollout_id"] == "wrong"


def test_pairs_of_scattered_groups_do_not_depend_on_the_chunks(tmp_path, monkeypatch):
    from ktae_cli.exports import dpo as module

    rows = [row | {"group_id": f"{row['group_id']}{k}", "rollout_id": f"{row['rollout_id']}{k}"}
            for row in ROWS for k in range(5)]  # fmt: skip
    path = write_case(tmp_path / "x.scored.parquet", rows)
    found = []
    for tokens in (1, 1 << 22):
        monkeypatch.setattr(module, "_CHUNK_TOKENS", tokens)
        assert ktae("export", path, "--to", "dpo(pairs_per_group=2)", "-q", "--force") == 0
        found.append(read_lines(tmp_path / "x.export.dpo.jsonl"))
    assert found[0] == found[1] and len(found[0]) == 10
