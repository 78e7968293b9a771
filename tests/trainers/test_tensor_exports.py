"""The tensor targets in the real safetensors library, and `--normalize` beside verl's own function."""

import json

import numpy as np
import pytest
import torch

from ktae_cli.exporting import write_export
from tests.exports.cases import ROWS, read_tensors, rollouts_of, write_case

safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")


@pytest.mark.parametrize("name", ["nemo_rl", "skyrl", "openrlhf"])
def test_the_library_reads_what_the_specification_says(name, tmp_path):
    from safetensors import safe_open

    path, out = write_case(tmp_path / "x.scored.parquet"), tmp_path / "out.safetensors"
    write_export(path, name, str(out))
    expected, metadata = read_tensors(out)
    found = safetensors.load_file(out)
    assert set(found) == set(expected)
    for key, tensor in found.items():
        assert np.array_equal(tensor.numpy(), expected[key], equal_nan=True)
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["rollout_ids"]) == json.loads(metadata["rollout_ids"])


def test_normalisation_by_batch_is_verls(tmp_path):
    functional = pytest.importorskip("verl.utils.torch_functional", reason="needs verl")
    path, out = write_case(tmp_path / "x.scored.parquet", ROWS), tmp_path / "out.safetensors"
    write_export(path, "nemo_rl", str(out), normalize="batch")
    found = safetensors.load_file(out)
    plain = tmp_path / "plain.safetensors"
    write_export(path, "nemo_rl", str(plain))
    raw = safetensors.load_file(plain)
    expected = functional.masked_whiten(raw["advantages"], raw["token_mask"]) * raw["token_mask"]
    assert torch.allclose(found["advantages"], expected, atol=1e-6)
    assert len(rollouts_of(path)) == len(expected)
