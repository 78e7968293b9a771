"""`--to slime`: dicts of Sample, and the advantage function of docs/exports.md."""

import json

from tests.exports.cases import ROWS, read_lines, write_case
from tests.rollout_files import ktae


def recover(path):
    """Read as slime does: `tokens[-response_length:]` is the response (`utils/types.py`), `train_metadata` becomes
    `rollout_data["metadata"]` (`ray/rollout.py`), and an advantage has one value for each response token."""
    found = {}
    for line in read_lines(path):
        sample = line["sample"]
        values = sample["train_metadata"]["advantages"]
        assert len(values) == len(sample["loss_mask"]) == sample["response_length"]
        assert all(value == 0 for value, on in zip(values, sample["loss_mask"], strict=True) if not on)
        prompt = len(sample["tokens"]) - sample["response_length"]
        found[line["rollout_id"]] = (sample["tokens"], [0.0] * prompt + values)
    return found


def test_line_is_a_sample(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[1], ROWS[2]])
    assert ktae("export", path, "--to", "slime", "-q") == 0
    first, second = read_lines(tmp_path / "x.export.slime.jsonl")
    assert first == {
        "rollout_id": "tool first",
        "group_id": "g",
        "sample": {
            "group_index": 0, "index": 0, "prompt": "a?", "tokens": [1, 90, 91, 7, 7, 5], "response": "7 7 5",
            "response_length": 3, "label": None, "reward": 1.0, "loss_mask": [0, 1, 1],
            "rollout_log_probs": first["sample"]["rollout_log_probs"], "status": "completed", "metadata": {},
            "train_metadata": {"rollout_id": "tool first", "advantages": [0.0, 0.125, 0.25]},
        },
    }  # fmt: skip
    assert first["sample"]["rollout_log_probs"][0] == 0.0
    assert json.dumps(second["sample"]["status"]) == '"truncated"'


def test_the_lines_of_the_page_replay_the_advantages(tmp_path, monkeypatch):
    """Our reader of slime's dumps finds the rollouts in the `.pt` file of docs/exports.md, its function the values."""
    import pyarrow.parquet as pq
    import torch

    from tests.test_docs import blocks

    path = write_case(tmp_path / "x.scored.parquet", ROWS[:4])
    monkeypatch.chdir(tmp_path)
    assert ktae("export", path, "--to", "slime", "-q", "-o", "rollouts.export.slime.jsonl") == 0
    names = {}
    for block in blocks("exports"):
        if "load-debug" in block.text or "rollout_data" in block.text:
            exec(block.text if block.language == "py" else "", names)
    assert ktae("convert", tmp_path / "replay" / "0.pt", "-o", tmp_path / "back.parquet", "-q") == 0
    rows = pq.read_table(tmp_path / "back.parquet").to_pylist()
    assert [row["response_ids"] for row in rows] == [row["response_ids"] for row in ROWS[:4]]
    assert rows[0]["response_mask"] == ROWS[0]["response_mask"]

    samples = torch.load(tmp_path / "replay" / "0.pt", weights_only=True)["samples"]
    data = {"metadata": [sample["train_metadata"] for sample in samples]}
    data["loss_masks"] = [torch.tensor(sample["loss_mask"]) for sample in samples]
    names["compute"](None, data)
    assert data["advantages"][0].tolist() == [0.5, 0, 0, -0.25, 1.5]
    assert data["advantages"][0].dtype == torch.float32 and data["returns"][3].tolist() == [-0.75, -0.5]
