"""What `ktae tokens` makes of odd rollouts: no traceback, no warning of numpy, no number that is not one."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ktae_cli
from ktae_cli.errors import InputError
from tests.evidence.rollouts import planted, table
from tests.rollout_files import SHARED, ktae, write

FEW = ("--permutations", 20, "--resamples", 20)
random = np.random.default_rng(0)


def replaced(rollouts: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return the table with another column of this name."""
    return rollouts.set_column(rollouts.schema.get_field_index(name), name, values)


def nulls(rollouts: pa.Table, name: str, every: int) -> pa.Table:
    """Return the table with a null in one of `every` rows of a column."""
    values = [None if row % every == 0 else value for row, value in enumerate(rollouts[name].to_pylist())]
    return replaced(rollouts, name, pa.array(values, rollouts.schema.field(name).type))


def in_two_steps(rollouts: pa.Table) -> pa.Table:
    """Return the rollouts twice, under other ids and another step."""
    again = replaced(rollouts, "rollout_id", pa.array([f"2/{i}" for i in range(len(rollouts))]))
    steps = [part.append_column("step", pa.array([n] * len(part))) for n, part in enumerate((rollouts, again))]
    return pa.concat_tables(steps)


SMALL = planted(12, 1)
LENGTHS = [len(ids) for ids in SMALL["response_ids"].to_pylist()]
ODD = {
    "one_group": planted(1, 0),
    "two_prompts": planted(2, 0),
    "pairs": table([[([1, 2], 1.0), ([2, 3], 0.0)] for _ in range(8)]),
    "one_prompt": replaced(SMALL, "prompt", pa.array(["same"] * len(SMALL))),
    "no_prompt": SMALL.drop(["prompt"]),
    "null_prompts": nulls(SMALL, "prompt", 3),
    "null_rewards": nulls(SMALL, "reward", 5),
    "null_masks": SMALL.append_column("response_mask", pa.array([None] * len(SMALL), pa.list_(pa.bool_()))),
    "masked": SMALL.append_column("response_mask", pa.array([[False] * n for n in LENGTHS])),
    "empty": table([[([], 1.0), ([], 0.0)]] * 6),
    "some_empty": table([[([], 1.0), ([1], 0.0), ([1, 2], 1.0)]] * 6),
    "steps": in_two_steps(SMALL),
    "parts": pa.concat_tables([SMALL, SMALL]),
    "truncated": SMALL.append_column("finish_reason", pa.array(["length", "stop"] * (len(SMALL) // 2))),
    "large_ids": table([[(random.integers(2**31 - 50, 2**31 - 1, 9).tolist(), float(i % 2)) for i in range(4)]] * 6),
    "large_group": planted(1, 5, size=300),
    "always": table([[([1, 2], 1.0), ([1, 2], 0.0)]] * 6),
}  # fmt: skip


PREFIX = ("--length-control", "prefix", "--before", "5", "--tarone")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, ()) for name in ODD),
        *((name, PREFIX) for name in ("two_prompts", "pairs", "masked", "some_empty", "parts", "truncated")),
    ],
)
def test_odd_rollouts_give_a_report_of_numbers(tmp_path, capsys, name, options):
    path = write(tmp_path / "in.parquet", ODD[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert ktae("tokens", path, "--min-groups", 1, "--json", *FEW, *options) == 0
    out, err = capsys.readouterr()
    report = json.loads(out, parse_constant=pytest.fail)
    assert "Warning" not in err
    assert report["rollouts"] >= 2 and 0 <= report["overlap"] <= 1
    assert report["survive_at_all"] <= report["tested"]
    for row in report["strongest"]:
        for q in ("p_value", "q_value", "p_given_length", "q_given_length", "p_fwer"):
            assert row[q] is None or 0 <= row[q] <= 1


def test_unreadable_rows_are_in_no_count(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", nulls(SMALL, "response_ids", 3))
    assert ktae("tokens", path, *FEW) == 2
    assert "row 0: response_ids is null" in capsys.readouterr().err
    for control in ("verdict", "prefix"):
        assert ktae("tokens", path, "--on-error", "skip", "--json", "--length-control", control, *FEW) == 0
        out, err = capsys.readouterr()
        assert "32 row(s) of these groups left out, the first: " in err
        report = json.loads(out)
        kept = SMALL.filter(pa.array([row % 3 > 0 for row in range(len(SMALL))]))
        clean = ktae_cli.tokens(kept, permutations=20, resamples=20, length_control=control).to_pylist()
        assert {row["n_correct"] + row["n_incorrect"] for row in clean} == {report["rollouts"]}
        for row, expected in zip(report["strongest"], clean, strict=False):
            assert row["token_id"] == expected["token_id"]
            assert row["p_given_length"] == pytest.approx(expected["p_given_length"])


def test_groups_that_are_unreadable_but_for_one_verdict_leave(tmp_path, capsys):
    rollouts = table([[([1], 1.0), ([-1], 0.0), ([2], 1.0)]] * 5 + [[([1], 1.0), ([2], 0.0)]])
    path = write(tmp_path / "in.parquet", rollouts)
    assert ktae("tokens", path, "--on-error", "skip", "--json", "--min-groups", 1, *FEW) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["groups_mixed"], report["rollouts"]) == (1, 2)


def test_a_row_without_stored_text_leaves_that_of_the_others(tmp_path):
    stored = [[f"w{i} " for i in ids] for ids in SMALL["response_ids"].to_pylist()]
    stored[3], stored[4] = None, ["x"]
    rollouts = SMALL.append_column("response_tokens", pa.array(stored))
    path = write(tmp_path / "in.parquet", rollouts.slice(0, 4))
    words = {row["unit"] for row in ktae_cli.tokens(path, unit="word", min_groups=1)["strongest"]}
    assert words and all(word.startswith("w") for word in words)
    with pytest.raises(InputError, match="response_tokens has 1 values for"):
        ktae_cli.tokens(rollouts)


def test_all_options_at_once(tmp_path, capsys):
    stored = [[f" w{i}" for i in ids] for ids in SMALL["response_ids"].to_pylist()]
    path = write(tmp_path / "in.parquet", SMALL.append_column("response_tokens", pa.array(stored)))
    output = tmp_path / "out.parquet"
    options = (
        "--unit", "ngram:1..2", "--within", "first:15", "--before", "8", "--verdict-noise", "--tarone",
        "--level", "0.2", "--min-groups", 2, "-e", "ktae(loo=true)", "-n", 10,
        "-j", 1, "--device", "cpu", "--seed", 3, "-q", "--json",
    )  # fmt: skip
    assert ktae("tokens", path, "-o", output, *options, *FEW) == 0
    out, err = capsys.readouterr()
    report = json.loads(out, parse_constant=pytest.fail)
    assert err == ""
    assert report["groups_mixed"] == 10 and report["verdict_noise"] == []
    assert pq.read_metadata(output).num_rows == report["units"]


def test_nested_ngrams_are_one_event_wherever_they_are_counted(tmp_path):
    # "1 2 3" stands in right rollouts alone: three n-grams of two and three ids, one event
    groups = [[([1, 2, 3, 9, 8], 1.0), ([1, 2, 3, 9, 7], 1.0), ([4, 9, 5], 0.0), ([4, 9, 6], 0.0)] for _ in range(9)]
    correct = pa.array([True, None, False, False] * 9)
    path = write(tmp_path / "in.parquet", table(groups).append_column("correct", correct))
    report = ktae_cli.tokens(path, unit="ngram:2..3", length_control="off", verdict_noise=True, before="9")
    found = report["survive_at_all"]
    assert report["vanished"]["survive_whole"] <= found + report["vanished"]["vanish"]
    right = next(doubt for doubt in report["verdict_noise"] if doubt["doubt"] == "unknown right")
    assert right["robust"] and right["kept"] == found and right["survive"] <= right["kept"] + 6


def test_files_with_text_are_cut_at_the_shortest():
    path = SHARED / "data" / "gsm8k_openai_4x.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    report = ktae_cli.tokens(path, length_control="prefix", limit=60, permutations=5, resamples=5, min_groups=2)
    assert report["tested"] > 50
