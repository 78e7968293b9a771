"""`--to trl`: a dataset on disk; TRL's own trainer trains on it in tests/trainers/test_trl_online.py."""

import pyarrow as pa

from tests.exports.cases import ROWS, write_case
from tests.rollout_files import ktae


def table_of(path):
    (data,) = path.glob("data-*.arrow")
    with pa.memory_map(str(data)) as file:
        return pa.ipc.open_stream(file).read_all()


def recover(path):
    """Join prompt and completion as `_compute_loss` does; values stand on the completion."""
    found = {}
    for row in table_of(path).to_pylist():
        assert len(row["completion_mask"]) == len(row["completion_ids"]) == len(row["advantages"])
        assert all(on or value == 0 for on, value in zip(row["completion_mask"], row["advantages"], strict=True))
        values = [0.0] * len(row["prompt_ids"] or []) + row["advantages"]
        found[row["rollout_id"]] = ([*(row["prompt_ids"] or []), *row["completion_ids"]], values)
    return found


def test_columns_are_those_that_the_trainer_reads(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[0], ROWS[5] | {"prompt": None}])
    assert ktae("export", path, "--to", "trl", "-q") == 0
    first, second = table_of(tmp_path / "x.export.trl").to_pylist()
    kept = [value if on else 0.0 for value, on in zip(ROWS[0]["old_log_probs"], ROWS[0]["response_mask"], strict=True)]
    assert first == {
        "group_id": "g", "rollout_id": "hole", "prompt": "a?", "prompt_ids": [1, 90, 91],
        "completion_ids": [5, 6, 7, 8, 2], "completion_mask": [1, 0, 0, 1, 1],
        "advantages": [0.5, 0.0, 0.0, -0.25, 1.5], "reward": 1.0, "old_per_token_logps": kept,
    }  # fmt: skip
    assert second["prompt"] == ""


def test_log_probs_of_the_engine_stand_in_where_every_rollout_has_them(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[0], ROWS[5] | {"old_log_probs": None}])
    assert ktae("export", path, "--to", "trl") == 0
    assert "old_per_token_logps are rollout_log_probs: not every rollout has old_log_probs" in capsys.readouterr().err
    assert table_of(tmp_path / "x.export.trl")["old_per_token_logps"].to_pylist()[1] == ROWS[5]["rollout_log_probs"]
    bare = write_case(tmp_path / "y.scored.parquet", ROWS[:2], without=("old_log_probs", "rollout_log_probs"))
    assert ktae("export", bare, "--to", "trl", "-q") == 0
    assert "old_per_token_logps" not in table_of(tmp_path / "y.export.trl").column_names
