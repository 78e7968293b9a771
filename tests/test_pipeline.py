"""Groups, trajectories and estimators together: what one partition of whole groups comes out as."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from ktae_cli.batch import TOKEN_COLUMNS
from ktae_cli.catalogue import names
from ktae_cli.errors import InputError
from ktae_cli.pipeline import column_plan, parse_specs, score_rows
from ktae_cli.rollouts import Rollouts
from tests.rollout_files import HIGH, LOW, four, ktae, refusal, score, tokens_of, with_every_column, write

# Neither a group of one nor equal rewards carry a signal for any of these.
WHITENED = ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "ktae(base=reinforce_plus_plus)"]
ZERO_SPECS = [name for name in names("estimators") if name not in ("ktae_reference", *WHITENED)]
ZERO_SPECS += ["ktae(base=rloo)", "ktae(base=dapo,loo=true)", "ktae_reference(base=grpo)", "grpo(ddof=0)"]


# --- groups without contrast ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ZERO_SPECS)
def test_group_of_one_is_zero(tmp_path, spec):
    table = four(group_id=["g", "g", "g", "one"], reward=[0.0, 1.0, 0.0, 0.5])
    scored = score(tmp_path, with_every_column(table), "-e", spec)
    assert scored["advantages"][3].as_py() == [0.0]


@pytest.mark.parametrize("spec", WHITENED)
def test_a_group_of_one_is_whitened_with_its_batch(tmp_path, spec):
    # 2 tokens of 0, 2 of 1, 1 of 0, 1 of .5
    table = four(group_id=["g", "g", "g", "one"], reward=[0.0, 1.0, 0.0, 0.5])
    scored = score(tmp_path, with_every_column(table), "-e", spec)
    base, *_ = [spec.removeprefix("ktae(base=").removesuffix(")")]
    raw = np.array([0.0, 0.0, 1.0, 1.0, 0.0, 0.5])
    if base != "reinforce_plus_plus":
        raw[:5] -= 1 / 3  # group means; the group of one keeps its raw reward
    if base == "gdpo":
        raw[:5] /= np.std([0.0, 1.0, 0.0], ddof=1)
        raw[5] = 0.5 + 0.5  # both parts; the other groups' part of format is constant and adds nothing
    expected = (raw[5] - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    assert scored["advantages"][3].as_py() == [pytest.approx(expected, abs=1e-5)]
    if "key_weight" in scored.column_names:
        assert scored["key_weight"][3].as_py() == [0.0]


@pytest.mark.parametrize("spec", ["ktae_reference", "grpo(singleton=raw)"])
def test_group_of_one_keeps_its_raw_reward_where_the_spec_says_so(tmp_path, spec):
    table = four(group_id=["g", "g", "g", "one"], reward=[1.0, 0.0, 0.0, 0.5])
    scored = score(tmp_path, table, "-e", spec)
    assert scored["advantages"][3].as_py() == [pytest.approx(0.5, abs=1e-5)]
    if "key_weight" in scored.column_names:
        assert scored["key_weight"][3].as_py() == [0.0]


@pytest.mark.parametrize("spec", [*ZERO_SPECS, *WHITENED, "ktae_reference", "grpo(singleton=raw)"])
@pytest.mark.parametrize("reward", [1.0, 0.0, 0.1, -3.7, 1e30])
def test_equal_rewards_are_exactly_zero(tmp_path, spec, reward):
    got = score(tmp_path, with_every_column(four(reward=[reward] * 4)), "-e", spec)["advantages"].to_pylist()
    assert got == [[0.0, 0.0], [0.0, 0.0], [0.0], [0.0]]
    assert not np.signbit(np.concatenate(got)).any()


def test_dead_groups_are_counted_apart(tmp_path, capsys):
    groups = ["right"] * 2 + ["wrong"] * 3 + ["mixed"] * 2 + ["one"] + ["null"] * 2
    reward = [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, None, None]
    table = pa.table({"group_id": groups, "reward": reward, "response_ids": [[1]] * 10})
    path = write(tmp_path / "in.parquet", table)
    assert ktae("score", path) == 0
    err = capsys.readouterr().err
    assert "10 rollouts, 10 tokens, 5 groups: 1 mixed, 1 all right, 1 all wrong, 1 singletons" in err
    assert "2 unscored" in err and "1 group(s) hold one rollout" in err


def test_key_weight_needs_both_verdicts(tmp_path):
    table = four(reward=[1.0, 0.5, 0.25, 0.75])
    scored = score(tmp_path, table)
    assert scored["key_weight"].to_pylist() == [[0.0, 0.0], [0.0, 0.0], [0.0], [0.0]]
    assert scored["advantages"][0].as_py()[0] > 1


# --- scaling, as the trainers have it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "high", "low"),
    [
        ("grpo(eps=0)", 1.5, -0.5),
        ("grpo(ddof=0,eps=0)", 3**0.5, -(3**-0.5)),
        ("grpo(eps=1e-4)", 0.75 / 0.5001, -0.25 / 0.5001),
        ("dr_grpo", 0.75, -0.25),
        ("rloo", 1.0, -1 / 3),
    ],
)
def test_scale_of_one_right_in_four(tmp_path, spec, high, low):
    got = score(tmp_path, four(), "-e", spec)["advantages"].to_pylist()
    assert [row[0] for row in got] == pytest.approx([high, low, low, low], rel=1e-6)


def test_close_rewards_are_scaled_within_their_own_group(tmp_path):
    table = four(group_id=["a", "a", "b", "b"], reward=[1.00000, 1.00001, 2.00000, 2.00001])
    got = [row[0] for row in score(tmp_path, table, "-e", "grpo(eps=0)")["advantages"].to_pylist()]
    assert got == pytest.approx([-(0.5**0.5), 0.5**0.5] * 2, rel=1e-5)


def test_leave_one_out_baseline_stays_finite(tmp_path):
    got = score(tmp_path, four(reward=[1.0, 0.0, 0.0, 0.0]), "-e", "rloo")["advantages"].to_pylist()
    assert max(abs(value) for row in got for value in row) == pytest.approx(1.0)


def test_long_answers_carry_no_hidden_division(tmp_path):
    table = pa.table({"group_id": ["g"] * 3, "reward": [0.0, 0.0, 1.0], "response_ids": [[1] * 10, [1] * 1000, [2]]})
    got = score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist()
    assert set(got[0]) == set(got[1]) == {np.float32(-1 / 3)}


# --- trajectories in several rows -----------------------------------------------------------------------------------


def parts(**columns) -> pa.Table:
    """Three rows of one right trajectory and one row of a wrong one."""
    base = {
        "rollout_id": ["r1", "r1", "r1", "r2"],
        "reward": [1.0, 1.0, 1.0, 0.0],
        "response_ids": [[1], [1, 2], [], [3]],
    }
    return four(**(base | columns))


def test_parts_of_a_trajectory_count_once(tmp_path):
    got = score(tmp_path, parts(), "-e", "dr_grpo")["advantages"].to_pylist()
    assert got == [[0.5], [0.5, 0.5], [], [-0.5]]


def test_parts_of_a_trajectory_are_present_by_their_union(tmp_path):
    scored = score(tmp_path, parts())
    rows = {row["token_id"]: row for row in tokens_of(tmp_path).to_pylist()}
    assert [(rows[i]["correct_with"], rows[i]["n_correct"]) for i in (1, 2, 3)] == [(1, 1), (1, 1), (0, 1)]
    weight = scored["key_weight"].to_pylist()
    assert weight[0][0] == weight[1][0] != 0


def test_parts_far_apart_are_joined(tmp_path):
    table = pa.concat_tables([parts(), four(group_id=["h"] * 4)]).take([4, 0, 5, 3, 6, 2, 7, 1])
    got = score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist()
    assert [got[i] for i in (1, 3, 5, 7)] == [[0.5], [-0.5], [], [0.5, 0.5]]


def test_same_rollout_id_in_two_groups_is_two_rollouts_and_a_warning(tmp_path, capsys):
    table = four(group_id=["a", "a", "b", "b"], rollout_id=["1", "2", "1", "3"], reward=[1.0, 0.0, 0.0, 1.0])
    got = score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist()
    assert [row[0] for row in got] == [0.5, -0.5, -0.5, 0.5]
    assert "1 rollout_id(s) stand in more than one group" in capsys.readouterr().err


def test_null_rollout_ids_are_rollouts_of_their_own(tmp_path, capsys):
    table = four(group_id=["a", "a", "b", "b"], rollout_id=pa.nulls(4, pa.string()), reward=[1.0, 0.0, 1.0, 1.0])
    got = score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist()
    assert [row[0] for row in got] == [0.5, -0.5, 0.0, 0.0]
    assert "more than one group" not in capsys.readouterr().err


def test_parts_with_different_rewards_are_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", parts(reward=[1.0, 0.25, 1.0, 0.0]))
    message = refusal(capsys, tmp_path, "score", path)
    assert "'r1'" in message and "(1 and 0.25)" in message


def test_parts_with_different_verdicts_are_refused(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", parts(correct=[True, True, False, False]))
    assert "different verdicts (1 and 0)" in refusal(capsys, tmp_path, "score", path)


def test_part_without_a_reward_takes_that_of_its_trajectory(tmp_path):
    table = parts(reward=[None, 1.0, None, 0.0])
    assert score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist() == [[0.5], [0.5, 0.5], [], [-0.5]]


def test_integer_rollout_ids_join_parts(tmp_path):
    table = parts(rollout_id=[7, 7, 7, 8])
    assert score(tmp_path, table, "-e", "dr_grpo")["advantages"].to_pylist() == [[0.5], [0.5, 0.5], [], [-0.5]]


# --- several estimators ---------------------------------------------------------------------------------------------


def test_one_estimator_writes_plain_names(tmp_path):
    assert score(tmp_path, four(), "-e", "ktae").column_names[-2:] == ["advantages", "key_weight"]
    assert score(tmp_path, four(), "-e", "grpo").column_names[-1] == "advantages"


def test_several_estimators_write_a_column_each(tmp_path):
    scored = score(tmp_path, four(), "-e", "grpo", "-e", "ktae", "-e", "ktae(base=dapo,top=0.5,zero_ids=2+3)")
    slug = "ktae__base_dapo__top_0p5__zero_ids_2_3"
    assert scored.column_names[4:] == [
        "advantages", "key_weight", "adv_grpo", "adv_ktae", "key_weight_ktae", f"adv_{slug}", f"key_weight_{slug}",
    ]  # fmt: skip
    assert scored["advantages"] == scored["adv_grpo"]
    assert scored["key_weight"] == scored["key_weight_ktae"]
    half = scored[f"key_weight_{slug}"].to_pylist()
    whole = scored["key_weight"].to_pylist()
    assert half[3] == pytest.approx([whole[3][0] / 2]) and whole[3][0] != 0
    assert (half[0][1], half[2][0]) == (0.0, 0.0) and whole[2][0] != 0


def test_token_table_holds_every_spec(tmp_path):
    score(tmp_path, four(), "-e", "grpo", "-e", "ktae", "-e", "ktae_paper")
    rows = [(row["spec"], row["token_id"]) for row in tokens_of(tmp_path).to_pylist()]
    assert rows == [("ktae", 1), ("ktae", 2), ("ktae", 3), ("ktae_paper", 1), ("ktae_paper", 2), ("ktae_paper", 3)]


@pytest.mark.parametrize(
    "pair", [("grpo", "grpo"), ("ktae", "ktae(alpha=1)"), ("ktae(zero_ids=1+2)", "ktae(zero_ids=2+1)")]
)
def test_two_estimators_of_one_slug_are_refused(tmp_path, capsys, pair):
    path = write(tmp_path / "in.parquet", four())
    assert "two estimators would write" in refusal(capsys, tmp_path, "score", path, "-e", pair[0], "-e", pair[1])


def test_column_plan_names_the_first_key_weight():
    plan = column_plan(parse_specs(["rloo", "ktae_paper", "ktae"]))
    assert (str(plan["advantages"][0]), str(plan["key_weight"][0])) == ("rloo", "ktae_paper")


# --- score_rows itself ----------------------------------------------------------------------------------------------


def rows_of(group, reward, lengths, ids, scored=None, trajectory=None) -> Rollouts:
    reward = np.array(reward, np.float64)
    return Rollouts(
        np.array(group, np.int64), reward, (reward > 0).astype(np.int8),
        ~np.isnan(reward) if scored is None else np.array(scored), np.array(lengths, np.int64), np.array(ids, np.int32),
        trajectory=None if trajectory is None else np.array(trajectory, object),
    )  # fmt: skip


def test_score_rows_keeps_the_order_of_the_rows():
    specs = parse_specs(["dr_grpo"])
    rows = rows_of([1, 0, 1, 0], [1, 5, 0, 3], [1, 2, 0, 1], [4, 5, 6, 7])
    result = score_rows(rows, specs, column_plan(specs))
    assert result.columns["advantages"].tolist() == [0.5, 1.0, 1.0, -1.0]
    assert result.counts["groups"] == 2 and result.counts["tokens"] == 4


def test_score_rows_leaves_unscored_rows_out():
    specs = parse_specs(["dr_grpo"])
    rows = rows_of([0, 0, 0], [1, np.nan, 0], [1, 3, 1], [4, 5, 6, 7, 8])
    result = score_rows(rows, specs, column_plan(specs))
    assert result.columns["advantages"].tolist() == [0.5, -0.5]
    assert result.lengths.tolist() == [1, 0, 1] and result.counts["unscored"] == 1


def test_score_rows_refuses_parts_that_disagree():
    specs = parse_specs(["dr_grpo"])
    rows = rows_of([0, 0], [1, 0], [1, 1], [4, 5], trajectory=["r", "r"])
    with pytest.raises(InputError, match="'r' stands in several rows"):
        score_rows(rows, specs, column_plan(specs))


@pytest.mark.parametrize("spec", names("estimators"))
def test_score_rows_accepts_a_chunk_without_scored_rows(spec):
    specs = parse_specs([spec])
    columns = dict.fromkeys(TOKEN_COLUMNS, np.zeros(2, np.float32)) | {"text_marks": np.zeros(2, np.uint8)}
    rows = replace(rows_of([0, 0], [np.nan, np.nan], [1, 1], [4, 5]), tokens=columns, parts={})
    result = score_rows(rows, specs, column_plan(specs))
    assert len(result.columns["advantages"]) == 0
    assert result.counts["groups_unknown"] == 1


def test_base_and_shift_add_up(tmp_path):
    scored = score(tmp_path, four())
    weight = scored["key_weight"].to_pylist()
    for row, base in enumerate((HIGH, LOW, LOW, LOW)):
        assert scored["advantages"][row].as_py() == pytest.approx([base + w for w in weight[row]])
