"""`--to ms_swift`: supervised messages with the positive part of the values as loss_scale."""

from tests.exports.cases import ROWS, read_lines, write_case
from tests.rollout_files import ktae, refusal

PROMPT_TEXT = True


def recover(path):
    """Read the answer as `LossScale.__call__` does (ms-swift `swift/loss_scale/base.py`): one context a token."""
    found = {}
    for line in read_lines(path):
        user, assistant = line["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        content = assistant["content"]
        contexts = [[token] for token in content["token_ids"]]
        assert len(contexts) == len(content["loss_scale"])
        found[line["rollout_id"]] = ([token for [token] in contexts], content["loss_scale"])
    return found


def expected(rollouts):
    """The positive part over the response; rollouts without one are not there."""
    found = {}
    for name, rollout in rollouts.items():
        response = rollout.row["response_ids"]
        values = [max(value, 0.0) for value in rollout.values[len(rollout.ids) - len(response) :]]
        if any(values):
            found[name] = (response, values)
    return found


def test_what_is_lost_is_said(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "ms_swift") == 0
    lines = capsys.readouterr().err.splitlines()
    assert "7 tokens with a negative value written with loss_scale 0" in lines
    assert "6 rollouts without a positive value left out" in lines
    first = read_lines(tmp_path / "x.export.ms_swift.jsonl")[0]
    assert first["messages"][0] == {"role": "user", "content": ROWS[0]["prompt"]}


def test_prompt_text_is_needed(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet", without=("prompt",))
    assert "has no prompt" in refusal(capsys, tmp_path, "export", path, "--to", "ms_swift")
