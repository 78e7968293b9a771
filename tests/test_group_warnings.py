"""What of the groups looks wrong: one warning each, and none where all is well."""

import pyarrow as pa
import pytest

import ktae_cli as ktae
from ktae_cli.errors import KtaeError
from tests.rollout_files import write


def rollouts(**columns):
    base = {
        "uid": ["a", "a", "b", "b"],
        "prompt": ["1+1?", "1+1?", "2+2?", "2+2?"],
        "response_ids": [[1], [2], [1], [2]],
        "reward": [1.0, 0.0, 1.0, 0.0],
    }
    return {name: values for name, values in (base | columns).items() if values is not None}


def warnings_of(tmp_path, columns, **options):
    found = []
    path = write(tmp_path / "in.parquet", pa.table(columns))
    ktae.score(path, output=tmp_path / "out.parquet", force=True, warn=found.append, **options)
    return found


def test_good_groups_are_not_warned_of(tmp_path):
    assert warnings_of(tmp_path, rollouts(ground_truth=["2", "2", "4", "4"])) == []


def test_groups_of_several_prompts_are_counted_and_the_first_is_named(tmp_path):
    (found,) = warnings_of(tmp_path, rollouts(prompt=["1+1?", "1+1?", "2+2?", "3+3?"]))
    assert found.startswith("1 of 2 groups hold several prompts (the first: 'b'): uid does not name prompts alone")
    assert "--group-by prompt" in found


def test_prompts_that_differ_across_batches_are_found(tmp_path):
    columns = {
        "uid": ["a"] * 3000,
        "prompt": ["same"] * 2999 + ["other"],
        "response_ids": [[1]] * 3000,
        "reward": [1.0, 0.0] * 1500,
    }
    assert "1 of 1 groups hold several prompts" in warnings_of(tmp_path, columns)[0]


def test_prompt_ids_stand_in_for_a_missing_prompt(tmp_path):
    columns = rollouts(prompt=None, prompt_ids=[[1], [2], [3], [3]])
    assert "(the first: 'a')" in warnings_of(tmp_path, columns)[0]


def test_turns_of_one_trajectory_may_have_prompts_of_their_own(tmp_path):
    columns = rollouts(
        uid=["a", "a", "a"],
        rollout_id=["r1", "r1", "r2"],
        prompt=["1+1?", "1+1? 3 No.", "1+1?"],
        response_ids=[[1], [2], [3]],
        reward=[1.0, 1.0, 0.0],
    )
    assert warnings_of(tmp_path, columns) == []


def test_null_prompts_are_no_other_prompts(tmp_path):
    assert warnings_of(tmp_path, rollouts(prompt=["1+1?", None, "2+2?", "2+2?"])) == []


def test_strict_stops_at_mixed_prompts(tmp_path):
    with pytest.raises(KtaeError, match="several prompts"):
        warnings_of(tmp_path, rollouts(prompt=["1+1?", "3+3?", "2+2?", "2+2?"]), strict=True)


def test_rewards_that_differ_without_two_verdicts_are_warned_of(tmp_path):
    (found,) = warnings_of(tmp_path, rollouts(reward=[1.1, 0.1, 0.1, 0.1]))
    assert "rewards differ in 1 group(s): correct is reward > 0; set --correct-threshold" in found
    assert warnings_of(tmp_path, rollouts(reward=[1.1, 0.1, 0.1, 0.1]), correct_threshold=0.5) == []


def test_warnings_of_a_frame_go_to_python(tmp_path):
    with pytest.warns(UserWarning) as found:
        ktae.score(pa.table(rollouts(uid=["a", "b", "c", "d"])))
    assert [str(w.message)[:38] for w in found] == [
        "every row is a group of its own, so ev",
        "4 group(s) hold one rollout: nothing t",
    ]
