"""`--to nemo_rl`: the batch of NeMo-RL's clipped policy-gradient loss."""

import json

import numpy as np

from tests.exports.cases import ROWS, read_tensors, write_case
from tests.rollout_files import ktae


def recover(path):
    """Read what the loss reads (NVIDIA-NeMo/RL `loss_functions.py`): `[:, 1:]` of mask and advantages, for the next
    token of `input_ids[:, :-1]`; nothing but padding lies beyond input_lengths."""
    batch, metadata = read_tensors(path)
    found = {}
    for at, rollout in enumerate(json.loads(metadata["rollout_ids"])):
        length = int(batch["input_lengths"][at])
        advantages = batch["advantages"][at, 1:] * batch["token_mask"][at, 1:]
        assert not advantages[max(length - 1, 0) :].any() and not batch["token_mask"][at, length:].any()
        first = batch["advantages"][at, :1] if length else []
        found[rollout] = (batch["input_ids"][at, :length], [*first, *advantages[: max(length - 1, 0)]])
    return found


def test_tensors_have_the_names_types_and_padding_of_the_loss(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[1], ROWS[7]])
    assert ktae("export", path, "--to", "nemo_rl(pad=3)", "-q") == 0
    batch, metadata = read_tensors(tmp_path / "x.export.nemo_rl.safetensors")
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "input_ids": ("int64", (2, 6)), "input_lengths": ("int64", (2,)), "token_mask": ("float32", (2, 6)),
        "advantages": ("float32", (2, 6)), "prev_logprobs": ("float32", (2, 6)),
        "generation_logprobs": ("float32", (2, 6)), "sample_mask": ("float32", (2,)),
    }  # fmt: skip
    assert batch["input_ids"].tolist() == [[1, 90, 91, 7, 7, 5], [1, 92, 4, 4, 3, 3]]
    assert batch["token_mask"].tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert batch["advantages"].tolist() == [[0, 0, 0, 0, 0.125, 0.25], [0] * 6]
    assert batch["sample_mask"].tolist() == [1, 0]
    old = np.float32(ROWS[1]["old_log_probs"])
    assert batch["prev_logprobs"][0].tolist() == [0, 0, 0, 0, old[1], old[2]]
    assert batch["generation_logprobs"][0].tolist() == [0, 0, 0, 0, old[1] - 0.5, old[2] - 0.5]
    assert json.loads(metadata["group_ids"]) == ["g", "h"]
    assert metadata["alignment"].startswith("full sequence, right-padded")
