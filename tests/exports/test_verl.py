"""`--to verl`: the tensors of a DataProto; verl's own classes load them in tests/trainers/test_verl_export.py."""

import json

from tests.exports.cases import ROWS, read_tensors, write_case
from tests.rollout_files import ktae


def recover(path):
    """Slice as verl does: the response is the last columns of `attention_mask` (`compute_response_mask`)."""
    batch, metadata = read_tensors(path)
    attention, width = batch["attention_mask"].astype(bool), batch["responses"].shape[1]
    found = {}
    for at, rollout in enumerate(json.loads(metadata["rollout_ids"])):
        prompt, response = attention[at, : attention.shape[1] - width], attention[at, attention.shape[1] - width :]
        assert prompt.tolist() == sorted(prompt.tolist())
        assert response.tolist() == sorted(response.tolist(), reverse=True)
        assert not batch["advantages"][at][~batch["response_mask"][at].astype(bool)].any()
        assert batch["input_ids"][at].tolist() == [*batch["prompts"][at].tolist(), *batch["responses"][at].tolist()]
        values = batch["advantages"][at][response].tolist()
        found[rollout] = (batch["input_ids"][at][attention[at]].tolist(), [0.0] * int(prompt.sum()) + values)
    return found


def test_prompts_are_padded_on_the_left_and_responses_on_the_right(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[0], ROWS[5]])
    assert ktae("export", path, "--to", "verl(pad=4)", "-q") == 0
    batch, metadata = read_tensors(tmp_path / "x.export.verl.safetensors")
    int64, float32 = ("int64", (2, 5)), ("float32", (2, 5))
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "prompts": ("int64", (2, 3)), "responses": int64, "response_mask": int64, "input_ids": ("int64", (2, 8)),
        "attention_mask": ("int64", (2, 8)), "position_ids": ("int64", (2, 8)), "advantages": float32,
        "returns": float32, "token_level_scores": float32, "old_log_probs": float32, "rollout_log_probs": float32,
        "correct": ("int64", (2,)),
    }  # fmt: skip
    assert batch["prompts"].tolist() == [[1, 90, 91], [4, 1, 92]]
    assert batch["responses"].tolist() == [[5, 6, 7, 8, 2], [5, 2, 4, 4, 4]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 2, 3, 3, 3, 3]]
    assert batch["response_mask"].tolist() == [[1, 0, 0, 1, 1], [1, 1, 0, 0, 0]]
    assert batch["token_level_scores"].tolist() == [[0, 0, 0, 0, 1.0], [0, 0.5, 0, 0, 0]]
    assert batch["returns"].tolist() == batch["advantages"].tolist() == [[0.5, 0, 0, -0.25, 1.5], [0.75, 2.0, 0, 0, 0]]
    assert batch["correct"].tolist() == [1, -1]
    assert json.loads(metadata["group_ids"]) == ["g", "h"]
