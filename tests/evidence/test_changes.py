"""Two inputs compared: counts by hand, usage against the pooled test of one table, planted changes, equal policies."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import false_discovery_control

import ktae_cli
from ktae_cli.evidence.changes import SCHEMA
from tests.evidence.rollouts import planted, table
from tests.rollout_files import ktae, write

FEW = ("--permutations", 20, "--resamples", 50)


def compared(tmp_path, capsys, first: pa.Table, second: pa.Table, *options) -> tuple[dict[int, dict], dict]:
    """Return the rows of the table by token id, and the report."""
    paths = [write(tmp_path / f"{name}.parquet", rollouts) for name, rollouts in (("a", first), ("b", second))]
    output = tmp_path / "changes.parquet"
    capsys.readouterr()
    assert ktae("tokens", *paths, "-o", output, "--force", "--json", "-q", *FEW, *options) == 0
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    found = pq.read_table(output)
    assert found.schema.remove_metadata() == SCHEMA
    return {row["token_id"]: row for row in found.to_pylist()}, report


def policy(seed: int, use: float, right: float, wrong: float, *, n: int = 60, stretch: float = 1.0) -> pa.Table:
    """Return groups of 8 in which a share `use` holds id 1, right with chance `right` where it does, else `wrong`."""
    random = np.random.default_rng(seed)
    groups = []
    for _ in range(n):
        group = []
        for _ in range(8):
            ids = random.integers(2, 40, int(random.integers(10, 30) * stretch)).tolist()
            holds = random.random() < use
            group.append((ids + [1] * holds, float(random.random() < (right if holds else wrong))))
        groups.append(group)
    return table(groups)


def changed(rows: dict[int, dict], column: str) -> set[int]:
    """Return the ids whose q is at most 5 %."""
    return {token for token, row in rows.items() if row[column] is not None and row[column] <= 0.05}


def test_counts_and_states_are_those_by_hand(tmp_path, capsys):
    first = table([[([1, 5], 1.0), ([5], 0.0)], [([5, 6], 1.0), ([5], 1.0)], [([8], 1.0)]])
    second = table([[([1], 1.0), ([7, 1], 0.0), ([5], 0.0)], [([5], 0.0), ([1], 0.0)]])
    rows, report = compared(tmp_path, capsys, first, second, "--min-groups", 1)
    # the third prompt is in the first input alone
    assert (report["prompts"], report["rollouts"]) == (2, [4, 5])
    assert {t: (r["with_a"], r["with_b"], r["n_a"], r["n_b"], r["state"]) for t, r in rows.items()} == {
        1: (1, 3, 4, 5, "kept"), 5: (4, 2, 4, 5, "kept"), 6: (1, 0, 4, 5, "dead"), 7: (0, 1, 4, 5, "born"),
    }  # fmt: skip
    assert (report["born"], report["dead"]) == (1, 1)
    # id 1 against the sides: (1 of 2, 2 of 3) and (0 of 2, 1 of 2); Mantel-Haenszel (2*1/5 + 1*2/4) / (1*1/5 + 0/4)
    assert rows[1]["usage_odds_ratio"] == pytest.approx((2 / 5 + 2 / 4) / (1 / 5))
    assert rows[1]["n_prompts"] == 2
    # the first prompt alone is mixed in both: id 1 is in the right one of A, in the right and in one wrong of B
    assert (rows[1]["n_groups_a"], rows[1]["n_groups_b"]) == (1, 1)
    assert rows[1]["odds_ratio_a"] == float("inf") and rows[1]["odds_ratio_b"] == float("inf")
    # given 2 right rollouts with id 1 of at most 1 + 1 nothing else is possible
    assert rows[1]["p_value_change"] == 1
    assert rows[5]["p_value_change"] is None and rows[5]["n_groups_a"] == 0
    assert report["migration"]["table"] == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_usage_is_the_pooled_test_with_the_input_as_the_verdict(tmp_path, capsys):
    first, second = policy(1, 0.4, 0.5, 0.5, n=25), policy(2, 0.6, 0.5, 0.5, n=25, stretch=1.3)
    rows, _ = compared(tmp_path, capsys, first, second)
    sides = pa.concat_tables(
        [
            side.set_column(2, "rollout_id", pa.array([f"{name}{i}" for i in range(len(side))])).set_column(
                4, "reward", pa.array([float(name == "b")] * len(side))
            )
            for name, side in (("a", first), ("b", second))
        ]
    )
    pooled = ktae_cli.tokens(sides, permutations=10, resamples=10).to_pylist()
    assert len(pooled) == len(rows) == 39
    for expected in pooled:
        row = rows[expected["token_id"]]
        assert row["p_usage"] == pytest.approx(expected["p_value"], rel=1e-9)
        assert row["p_usage_given_length"] == pytest.approx(expected["p_given_length"], rel=1e-6)
        assert row["usage_odds_ratio"] == pytest.approx(expected["odds_ratio"])
        assert (row["with_a"], row["with_b"]) == (expected["incorrect_with"], expected["correct_with"])


def test_q_is_over_the_tested_units_of_either_input(tmp_path, capsys):
    rows, report = compared(tmp_path, capsys, policy(1, 0.3, 0.6, 0.4), policy(2, 0.5, 0.6, 0.4))
    for p, q in (("p_usage", "q_usage"), ("p_value_change_given_length", "q_value_change_given_length")):
        known = [row for row in rows.values() if row[p] is not None]
        assert [row[q] for row in known] == pytest.approx(false_discovery_control([row[p] for row in known]))
    assert report["usage_tested"] == sum(row["p_usage"] is not None for row in rows.values())


def test_a_planted_change_of_usage_is_found_with_its_direction(tmp_path, capsys):
    rows, report = compared(tmp_path, capsys, policy(1, 0.3, 0.5, 0.5), policy(2, 0.6, 0.5, 0.5))
    # one false discovery in twenty is what the level allows
    assert all(1 in changed(rows, q) and len(changed(rows, q)) <= 2 for q in ("q_usage", "q_usage_given_length"))
    assert 2 < rows[1]["usage_odds_ratio"] < 6
    assert report["strongest_usage"][0]["token_id"] == 1
    assert report["value_changed"] <= 1
    rows, _ = compared(tmp_path, capsys, policy(2, 0.6, 0.5, 0.5), policy(1, 0.3, 0.5, 0.5))
    assert 1 / 6 < rows[1]["usage_odds_ratio"] < 1 / 2


@pytest.mark.parametrize("seed", [3, 5])
def test_equal_policies_have_not_changed(tmp_path, capsys, seed):
    _, report = compared(tmp_path, capsys, policy(seed, 0.5, 0.6, 0.4), policy(seed + 1, 0.5, 0.6, 0.4))
    assert report["usage_changed"] <= 1 and report["value_changed"] <= 1
    assert report["migration"]["low"] < 0 < report["migration"]["high"]


def test_longer_responses_alone_are_no_change_of_usage_beyond_length(tmp_path, capsys):
    rows, report = compared(tmp_path, capsys, policy(1, 0.5, 0.5, 0.5), policy(2, 0.5, 0.5, 0.5, stretch=1.4))
    assert len(changed(rows, "q_usage")) >= 3
    assert report["usage_changed"] == 0 and not report["length_separates"]


def test_inputs_that_length_tells_apart_are_not_compared_beyond_it(tmp_path, capsys):
    _, report = compared(tmp_path, capsys, policy(1, 0.5, 0.5, 0.5), policy(2, 0.5, 0.5, 0.5, stretch=5))
    assert report["length_separates"] and report["overlap"] < 0.1
    paths = tmp_path / "a.parquet", tmp_path / "b.parquet"
    assert ktae("tokens", *paths, *FEW) == 0
    assert capsys.readouterr().out.startswith("Length tells A from B, so nothing can be said of usage beyond it (")


def test_a_planted_change_of_value_is_found(tmp_path, capsys):
    rows, report = compared(tmp_path, capsys, policy(1, 0.5, 0.75, 0.25), policy(2, 0.5, 0.25, 0.75))
    for q in ("q_value_change", "q_value_change_given_length"):
        assert 1 in changed(rows, q) and len(changed(rows, q)) <= 2
    assert rows[1]["odds_ratio_a"] > 3 and rows[1]["odds_ratio_b"] < 1 / 3
    assert report["strongest_value"][0]["token_id"] == 1
    assert report["usage_changed"] <= 1


def test_a_strong_value_that_stays_has_not_changed(tmp_path, capsys):
    rows, _ = compared(tmp_path, capsys, policy(1, 0.5, 1.0, 0.0, n=200), policy(2, 0.5, 1.0, 0.0, n=200))
    assert rows[1]["odds_ratio_a"] == rows[1]["odds_ratio_b"] == float("inf")
    assert rows[1]["p_value_change"] == 1


def test_the_same_file_twice_has_not_changed(tmp_path, capsys):
    rows, report = compared(tmp_path, capsys, planted(20, 1), planted(20, 1))
    assert report["usage_changed"] == report["value_changed"] == report["born"] == report["dead"] == 0
    assert all(row["with_a"] == row["with_b"] and row["odds_ratio_a"] == row["odds_ratio_b"] for row in rows.values())
    assert {row["p_usage"] for row in rows.values()} == {1.0}
    assert (report["migration"]["change"], report["migration"]["p"]) == (0, 1)


def test_no_value_is_claimed_where_no_common_prompt_is_mixed_in_both(tmp_path, capsys):
    solved = policy(2, 0.5, 1.0, 1.0, n=20)
    rows, report = compared(tmp_path, capsys, policy(1, 0.5, 0.5, 0.5, n=20), solved)
    assert report["value_tested"] == report["value_changed"] == 0
    assert all(row["p_value_change"] is None and row["odds_ratio_a"] is None for row in rows.values())
    assert sum(row[2] for row in report["migration"]["table"]) == 20
    assert ktae("tokens", tmp_path / "a.parquet", tmp_path / "b.parquet", *FEW) == 0
    assert "of their value nothing can be said" in " ".join(capsys.readouterr().out.split())


def test_unreadable_rows_are_in_no_count(tmp_path, capsys):
    second = planted(20, 2)
    ids = [None if row < 8 or row % 5 == 0 else ids for row, ids in enumerate(second["response_ids"].to_pylist())]
    second = second.set_column(3, "response_ids", pa.array(ids, pa.list_(pa.int32())))
    rows, report = compared(tmp_path, capsys, planted(20, 1), second, "--on-error", "skip")
    # the first prompt has no readable rollout in the second input and leaves both
    assert report["prompts"] == 19 and report["rollouts"] == [152, sum(i is not None for i in ids)]
    assert rows[1]["n_a"] == 152


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--outcome", "reward"], "--pool takes two as one"),
        (["--verdict-noise"], "--pool takes two as one"),
        (["--length-control", "prefix"], "of two inputs, verdict or off"),
        (["-o", "a.parquet", "--force"], "is also an input"),
        (["-o", "b.parquet", "--force"], "is also an input"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet", planted(6, 1))
    write(tmp_path / "b.parquet", planted(6, 2))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert ktae("tokens", "a.parquet", "b.parquet", *options) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(error) == 1 and message in error[0]
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_inputs_without_a_common_prompt_are_one_line(tmp_path, capsys):
    other = planted(6, 2).drop(["prompt"]).append_column("prompt", pa.array([f"other {i // 8}" for i in range(48)]))
    paths = write(tmp_path / "a.parquet", planted(6, 1)), write(tmp_path / "b.parquet", other)
    assert ktae("tokens", *paths, *FEW) == 2
    assert "have no prompt in common (6 and 6 prompts with verdicts" in capsys.readouterr().err


def test_tokens_of_two_vocabularies_are_not_matched(tmp_path, capsys):
    paths = []
    for name, text in (("a", "x{}"), ("b", "y{}")):
        rollouts = planted(6, 1)
        stored = [[text.format(i) for i in ids] for ids in rollouts["response_ids"].to_pylist()]
        paths.append(write(tmp_path / f"{name}.parquet", rollouts.append_column("response_tokens", pa.array(stored))))
    assert ktae("tokens", *paths, *FEW) == 2
    assert "have different vocabularies (id " in capsys.readouterr().err
    assert ktae("tokens", *paths, "--unit", "word", *FEW) == 0
