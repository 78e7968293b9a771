"""`--to skyrl`: the tensors of SkyRL's TrainingInput."""

import json

from tests.exports.cases import ROWS, read_tensors, write_case
from tests.rollout_files import ktae


def recover(path):
    """Slice as SkyRL does: the response is the last columns of the left-padded sequences
    (`convert_prompts_responses_to_batch_tensors`: every row is one left-padded block)."""
    batch, metadata = read_tensors(path)
    found = {}
    for at, rollout in enumerate(json.loads(metadata["rollout_ids"])):
        attended, response = batch["attention_mask"][at].astype(bool), batch["response_mask"][at].astype(bool)
        ids = batch["sequences"][at][attended].tolist()
        values = (batch["advantages"][at] * batch["loss_mask"][at])[response].tolist()
        assert attended.tolist() == sorted(attended.tolist()) and response.tolist() == sorted(response.tolist())
        assert not batch["advantages"][at][~response].any()
        found[rollout] = (ids, [0.0] * (len(ids) - len(values)) + values)
    return found


def test_tensors_are_padded_on_the_left(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[0], ROWS[5]])
    assert ktae("export", path, "--to", "skyrl", "-q") == 0
    batch, _ = read_tensors(tmp_path / "x.export.skyrl.safetensors")
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "sequences": ("int64", (2, 8)), "attention_mask": ("int64", (2, 8)), "response_mask": ("int64", (2, 5)),
        "loss_mask": ("float32", (2, 5)), "advantages": ("float32", (2, 5)), "returns": ("float32", (2, 5)),
        "action_log_probs": ("float32", (2, 5)), "rollout_logprobs": ("float32", (2, 5)),
    }  # fmt: skip
    assert batch["sequences"].tolist() == [[1, 90, 91, 5, 6, 7, 8, 2], [0, 0, 0, 0, 1, 92, 5, 2]]
    assert batch["loss_mask"].tolist() == [[1, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    assert batch["advantages"].tolist() == [[0.5, 0, 0, -0.25, 1.5], [0, 0, 0, 0.75, 2.0]]
