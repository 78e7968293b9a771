"""What users of other tools were hurt by (issues of verl, slime, TRL, ...): each case is found, with its figures."""

import json

import pytest

from tests.rollout_files import ktae


def check(tmp_path, capsys, rows, *options) -> dict[str, str]:
    """Check rows as JSON lines, but for tokens that all hold (the rows are short), and return rule -> message."""
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert ktae("check", path, "--report", "json", "-q", "--ignore", "KT310", *options) in (0, 1)
    return {one["id"]: one["message"] for one in json.loads(capsys.readouterr().out)["findings"]}


def row(group, reward, ids=(1, 2), **further) -> dict:
    return {"group_id": group, "prompt": f"{group}?", "response_ids": list(ids), "reward": reward, **further}


def test_an_aborted_rollout_leaves_an_uneven_group_and_a_constant_one_is_dead(tmp_path, capsys):
    rows = [row("a", i % 2, (i, 9)) for i in range(4)] + [row("b", 5.0, (i, 9)) for i in range(3)]
    rows += [row(g, i % 2, (i, 9)) for g in "cdef" for i in range(4)]
    found = check(tmp_path, capsys, rows[::2] + rows[1::2], "--correct-threshold", "0.5")
    assert found["KT103"].startswith("1 of 6 groups hold 3 rollouts, the others 4")
    assert "KT202" not in found  # 1 of 6 is below a quarter
    found = check(tmp_path, capsys, rows, "--set", "KT202.share=0")
    assert found["KT202"].startswith("1 of 6 groups have one reward throughout (1 all right, 0 all wrong)")


def test_right_padding_without_an_end_of_text_is_seen(tmp_path, capsys):
    rows = [row("a", 1, (5, 6, 7, 0, 0, 0)), row("a", 0, (5, 6, 0, 0, 0, 0)), row("a", 0, (8, 6, 7, 7, 6, 8))]
    assert check(tmp_path, capsys, rows)["KT303"].startswith("2 of 3 responses end in a run of id 0")
    assert check(tmp_path, capsys, rows, "--pad-id", "0")["KT303"].startswith(
        "2 of 3 responses end in padding, here id 0"
    )
    assert check(tmp_path, capsys, rows, "--eos-id", "0")["KT304"].startswith("2 of 3 responses end in several end-of-")


def test_missing_rewards_are_counted_apart_from_wrong_ones(tmp_path, capsys):
    rows = [row("a", reward, (i, 3)) for i, reward in enumerate((1.0, None, 0.0, float("nan")))]
    found = check(tmp_path, capsys, rows)
    assert found == {"KT203": "2 of 4 rollouts have no known reward or verdict: they are in no statistic"}


def test_the_same_prompt_in_two_steps_is_two_groups_and_in_one_step_a_warning(tmp_path, capsys):
    rows = [row(f"u{step}", i % 2, (i, 3), step=step) | {"prompt": "same"} for step in (1, 2) for i in range(4)]
    assert check(tmp_path, capsys, rows) == {}
    found = check(tmp_path, capsys, [one | {"step": 1} for one in rows])
    assert found["KT105"].startswith("1 of 1 prompts stand in several groups of one step, the first in 'u1'")


def test_conflicting_ground_truths_of_one_prompt_are_an_error(tmp_path, capsys):
    rows = [row("a", i % 2, (i, 3), ground_truth="12" if i < 2 else "13") for i in range(4)]
    assert check(tmp_path, capsys, rows)["KT102"].startswith("1 of 1 groups hold several ground truths, the first 'a'")


def test_lists_of_three_lengths_are_named(tmp_path, capsys):
    rows = [row("a", i % 2, range(6), old_log_probs=[-1.0] * 6, response_mask=[1] * 6) for i in range(2)]
    rows[1] |= {"old_log_probs": [-1.0] * 7, "response_mask": [1] * 5}
    found = check(tmp_path, capsys, rows, "--select", "KT301")
    assert found["KT301"].startswith(
        "1 of 2 rollouts have lists of unequal length, here response_mask has 5 values for 6"
    )


def test_the_parts_of_one_trajectory_count_once(tmp_path, capsys):
    rows = [row("a", 1, (i, 3), rollout_id="r1") for i in range(3)] + [row("a", 0, (7, 3), rollout_id="r2")]
    assert check(tmp_path, capsys, rows) == {}
    rows[2]["reward"] = 0
    assert check(tmp_path, capsys, rows)["KT107"].startswith("1 of 4 rows contradict the reward of another part")


@pytest.mark.parametrize("rewards", [(-1, 1), (0, 10), (0, 1)])
def test_two_rewards_on_both_sides_of_the_threshold_are_clear(tmp_path, capsys, rewards):
    assert check(tmp_path, capsys, [row("a", rewards[i % 2], (i, 3)) for i in range(4)]) == {}


def test_a_format_bonus_above_the_threshold_is_not_clear(tmp_path, capsys):
    rows = [row("a", reward, (i, 3)) for i, reward in enumerate((0.0, 0.1, 1.1, 0.1))]
    found = check(tmp_path, capsys, rows)
    assert found["KT201"].startswith(
        "no verdict column, and rewards are 0, 0.1, 1.1: 3 of 4 count as right, being above 0"
    )
    assert (
        check(tmp_path, capsys, rows, "--correct-threshold", "0.5")["KT201"].split(": ")[1].startswith("1 of 4 count")
    )


def test_a_rollout_without_a_trained_token_is_counted(tmp_path, capsys):
    rows = [row("a", 100, (1, 2), response_mask=[0, 0]), row("a", 1, (1, 2), response_mask=[1, 1]), row("a", 0, ())]
    found = check(tmp_path, capsys, rows)
    assert found["KT311"].startswith("2 of 3 rollouts have no token of the policy, here 2 tokens, all masked")
