"""`--to tinker`: lines of Datum, shifted by one."""

from tests.exports.cases import ROWS, read_lines, write_case
from tests.rollout_files import ktae, refusal

BOS = 1
SPEC = f"tinker(bos={BOS})"


def recover(path):
    """Undo `create_rightshifted_model_input_and_leftshifted_targets` of tinker-cookbook (`supervised/common.py`)."""
    found = {}
    for line in read_lines(path):
        [chunk] = line["datum"]["model_input"]["chunks"]
        inputs = line["datum"]["loss_fn_inputs"]
        targets, advantages = inputs["target_tokens"], inputs["advantages"]
        assert chunk["type"] == "encoded_text"
        assert targets["shape"] == advantages["shape"] == [len(chunk["tokens"])]
        assert chunk["tokens"][1:] == targets["data"][:-1]
        found[line["rollout_id"]] = ([chunk["tokens"][0], *targets["data"]], [0.0, *advantages["data"]])
    return found


def test_line_is_the_datum_of_the_policy_losses(tmp_path):
    row = ROWS[0] | {"rollout_log_probs": [-1.0, -2.0, -3.0, -4.0, -5.0]}
    path = write_case(tmp_path / "x.scored.parquet", [row])
    assert ktae("export", path, "--to", "tinker", "-q") == 0
    assert read_lines(tmp_path / "x.export.tinker.jsonl") == [
        {
            "rollout_id": "hole",
            "group_id": "g",
            "datum": {
                "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 90, 91, 5, 6, 7, 8]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": [90, 91, 5, 6, 7, 8, 2], "dtype": "int64", "shape": [7]},
                    "logprobs": {"data": [0, 0, -1, 0, 0, -4, -5], "dtype": "float32", "shape": [7]},
                    "advantages": {"data": [0, 0, 0.5, 0, 0, -0.25, 1.5], "dtype": "float32", "shape": [7]},
                },
            },
        }
    ]


def test_response_without_a_token_before_it_is_refused(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet", without=("prompt_ids",))
    message = refusal(capsys, tmp_path, "export", path, "--to", "tinker")
    assert "row 0 (rollout hole): no prompt_ids" in message and "bos=ID" in message


def test_log_probs_that_some_rollouts_lack_are_left_out_and_said(tmp_path, capsys):
    rows = [ROWS[0] | {"rollout_log_probs": None}, ROWS[1]]
    path = write_case(tmp_path / "x.scored.parquet", rows)
    assert ktae("export", path, "--to", "tinker") == 0
    assert "logprobs are old_log_probs: not every rollout has rollout_log_probs" in capsys.readouterr().err
    path = write_case(tmp_path / "y.scored.parquet", rows, without=("old_log_probs",))
    assert ktae("export", path, "--to", "tinker") == 0
    assert "no logprobs: not every rollout has rollout_log_probs or old_log_probs" in capsys.readouterr().err
    lines = read_lines(tmp_path / "y.export.tinker.jsonl")
    assert all("logprobs" not in line["datum"]["loss_fn_inputs"] for line in lines)
