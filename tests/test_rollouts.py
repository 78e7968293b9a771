"""Rows as they come out of `score`: rewards, verdicts, ids, masks, lengths and what a bad row does."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ktae_cli.cli.app import run
from tests.rollout_files import HIGH, LOW, four, refusal, score, tokens_of, write


def advantages(directory, rollouts, *options) -> list:
    return score(directory, rollouts, "-e", "grpo", *options)["advantages"].to_pylist()


# --- rewards --------------------------------------------------------------------------------------------------------


def test_unknown_reward_is_null_and_in_no_statistic(tmp_path):
    reward = pa.array([1.0, None, 0.0, float("nan")], from_pandas=False)
    scored = score(tmp_path, four(reward=reward), "-e", "ktae(base=dr_grpo)")
    first, null, third, nan = scored["advantages"].to_pylist()
    weight = scored["key_weight"].to_pylist()
    assert (null, nan, weight[1], weight[3]) == (None, None, None, None)
    # The mean is over the two known rewards: 0.5 and -0.5 before the shift.
    assert first == pytest.approx([0.5 + w for w in weight[0]]) and third == pytest.approx([-0.5 + weight[2][0]])
    counts = {row["token_id"]: (row["correct_with"], row["incorrect_with"]) for row in tokens_of(tmp_path).to_pylist()}
    assert counts == {1: (1, 0), 2: (1, 0), 3: (0, 1)}
    assert tokens_of(tmp_path)["n_incorrect"].to_pylist() == [1, 1, 1]


def test_unknown_reward_is_counted_and_warned_of(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=[1.0, None, 0.0, float("nan")]))
    assert run(["score", str(path)]) == 0
    assert "2 row(s) have no reward" in capsys.readouterr().err


def test_unknown_reward_stops_a_strict_run(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=[1.0, None, 0.0, 0.0]))
    assert "--strict" in refusal(capsys, tmp_path, "score", path, "--strict")


def test_file_without_any_known_reward_is_scored_as_null(tmp_path, capfd):
    scored = score(tmp_path, four(reward=pa.nulls(4)))
    assert scored["advantages"].to_pylist() == [None] * 4
    assert tokens_of(tmp_path).num_rows == 0
    assert "RuntimeWarning" not in capfd.readouterr().err


def test_null_and_nan_rewards_stay_distinct_in_the_output(tmp_path):
    scored = score(tmp_path, four(reward=pa.array([1.0, None, 0.0, float("nan")], from_pandas=False)))
    assert scored["reward"].null_count == 1
    assert np.isnan(scored["reward"][3].as_py())


@pytest.mark.parametrize(
    "reward",
    [
        pa.array([1, 0, 0, 0], pa.int8()),
        pa.array([1, 0, 0, 0], pa.uint64()),
        pa.array([True, False, False, False]),
        pa.array(np.array([1, 0, 0, 0], np.float16)),
        pa.array([1, 0, 0, 0], pa.float32()),
        pa.array([Decimal(1), Decimal(0), Decimal(0), Decimal(0)], pa.decimal128(5, 2)),
        pa.array(["1.0", "0", "0.0", "-0"]),
        pa.array(["True", "False", "false", " FALSE "]),
        pa.array(["1", "0", "0", "0"], pa.large_string()),
        pa.array(["1", "0", "0", "0"], pa.string_view()),
        pa.array(["true", "false", "false", "0"]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type).partition("<")[0],
)
def test_reward_of_any_type_is_its_number(tmp_path, reward):
    got = advantages(tmp_path, four(reward=reward))
    assert [row[0] for row in got] == pytest.approx([HIGH, LOW, LOW, LOW])


def test_reward_text_that_means_nothing_is_unknown(tmp_path):
    got = advantages(tmp_path, four(reward=["1", "NaN", "None", "0"]))
    assert [row and row[0] for row in got] == [
        pytest.approx(0.5**0.5, 1e-5),
        None,
        None,
        pytest.approx(-(0.5**0.5), 1e-5),
    ]


@pytest.mark.parametrize("text", ["right", "1,5", "1_000", "0x10"])
def test_reward_text_that_is_no_number_names_the_row(tmp_path, capsys, text):
    path = write(tmp_path / "in.parquet", four(reward=["1", "0", text, "0"]))
    message = refusal(capsys, tmp_path, "score", path)
    assert "in.parquet, row 2" in message and repr(text) in message


def test_reward_of_huge_integers_is_scored(tmp_path):
    got = advantages(tmp_path, four(reward=pa.array([2**60 + 1, 0, 0, 0], pa.int64())))
    assert got[0][0] == pytest.approx(1.5)


def test_infinite_reward_is_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=[1.0, float("-inf"), 0.0, 0.0]))
    message = refusal(capsys, tmp_path, "score", path)
    assert "row 1" in message and "-inf" in message


def test_constant_float32_rewards_give_exactly_zero(tmp_path):
    reward = pa.array([0.7] * 3 + [0.1], pa.float32())
    got = advantages(tmp_path, four(group_id=["a", "a", "a", "b"], reward=reward))
    assert got == [[0.0, 0.0], [0.0, 0.0], [0.0], [0.0]]
    assert not np.signbit([value for row in got for value in row]).any()


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_unknown_verdict_keeps_the_base_and_leaves_the_counts(tmp_path):
    table = four(correct=pa.array([True, None, False, False]))
    scored = score(tmp_path, table, "-e", "ktae(base=dr_grpo)")
    assert scored["advantages"][1].as_py() == [-0.25, -0.25]
    assert scored["key_weight"][1].as_py() == [0.0, 0.0]
    rows = tokens_of(tmp_path).to_pylist()
    assert {row["token_id"]: row["incorrect_with"] for row in rows} == {1: 1, 2: 0, 3: 1}
    assert {row["n_incorrect"] for row in rows} == {2}


def test_verdict_column_wins_over_the_threshold(tmp_path):
    score(tmp_path, four(correct=[False, True, False, False]), "--correct-threshold", 0.5)
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert (rows[3]["correct_with"], rows[3]["incorrect_with"]) == (1, 1)
    assert (rows[1]["correct_with"], rows[1]["incorrect_with"]) == (0, 2)


@pytest.mark.parametrize(("threshold", "right"), [(0.0, 2), (0.5, 1), (-1, 3)])
def test_correct_threshold_is_exceeded_not_met(tmp_path, threshold, right):
    score(tmp_path, four(reward=[1.0, 0.5, 0.0, -1.0]), "--correct-threshold", threshold)
    assert set(tokens_of(tmp_path)["n_correct"].to_pylist()) == {right}


@pytest.mark.parametrize(
    "correct",
    [
        pa.array(["True", "False", "0", "0.0"]),
        pa.array([1, 0, 0, 0], pa.int64()),
        pa.array([1.0, 0.0, 0.0, 0.0], pa.float64()),
    ],
    ids=["text", "int", "float"],
)
def test_verdict_of_any_type_is_read_strictly(tmp_path, correct):
    score(tmp_path, four(correct=correct))
    assert set(tokens_of(tmp_path)["n_correct"].to_pylist()) == {1}


def test_verdict_that_is_neither_names_the_row(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(correct=[1.0, 0.0, 0.5, None]))
    message = refusal(capsys, tmp_path, "score", path)
    assert "row 2" in message and "0.5" in message


def test_only_a_verdict_makes_the_reward(tmp_path, capsys):
    got = advantages(tmp_path, four(reward=None, correct=[True, False, False, None]))
    assert [row and row[0] for row in got] == [
        pytest.approx(2 / 3 / (3**-0.5 + 1e-6)), *[pytest.approx(-1 / 3 / (3**-0.5 + 1e-6))] * 2, None,
    ]  # fmt: skip
    assert "reward is 1 or 0 from correct" in capsys.readouterr().err


def test_reward_from_correct_ignores_the_reward(tmp_path):
    table = four(reward=[0.1, 0.9, 0.9, 0.9], correct=[True, False, False, False])
    got = advantages(tmp_path, table, "--reward-from", "correct")
    assert [row[0] for row in got] == pytest.approx([HIGH, LOW, LOW, LOW])


def test_reward_from_correct_needs_a_verdict(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four())
    assert "--map correct=COLUMN" in refusal(capsys, tmp_path, "score", path, "--reward-from", "correct")


# --- responses ------------------------------------------------------------------------------------------------------


def test_empty_response_counts_in_the_mean_and_as_absence(tmp_path, capsys):
    scored = score(tmp_path, four(response_ids=[[1, 2], [], [3], [1]]), "-e", "ktae(base=dr_grpo)")
    assert scored["advantages"][1].as_py() == []
    weight = scored["key_weight"].to_pylist()
    assert scored["advantages"][2].as_py()[0] == pytest.approx(-0.25 + weight[2][0])
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert (rows[2]["incorrect_with"], rows[2]["n_incorrect"]) == (0, 3)
    assert "1 row(s) have no token of the policy" in capsys.readouterr().err


def test_masked_response_gets_zeros_and_counts_in_the_mean(tmp_path):
    table = four(response_mask=[[True, True], [False, False], [True], [True]])
    got = advantages(tmp_path, table)
    assert got == [[pytest.approx(HIGH)] * 2, [0.0, 0.0], [pytest.approx(LOW)], [pytest.approx(LOW)]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.bool_()), pa.list_(pa.int8()), pa.large_list(pa.float32()), pa.list_(pa.uint64())], ids=str
)
def test_mask_with_a_hole_keeps_the_tokens_behind_it(tmp_path, kind):
    mask = pa.array([[1, 1, 0, 0, 1, 1], [1], [1], [1]], pa.list_(pa.int8())).cast(kind)
    table = four(response_ids=[[1, 2, 7, 7, 3, 4], [7], [3], [4]], response_mask=mask)
    scored = score(tmp_path, table, "-e", "ktae(base=dr_grpo)")
    weight = scored["key_weight"][0].as_py()
    assert weight[2:4] == [0.0, 0.0] and all(weight[i] != 0 for i in (0, 1))
    assert scored["advantages"][0].as_py() == pytest.approx(
        [0.75 + w if i not in (2, 3) else 0 for i, w in enumerate(weight)]
    )
    assert scored["response_ids"][0].as_py() == [1, 2, 7, 7, 3, 4]
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert (rows[7]["correct_with"], rows[7]["incorrect_with"]) == (0, 1)


def test_null_mask_is_all_true(tmp_path):
    got = advantages(tmp_path, four(response_mask=pa.array([None, [True, False], None, [True]])))
    assert got[0] == [pytest.approx(HIGH)] * 2 and got[1] == [pytest.approx(LOW), 0.0]


@pytest.mark.parametrize(
    "mask", [[[1, 2], [1, 1], [1], [1]], [[1, None], [1, 1], [1], [1]], [[2**60, 1], [1, 1], [1], [1]]]
)
def test_mask_of_other_values_is_refused(tmp_path, capsys, mask):
    path = write(tmp_path / "in.parquet", four(response_mask=mask))
    assert "row 0: response_mask holds a value other than 0 and 1" in refusal(capsys, tmp_path, "score", path)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint32(), pa.int32(), pa.uint64()], ids=str)
def test_largest_token_id_of_any_width_is_kept(tmp_path, kind):
    ids = pa.array([[2**31 - 1, 0], [0, 2], [3], [1]], pa.list_(kind))
    scored = score(tmp_path, four(response_ids=ids))
    assert scored["response_ids"].type.value_type == kind
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert sorted(rows) == [0, 1, 2, 3, 2**31 - 1]
    assert (rows[2**31 - 1]["correct_with"], rows[0]["incorrect_with"]) == (1, 1)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.uint8(), pa.uint16()], ids=str)
def test_small_integer_ids_are_read(tmp_path, kind):
    score(tmp_path, four(response_ids=pa.array([[1, 2], [2, 100], [3], [1]], pa.list_(kind))))
    assert tokens_of(tmp_path)["token_id"].to_pylist() == [1, 2, 3, 100]


@pytest.mark.parametrize(
    ("ids", "kind", "shown"),
    [
        ([[1, 2], [2, -1, -7], [3], [1]], pa.int64(), "-1"),
        ([[1, 2], [2, 2**31], [3], [1]], pa.int64(), str(2**31)),
        ([[1, 2], [2**32 - 1], [3], [1]], pa.uint32(), str(2**32 - 1)),
        ([[1, 2], [2**64 - 1], [3], [1]], pa.uint64(), str(2**64 - 1)),
        ([[1, 2], [-128], [3], [1]], pa.int8(), "-128"),
    ],
)
def test_token_id_out_of_range_names_file_row_and_id(tmp_path, capsys, ids, kind, shown):
    path = write(tmp_path / "in.parquet", four(response_ids=pa.array(ids, pa.list_(kind))))
    message = refusal(capsys, tmp_path, "score", path)
    assert f"in.parquet, row 1: response_ids holds {shown}," in message and "--on-error skip" in message


@pytest.mark.parametrize(
    ("ids", "found"),
    [([[1, 2], [2, None], [3], [1]], "response_ids holds a null"), ([[1, 2], None, [3], [1]], "response_ids is null")],
)
def test_null_ids_name_the_row(tmp_path, capsys, ids, found):
    path = write(tmp_path / "in.parquet", four(response_ids=ids))
    assert f"in.parquet, row 1: {found}" in refusal(capsys, tmp_path, "score", path)


@pytest.mark.parametrize(
    "name", ["response_mask", "rollout_log_probs", "old_log_probs", "entropy", "token_rewards", "turn_ids"]
)
def test_list_of_another_length_names_row_and_both_lengths(tmp_path, capsys, name):
    values = [[1, 1], [1, 0, 1], [1], [1]]
    path = write(tmp_path / "in.parquet", four(**{name: values}))
    assert f"in.parquet, row 1: {name} has 3 values for 2 response_ids" in refusal(capsys, tmp_path, "score", path)


def test_row_number_counts_within_its_file(tmp_path, capsys):
    paths = [
        write(tmp_path / "a.parquet", four(), row_group_size=1),
        write(tmp_path / "b.parquet", four(response_ids=[[1], [2], [-5], [1]]), row_group_size=1),
    ]
    assert "b.parquet, row 2: " in refusal(capsys, tmp_path, "score", *paths, "-o", tmp_path / "o.parquet")


# --- --on-error skip ------------------------------------------------------------------------------------------------

BAD = {
    "negative id": {"response_ids": [[1, 2], [2, -3], [3], [1]]},
    "null ids": {"response_ids": [[1, 2], None, [3], [1]]},
    "null inside ids": {"response_ids": [[1, 2], [None], [3], [1]]},
    "short mask": {"response_mask": [[True, True], [True], [True], [True]]},
    "odd mask": {"response_mask": [[1, 1], [5, 1], [1], [1]]},
    "long log-probs": {"old_log_probs": [[-1.0, -1.0], [-1.0] * 4, [-1.0], [-1.0]]},
    "reward text": {"reward": ["1", "right", "0", "0"]},
    "infinite reward": {"reward": [1.0, float("inf"), 0.0, 0.0]},
    "odd verdict": {"correct": [1.0, 0.5, 0.0, 0.0]},
}


@pytest.mark.parametrize("columns", BAD.values(), ids=BAD.keys())
def test_skipped_row_is_null_counted_and_in_no_statistic(tmp_path, capsys, columns):
    scored = score(tmp_path, four(**columns), "-e", "ktae(base=dr_grpo,tf=off)", "--on-error", "skip")
    good = score(tmp_path, four().filter(pa.array([True, False, True, True])), "-e", "ktae(base=dr_grpo,tf=off)")
    for name in ("advantages", "key_weight"):
        assert scored[name].to_pylist() == [good[name][0].as_py(), None, *good[name].to_pylist()[1:]]
    err = capsys.readouterr().err
    assert "1 row(s) left unscored, the first: " in err and "in.parquet, row 1: " in err


def test_skipped_part_does_not_borrow_a_reward(tmp_path):
    table = four(rollout_id=["a", "a", "c", "d"], reward=["1", "oops", "0", "0"])
    assert advantages(tmp_path, table, "--on-error", "skip")[1] is None


def test_skip_stops_a_strict_run(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(response_ids=[[1], None, [3], [1]]))
    assert "--strict" in refusal(capsys, tmp_path, "score", path, "--on-error", "skip", "--strict")


# --- truncated responses --------------------------------------------------------------------------------------------

CUT = {"finish_reason": ["length", "stop", "length", "stop"], "response_ids": [[1, 2], [2, 3], [9], [1]]}


def test_truncated_keep_changes_nothing_but_the_count(tmp_path, capsys):
    assert advantages(tmp_path, four(**CUT)) == advantages(tmp_path, four(response_ids=CUT["response_ids"]))
    assert "2 truncated" in capsys.readouterr().err


def test_truncated_mask_zeroes_tokens_and_keeps_the_reward(tmp_path):
    scored = score(tmp_path, four(**CUT), "-e", "ktae(base=dr_grpo)", "--truncated", "mask")
    got = scored["advantages"].to_pylist()
    assert got[0] == [0.0, 0.0] and got[2] == [0.0]
    # The mean still is 1 / 4: the truncated right rollout counts.
    assert got[3][0] == pytest.approx(-0.25 + scored["key_weight"][3].as_py()[0])
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert sorted(rows) == [1, 2, 3]
    assert (rows[1]["correct_with"], rows[1]["incorrect_with"], rows[1]["n_correct"]) == (0, 1, 1)


def test_truncated_mask_of_a_whole_group_is_zero(tmp_path):
    table = four(finish_reason=["length"] * 4)
    scored = score(tmp_path, table, "--truncated", "mask")
    assert scored["advantages"].to_pylist() == [[0.0, 0.0], [0.0, 0.0], [0.0], [0.0]]


def test_truncated_zero_makes_it_wrong_before_scoring(tmp_path):
    table = four(reward=[1.0, 1.0, 0.0, 0.0], correct=[True, True, False, None], **CUT)
    scored = score(tmp_path, table, "-e", "ktae(base=dr_grpo)", "--truncated", "zero")
    weight = scored["key_weight"].to_pylist()
    assert scored["advantages"][1].as_py() == pytest.approx([0.75 + w for w in weight[1]])
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert (rows[1]["n_correct"], rows[1]["n_incorrect"], rows[1]["incorrect_with"]) == (1, 2, 1)
    assert scored["reward"].to_pylist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("how", ["mask", "zero"])
def test_truncated_needs_finish_reason(tmp_path, capsys, how):
    path = write(tmp_path / "in.parquet", four())
    assert "needs finish_reason" in refusal(capsys, tmp_path, "score", path, "--truncated", how)


def test_truncated_reads_a_mapped_categorical(tmp_path):
    cut = pa.array(["length", "stop", None, "stop"]).dictionary_encode()
    got = advantages(tmp_path, four(why=cut), "--truncated", "mask", "--map", "finish_reason=why")
    assert got[0] == [0.0, 0.0] and got[2] == [pytest.approx(LOW)]
