"""`--to sft`: labels on the key tokens of right rollouts."""

import pytest

from tests.exports.cases import read_lines, write_case
from tests.rollout_files import ktae, refusal

COLUMN = "key_weight"


def recover(path):
    """Read as a causal loss does: label t is compared with the logits of place t - 1, -100 is ignored."""
    found = {}
    for line in read_lines(path):
        assert len(line["labels"]) == len(line["attention_mask"]) == len(line["input_ids"])
        pairs = list(zip(line["input_ids"], line["labels"], strict=True))
        assert all(label in (-100, token) for token, label in pairs)
        found[line["rollout_id"]] = (line["input_ids"], [label != -100 for _, label in pairs])
    return found


def expected(rollouts):
    """Policy tokens of right rollouts whose key weight is positive, the first of the sequence excepted."""
    found = {}
    for name, rollout in rollouts.items():
        kept = [
            at > 0 and on and value > 0 for at, (on, value) in enumerate(zip(rollout.mask, rollout.values, strict=True))
        ]
        row = rollout.row
        if any(kept) and (row["correct"] if "correct" in row else row["reward"] > 0):
            found[name] = (rollout.ids, kept)
    return found


def labels(tmp_path, spec):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", spec, "-q", "--force") == 0
    return {line["rollout_id"]: line["labels"] for line in read_lines(tmp_path / "x.export.sft.jsonl")}


def test_key_tokens_of_right_rollouts_keep_their_labels(tmp_path):
    assert labels(tmp_path, "sft") == {
        "hole": [-100, -100, -100, 5, -100, -100, -100, 2],
        "tool first": [-100, -100, -100, -100, -100, 5],
    }


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("sft(min_weight=0.25)", ["hole"]),
        ("sft(min_weight=-0.5)", ["hole", "tool first", "one token", "zeros"]),
        ("sft(only_correct=false)", ["hole", "tool first", "wrong"]),
    ],
)
def test_parameters_choose_the_labels(tmp_path, spec, names):
    assert list(labels(tmp_path, spec)) == names


def test_lines_written_are_told_from_rollouts_read(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "sft") == 0
    assert capsys.readouterr().err.splitlines() == [
        "1 unscored rollouts left out (--null-advantages zero keeps them)",
        "4 rollouts left out, not known to be right",
        "3 rollouts left out, no token above min_weight",
        f"2 lines from 9 rollouts, 42 prompt and response tokens -> {tmp_path / 'x.export.sft.jsonl'}",
    ]


def test_torchtune_reads_tokens(tmp_path):
    path = write_case(tmp_path / "x.scored.parquet")
    assert ktae("export", path, "--to", "sft(ids=tokens)", "-q") == 0
    assert list(read_lines(tmp_path / "x.export.sft.jsonl")[0]) == [
        "rollout_id", "group_id", "tokens", "attention_mask", "labels",
    ]  # fmt: skip


def test_file_without_key_weights_names_the_way_out(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet", without=("key_weight",))
    message = refusal(capsys, tmp_path, "export", path, "--to", "sft")
    assert "x.scored.parquet has no key_weight; score with a ktae estimator, or name another column" in message
    assert ktae("export", path, "--to", "sft", "--advantages", "advantages", "-q") == 0


def test_options_without_a_meaning_are_refused(tmp_path, capsys):
    path = write_case(tmp_path / "x.scored.parquet")
    message = refusal(capsys, tmp_path, "export", path, "--to", "sft", "--normalize", "batch", "--clip", "1")
    assert "--normalize, --clip has no meaning for sft; leave it out" in message
    message = refusal(capsys, tmp_path, "export", path, "--to", "sft(min_wight=1)")
    assert "unknown parameter of sft: 'min_wight' (nearest: min_weight)" in message
