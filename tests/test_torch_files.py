"""`.pt` files and pickles are read without torch and run nothing."""

import pickle
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.errors import InputError, KtaeError
from ktae_cli.readers._torch import Unknown, load_pickle, load_torch


class Thing:
    def __init__(self):
        self.x = [1, np.arange(3)]


class Program:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T, torch.tensor([0.5, -1.0]), torch.tensor([True, False]), torch.tensor(3),
        torch.tensor([1.5, 2.0], dtype=torch.float16), torch.zeros(0, 4), torch.arange(10, dtype=torch.int32)[2:9:3],
        torch.tensor([250], dtype=torch.uint8), torch.tensor([1.0]).expand(3),
    ],
)  # fmt: skip
def test_tensor_is_the_array_that_torch_reads(tmp_path, tensor):
    torch.save({"t": tensor, "same": [tensor]}, tmp_path / "a.pt")
    found = load_torch(tmp_path / "a.pt")
    assert np.array_equal(found["t"], tensor.numpy())
    assert found["t"].dtype == tensor.numpy().dtype
    assert np.array_equal(found["same"][0], tensor.numpy())


def test_bfloat16_becomes_float32(tmp_path):
    torch.save(torch.tensor([1.5, -2.25, float("inf")], dtype=torch.bfloat16), tmp_path / "a.pt")
    assert load_torch(tmp_path / "a.pt").tolist() == [1.5, -2.25, float("inf")]


def test_builtins_and_numpy_come_back_as_they_were(tmp_path):
    value = {
        "list": [1, 2.5, "x", None, True, b"b"], "tuple": (1, [2]), "ordered": OrderedDict(a=1), "set": {1, 2},
        "scalar": np.float32(0.5), "objects": np.array(["a", None, [1]], object), "text": np.array(["ab", "c"]),
        "matrix": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "big": np.array([1, 2], ">i4"),
    }  # fmt: skip
    torch.save(value, tmp_path / "a.pt", pickle_protocol=2)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, protocol=5))
    for found in (load_torch(tmp_path / "a.pt"), load_pickle(tmp_path / "a.pkl")):
        assert found["list"] == value["list"]
        assert (found["tuple"], found["ordered"], found["set"]) == ((1, [2]), {"a": 1}, {1, 2})
        assert found["scalar"] == 0.5
        assert found["objects"].tolist() == ["a", None, [1]]
        for name in ("text", "matrix", "big"):
            assert np.array_equal(found[name], value[name])


def test_other_classes_are_refused_in_torch_files_and_unknown_in_pickles(tmp_path):
    torch.save([Thing()], tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"a.pt: holds an object of tests.test_torch_files.Thing"):
        load_torch(tmp_path / "a.pt")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Thing()]))
    (found,) = load_pickle(tmp_path / "a.pkl")
    assert isinstance(found, Unknown)
    assert (found.module, found.name) == ("tests.test_torch_files", "Thing")
    assert found.state["x"][1].tolist() == [0, 1, 2]


def test_nothing_that_a_file_names_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Program()))
    torch.save(Program(), tmp_path / "a.pt")
    load_pickle(tmp_path / "a.pkl")
    with pytest.raises(InputError):
        load_torch(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()


def test_truncated_files_give_one_clear_error(tmp_path):
    torch.save({"t": torch.arange(100), "l": list(range(50))}, tmp_path / "a.pt")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"t": np.arange(100), "l": list(range(50))}))
    for name, load in (("a.pt", load_torch), ("a.pkl", load_pickle)):
        whole = (tmp_path / name).read_bytes()
        for cut in range(0, len(whole) - 1, max(len(whole) // 25, 1)):
            (tmp_path / f"cut{name}").write_bytes(whole[:cut])
            with pytest.raises(InputError, match=f"cut{name}"):
                load(tmp_path / f"cut{name}")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_value_or_one_clear_error(data):
    whole = bytearray(pickle.dumps({"a": np.arange(4), "b": [1, "x", np.array(["u"], object)], "c": np.float64(1)}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(2, len(whole) - 1))] = data.draw(
            st.sampled_from(b"\x00\x01)]}(.abehlostu\x8c\x93\x94R")
        )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.pkl"
        path.write_bytes(whole)
        try:
            load_pickle(path)
        except KtaeError as error:
            assert "\n" not in str(error)
