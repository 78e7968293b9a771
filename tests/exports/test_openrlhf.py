"""`--to openrlhf`: the tensors of an Experience, one shorter than the sequences."""

import json

import numpy as np

from tests.exports.cases import ROWS, read_tensors, write_case
from tests.rollout_files import ktae

BOS = 1
SPEC = f"openrlhf(bos={BOS})"


def recover(path):
    """Cut the padding as `remove_padding_in_sequences` does (OpenRLHF `experience.py`): as many places off the end of
    every field as attention_mask has zeros there; action t acts on token t + 1."""
    batch, metadata = read_tensors(path)
    found = {}
    for at, rollout in enumerate(json.loads(metadata["rollout_ids"])):
        pad = int(batch["attention_mask"][at][::-1].argmax())
        end = -pad if pad else None
        ids = batch["sequences"][at][:end].tolist()
        values = (batch["advantages"][at] * batch["action_mask"][at])[:end].tolist()
        assert len(values) == len(ids) - 1 and int(batch["total_length"][at]) == len(ids)
        assert (batch["returns"][at] == batch["advantages"][at]).all()
        found[rollout] = (ids, [0.0, *values])
    return found


def test_tensors_have_the_names_types_and_lengths_of_an_experience(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[2], ROWS[5]])
    assert ktae("export", path, "--to", "openrlhf", "-q") == 0
    batch, _ = read_tensors(tmp_path / "x.export.openrlhf.safetensors")
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "sequences": ("int64", (2, 7)), "attention_mask": ("int64", (2, 7)), "action_mask": ("bool", (2, 6)),
        "advantages": ("float32", (2, 6)), "returns": ("float32", (2, 6)), "action_log_probs": ("float32", (2, 6)),
        "rollout_log_probs": ("float32", (2, 6)), "rewards": ("float32", (2,)), "truncated": ("bool", (2,)),
        "response_length": ("int64", (2,)), "total_length": ("int64", (2,)),
    }  # fmt: skip
    assert batch["sequences"].tolist() == [[1, 90, 91, 6, 0, 0, 9], [1, 92, 5, 2, 0, 0, 0]]
    assert batch["action_mask"].astype(int).tolist() == [[0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]]
    assert batch["advantages"].tolist() == [[0, 0, -1.0, -1.25, -1.5, -2.0], [0, 0.75, 2.0, 0, 0, 0]]
    assert np.array_equal(batch["rewards"], np.float32([0.0, 0.5])) and batch["truncated"].tolist() == [True, False]
    assert batch["response_length"].tolist() == [4, 2]
