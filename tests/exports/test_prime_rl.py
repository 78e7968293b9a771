"""`--to prime_rl`: episodes whose nodes carry the advantages."""

import pytest

from tests.exports.cases import ROWS, read_lines, write_case
from tests.rollout_files import ktae


def recover(path):
    """Build the training sequence as `trace_to_samples` does (prime-rl `orchestrator/trajectories.py`): token_ids and
    mask along the branch; compact lists fill the true places of their node's mask."""
    found = {}
    for episode in read_lines(path):
        [trace] = episode["traces"]
        ids, values = [], []
        for at, node in enumerate(trace["nodes"]):
            assert node.get("parent") == (at - 1 if at else None)
            compact = iter(node.get("advantages", []))
            ids += node["token_ids"]
            values += [next(compact) if on else 0.0 for on in node["mask"]]
            assert next(compact, None) is None and len(node["mask"]) == len(node["token_ids"])
            assert node["sampled"] == any(node["mask"])
        found[trace["id"]] = (ids, values)
    return found


def test_nodes_follow_the_mask(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet", [ROWS[0]])
    assert ktae("export", path, "--to", "prime_rl", "-q") == 0
    [episode] = read_lines(tmp_path / "x.export.prime_rl.jsonl")
    nodes = episode["traces"][0]["nodes"]
    assert [(n["message"]["role"], n["token_ids"], n.get("advantages")) for n in nodes] == [
        ("user", [1, 90, 91], None),
        ("assistant", [5], [0.5]),
        ("tool", [6, 7], None),
        ("assistant", [8, 2], [-0.25, 1.5]),
    ]
    own = ROWS[0]["rollout_log_probs"]
    assert [value for n in nodes for value in n["logprobs"]] == pytest.approx([own[0], own[3], own[4]])
    assert (episode["group"]["id"], episode["run"]["work"]["step"]) == ("g", 7)


def test_our_reader_of_traces_reads_it_back(tmp_path):
    """`ktae convert` of the export gives the rollouts that were exported."""
    import pyarrow.parquet as pq

    path = write_case(tmp_path / "x.scored.parquet", [ROWS[0], ROWS[2], ROWS[5]])
    out = tmp_path / "step_7" / "traces.jsonl"
    out.parent.mkdir()
    assert ktae("export", path, "--to", "prime_rl", "-q", "-o", out) == 0
    assert ktae("convert", out, "-o", tmp_path / "back.parquet", "-q", "--format", "prime_rl") == 0
    rows = pq.read_table(tmp_path / "back.parquet").to_pylist()
    assert [row["rollout_id"] for row in rows] == ["hole", "truncated", "no verdict"]
    assert [row["prompt_ids"] for row in rows] == [[1, 90, 91], [1, 90, 91], [1, 92]]
    assert rows[0]["response_ids"] == [5, 6, 7, 8, 2]
    assert rows[0]["response_mask"] == [True, False, False, True, True]
    assert rows[0]["trainer_advantages"] == [0.5, 0, 0, -0.25, 1.5]
    assert [row["finish_reason"] for row in rows] == ["stop", "length", "stop"]
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.5]
