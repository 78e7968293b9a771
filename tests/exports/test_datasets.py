"""`--to datasets`: a folder, opened by the real library."""

import json

import pytest

from tests.exports.cases import ROWS, write_case
from tests.rollout_files import ktae


def library():
    return pytest.importorskip("datasets", reason="needs the package datasets")


def recover(path):
    datasets = library()
    return {row["rollout_id"]: (row["input_ids"], row["advantages"]) for row in datasets.load_from_disk(str(path))}


def test_folder_trains_as_any_dataset_does(tmp_path):
    datasets = library()
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "datasets", "-q") == 0
    loaded = datasets.load_from_disk(str(tmp_path / "x.export.datasets"))
    assert loaded.column_names == [
        "group_id", "rollout_id", "input_ids", "loss_mask", "advantages", "rollout_log_probs", "old_log_probs",
        "reward", "step",
    ]  # fmt: skip
    longest = loaded.map(lambda row: {"n": len(row["input_ids"])}).sort("n")[-1]
    assert (longest["rollout_id"], longest["n"]) == ("hole", 8)
    assert json.loads((tmp_path / "x.export.datasets" / "ktae.json").read_text())["spec"] == "ktae"


def test_fingerprint_names_the_content(tmp_path):
    datasets = library()

    def fingerprint(rows, name):
        path = write_case(tmp_path / f"{name}.scored.parquet", ROWS[:rows])
        assert ktae("export", path, "--to", "datasets", "-q") == 0
        return datasets.load_from_disk(str(tmp_path / f"{name}.export.datasets"))._fingerprint

    assert fingerprint(4, "a") == fingerprint(4, "b") != fingerprint(6, "c")


def test_sharded_json_lines_load_beside_their_metadata(tmp_path):
    datasets = library()
    path = write_case(tmp_path / "x.scored.parquet")
    (tmp_path / "out").mkdir()
    assert ktae("export", path, "--to", "jsonl", "-q", "-o", tmp_path / "out" / "train.jsonl", "--shards", "2") == 0
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert sorted(loaded["rollout_id"])[:3] == ["empty", "hole", "masked"]
    assert len(loaded) == 9
