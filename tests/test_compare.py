"""`ktae compare`: estimators side by side, two scored files, against hand-worked values, scipy and a slow version."""

import json
import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import linregress, pearsonr, rankdata, spearmanr

from ktae_cli.comparison.agreement import CoMoments, SignCounts, jaccard, slope_within, top_values, twice_ranks
from ktae_cli.comparison.token_sample import TokenSample
from ktae_cli.mapping import resolve_mapping
from ktae_cli.readers._memory import TableRollouts
from ktae_cli.readers._relabelled import RelabelledRollouts, exchange_labels
from tests.helpers import ROOT
from tests.rollout_files import HIGH, LOW, four, ktae, refusal, score, write

SAMPLE = ROOT / "sample_data" / "rollouts.parquet"
SPECS = ("grpo", "ktae", "ktae(shift_scale=0.5,tf=bounded)", "ktae_reference(zero_ids=none)")

numbers = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=30)


def compared(capsys, *arguments) -> dict:
    """Run compare and return its report."""
    capsys.readouterr()
    assert ktae("compare", *arguments, "--json", "-q") == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def estimators(*specs) -> list[str]:
    return [part for spec in specs for part in ("-e", spec)]


def drawn(seed: int) -> pa.Table:
    """Rollouts of 8 groups in shuffled row order: masks, unknown verdicts, unknown rewards, parts, empty responses."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(8):
        for place in range(6):
            correct = None if random.random() < 0.1 else bool(random.random() < (0.5 if group else 0.0))
            reward = None if random.random() < 0.05 else float(correct or 0) + 0.1 * (group == 7 and place == 1)
            for _ in range(1 + (place == 2)):
                ids = random.integers(0, 9, random.integers(0, 12)).tolist()
                mask = [bool(m) for m in random.random(len(ids)) < 0.8]
                rows.append((f"g{group}", f"g{group}/{place}", reward, correct, ids, mask))
    random.shuffle(rows)
    names = ("group_id", "rollout_id", "reward", "correct", "response_ids", "response_mask")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


class Slow:
    """Everything that a report says, from the scored table, one rollout at a time."""

    def __init__(self, table: pa.Table, columns: list[str]):
        rollouts: dict[tuple, dict] = {}
        for row in table.to_pylist():
            if row[columns[0]] is None:
                continue
            found = rollouts.setdefault((row["group_id"], row["rollout_id"]), {"correct": row["correct"], "tokens": []})
            mask = row["response_mask"]
            found["tokens"] += [[row[c][t] for c in columns] for t in range(len(mask)) if mask[t]]
        self.keys = list(rollouts)
        self.correct = [r["correct"] for r in rollouts.values()]
        self.tokens = [np.array(r["tokens"], np.float64).reshape(-1, len(columns)) for r in rollouts.values()]
        self.flat = np.concatenate(self.tokens)

    def mixed(self) -> set[str]:
        found: dict[str, set] = {}
        for (group, _), correct in zip(self.keys, self.correct, strict=True):
            found.setdefault(group, set()).add(correct)
        return {group for group, verdicts in found.items() if {True, False} <= verdicts}

    def mean_over(self, function, verdict=None) -> float:
        pairs = zip(self.tokens, self.correct, strict=True)
        return np.mean([function(t) for t, c in pairs if len(t) and (verdict is None or c is verdict)])

    def slope(self, x, y, verdict=None) -> float:
        """Regress on group dummies: the slope inside groups."""
        paid = {k[0] for k, t in zip(self.keys, self.tokens, strict=True) if np.any(t)}
        kept = [
            i for i, (key, t) in enumerate(zip(self.keys, self.tokens, strict=True))
            if key[0] in paid and len(t) and (verdict is None or self.correct[i] is verdict)
        ]  # fmt: skip
        groups = sorted({self.keys[i][0] for i in kept})
        design = [[x(self.tokens[i]), *(self.keys[i][0] == g for g in groups)] for i in kept]
        return np.linalg.lstsq(np.array(design, float), np.array([y(self.tokens[i]) for i in kept]), rcond=None)[0][0]


@pytest.mark.parametrize("seed", [0, 1])
def test_report_agrees_with_a_slow_version_and_scipy(tmp_path, capsys, seed):
    table = drawn(seed)
    report = compared(capsys, write(tmp_path / "in.parquet", table), *estimators(*SPECS))
    scored = score(tmp_path, table, *estimators(*SPECS))
    slow = Slow(scored, [name for name in scored.column_names if name.startswith("adv_")])
    assert report["rollouts"] == len(slow.keys) and report["tokens"] == len(slow.flat)
    assert report["groups_mixed"] == len(slow.mixed())
    for i, entry in enumerate(report["estimators"]):
        assert entry["zero_tokens"] == pytest.approx(np.mean(slow.flat[:, i] == 0))
        for label, verdict in (("all", None), ("right", True), ("wrong", False)):
            assert entry["mean"][label] == pytest.approx(slow.mean_over(lambda t, i=i: t[:, i].mean(), verdict))
            size = slow.mean_over(lambda t, i=i: np.abs(t[:, i]).mean(), verdict)
            assert entry["mean_abs"][label] == pytest.approx(size)
            slope = slow.slope(len, lambda t, i=i: np.abs(t[:, i]).sum(), verdict)
            assert entry["length"]["per_token"][label] == pytest.approx(slope)
            doubling = slow.slope(lambda t: math.log2(len(t)), lambda t, i=i: t[:, i].mean(), verdict)
            assert entry["length"]["mean_per_doubling"][label] == pytest.approx(doubling)
    assert [(p["first"], p["second"]) for p in report["pairs"]] == [
        (a, b) for i, a in enumerate(report["names"]) for b in report["names"][i + 1 :]
    ]
    means = np.array([t.mean(0) for t in slow.tokens if len(t)])
    for pair in report["pairs"]:
        i, j = report["names"].index(pair["first"]), report["names"].index(pair["second"])
        a, b = slow.flat[:, i], slow.flat[:, j]
        assert pair["token_pearson"] == pytest.approx(pearsonr(a, b)[0])
        assert pair["token_spearman"] == pytest.approx(spearmanr(a, b)[0])
        assert pair["rollout_pearson"] == pytest.approx(pearsonr(means[:, i], means[:, j])[0])
        assert pair["rollout_spearman"] == pytest.approx(spearmanr(means[:, i], means[:, j])[0], abs=1e-6)
        assert pair["sign_flips"] == pytest.approx(np.mean(a * b < 0))
        assert pair["zero_in_one"] == pytest.approx(np.mean((a == 0) != (b == 0)))
        assert pair["rollout_sign_flips"] == np.sum(means[:, i] * means[:, j] < 0)
        assert pair["largest_difference"] == pytest.approx(np.abs(a - b).max())


def test_key_weight_figures_agree_with_a_slow_version(tmp_path, capsys):
    table = drawn(3)
    specs = (*SPECS[1:], "ktae(loo=true)")
    report = compared(capsys, write(tmp_path / "in.parquet", table), *estimators(*specs))
    scored = score(tmp_path, table, *estimators(*specs))
    adv = [name for name in scored.column_names if name.startswith("adv_")]
    weights = [name for name in scored.column_names if name.startswith("key_weight_")]
    slow = Slow(scored, adv + weights)
    mixed = slow.mixed()
    rows = [(t, c) for t, c, k in zip(slow.tokens, slow.correct, slow.keys, strict=True) if k[0] in mixed]
    for i, (entry, scale) in enumerate(zip(report["estimators"], (1.0, 0.5, 1.0, 1.0), strict=True)):
        flat = np.concatenate([t for t, _ in rows])
        shift = scale * flat[:, len(adv) + i]
        total = np.abs(shift).sum()
        found = entry["key_weight"]
        assert found["shift_share"] == pytest.approx(total / (total + np.abs(flat[:, i] - shift).sum()), rel=1e-5)
        signed = [(1 if c else -1) * t[:, len(adv) + i] for t, c in rows if c is not None]
        assert found["agreement"] == pytest.approx(np.concatenate(signed).mean())
    plain, _, reference, left_out = (entry["key_weight"] for entry in report["estimators"])
    assert plain["agreement_left_out"] == left_out["agreement"] == left_out["agreement_left_out"]
    assert plain["self_share"] == pytest.approx(1 - left_out["agreement"] / plain["agreement"])
    assert reference["agreement_left_out"] is None and reference["self_share"] is None


def test_shuffled_shares_are_those_of_a_file_with_exchanged_labels(tmp_path, capsys):
    table = four(
        group_id=["a"] * 3 + ["b"] * 3, rollout_id=[str(i) for i in range(6)], reward=[2.0, 0, 0, 3, 3, 0],
        response_ids=[[1, 2], [1, 3, 3], [4], [1], [2, 2], [5]],
    )  # fmt: skip
    path = write(tmp_path / "in.parquet", table)
    options = estimators("grpo", "ktae")
    found = compared(capsys, path, *options, "--null", 1, "--seed", 5)["estimators"][1]["key_weight"]
    giver = exchange_labels(
        np.repeat([0, 1], 3), np.arange(6), np.ones(6, bool), np.random.default_rng([5, 0])
    )  # fmt: skip
    assert giver.tolist() != list(range(6))
    moved = table.set_column(2, "reward", table["reward"].take(pa.array(giver)))
    other = compared(capsys, write(tmp_path / "moved.parquet", moved), *options)["estimators"][1]["key_weight"]
    assert found["shift_share_shuffled"]["mean"] == other["shift_share"]
    assert found["shift_share_shuffled"]["shuffles"] == 1


@given(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 5), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 9),
)
def test_exchanged_labels_stay_inside_groups_and_trajectories(rows, seed):
    group, _, labelled = (np.array(column) for column in zip(*rows, strict=True))
    trajectory = np.array([next(j for j, r in enumerate(rows) if r[:2] == row[:2]) for row in rows])
    giver = exchange_labels(group, trajectory, labelled, np.random.default_rng(seed))
    assert np.all(group[giver] == group)
    for t in set(trajectory.tolist()):
        parts = trajectory == t
        if group[parts][0] < 0 or not labelled[parts].any():
            assert np.all(giver[parts] == np.flatnonzero(parts))
        else:
            assert len(set(giver[parts].tolist())) == 1 and labelled[giver[parts]].all()
    holders = {
        t: g for t, g in zip(trajectory.tolist(), giver.tolist(), strict=True) if labelled[trajectory == t].any()
    }
    inside = {t: g for t, g in holders.items() if group[t] >= 0}
    assert sorted(trajectory[list(inside.values())].tolist()) == sorted(inside)


@pytest.mark.parametrize("truncated", ["keep", "zero"])
def test_labels_change_hands_together(truncated):
    columns = {"reward": [1.0, 0.5, 0.0, 0.25], "correct": [True, None, False, True]}
    columns |= {"finish_reason": ["stop", "length", "error", None]}
    table = four(**columns, rewards=pa.array([{"x": float(i)} for i in range(4)]))
    giver = np.array([2, 0, 1, 3])
    source = RelabelledRollouts(TableRollouts(table), resolve_mapping(table.schema), giver, truncated)
    moved = pa.Table.from_batches(list(source.batches()), source.schema)
    assert source.bytes_of(source.schema.names) == table.nbytes
    for name in ("reward", "correct", "rewards", "finish_reason"):
        given = moved[source.mapping.columns[name]].to_pylist()
        stays = name == "finish_reason" and truncated == "keep"
        assert given == (table[name] if stays else table[name].take(pa.array(giver))).to_pylist()
    assert moved["response_ids"].to_pylist() == table["response_ids"].to_pylist()


def test_literal_group_of_four(tmp_path, capsys):
    table = four(response_ids=[[1, 2, 3, 4], [2, 3], [3], [1]])
    report = compared(capsys, write(tmp_path / "in.parquet", table), *estimators("grpo", "dr_grpo", "grpo(eps=0.5)"))
    grpo, plain, _ = report["estimators"]
    assert grpo["sum_abs"]["right"] == pytest.approx(4 * HIGH) and grpo["mean_abs"]["wrong"] == pytest.approx(-LOW)
    assert plain["sum_abs"]["wrong"] == pytest.approx(0.25 * 4 / 3) and plain["zero_tokens"] == 0
    assert plain["length"]["elasticity"]["wrong"] == pytest.approx(1)
    assert plain["length"]["per_token"]["wrong"] == pytest.approx(0.25)
    # log2 of the tokens 2 1 0 0 (mean 3/4), A 3/4 and thrice -1/4: (5/4)(3/4) - (1/4)(1/4) + 2 (3/4)(1/4) = 5/4
    assert plain["length"]["mean_per_doubling"]["all"] == pytest.approx(1.25 / 2.75)
    assert plain["length"]["mean_per_doubling"]["right"] is None
    pair = report["pairs"][0]
    assert [pair[name] for name in ("token_spearman", "token_pearson", "top_jaccard")] == pytest.approx([1, 1, 1])
    assert (pair["sign_flips"], pair["rollout_sign_flips"]) == (0, 0)
    assert report["largest_difference"] == pytest.approx(HIGH - 0.75)
    assert report["largest_difference_at"]["rollout_id"] == "a" and report["largest_difference_at"]["token_id"] == 1


def test_correlation_with_a_constant_is_not_given(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=[1.0] * 4))
    pair = compared(capsys, path, *estimators("grpo", "ktae"))["pairs"][0]
    assert [pair[name] for name in ("token_pearson", "token_spearman", "rollout_spearman", "top_jaccard")] == [None] * 4
    assert pair["largest_difference"] == 0
    assert ktae("compare", path, *estimators("grpo", "ktae")) == 0
    assert "nan" not in capsys.readouterr().out


def scored_file(path, values, **columns) -> None:
    """Write a scored file of literal advantages."""
    table = four(advantages=pa.array(values, pa.list_(pa.float32())), **columns)
    return write(
        path, table.replace_schema_metadata({"ktae": json.dumps({"columns": {n: n for n in table.column_names}})})
    )


ONES = [[1.0, -1.0], [0.5, 0.0], [2.0], [0.25]]


def test_two_scored_files_are_joined_by_their_ids(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES)
    b = scored_file(
        tmp_path / "b.parquet", [[0.25], [-2.0], [0.5, 1.0], [-1.0, -1.0]],
        rollout_id=["d", "c", "b", "a"], response_ids=[[1], [3], [2, 3], [1, 2]],
    )  # fmt: skip
    report = compared(capsys, a, b)
    pair, flips = report["pairs"][0], report["flips"][0]
    assert report["names"] == ["a.parquet", "b.parquet"] and report["tokens"] == 6
    assert pair["sign_flips"] == pytest.approx(2 / 6) and pair["zero_in_one"] == pytest.approx(1 / 6)
    assert pair["rollout_sign_flips"] == 1 and pair["largest_difference"] == 4
    assert [(t["rollout_id"], t["position"], t["token_id"]) for t in flips["tokens"]] == [("c", 0, 3), ("a", 0, 1)]
    assert [r["rollout_id"] for r in flips["rollouts"]] == ["c"]
    assert report["largest_difference_at"]["rollout_id"] == "c"
    x, y = np.array([1, -1, 0.5, 0, 2, 0.25]), np.array([-1, -1, 0.5, 1, -2, 0.25])
    assert pair["token_spearman"] == pytest.approx(spearmanr(x, y)[0])
    assert report["estimators"][0]["sum_abs"]["right"] == 2  # rewards 1 0 0 0: only a is right


def test_rows_that_cannot_be_compared_are_counted(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES)
    b = scored_file(tmp_path / "b.parquet", [[1.0], None, [2.5], [1.0]], rollout_id=["a", "b", "c", "x"])
    report = compared(capsys, a, b)
    names = ("rows_only_in_first", "rows_only_in_second", "rows_of_other_length", "rows_null", "rows_not_finite")
    assert [report[name] for name in names] == [1, 1, 1, 1, 0] and report["rollouts"] == 1
    assert ktae("compare", a, b) == 0
    assert "rows left out: 1 in a.parquet alone, 1 in b.parquet alone, 1 with different" in capsys.readouterr().err
    assert "rows left out" in refusal(capsys, tmp_path, "compare", a, b, "--strict")


def test_values_that_are_not_finite_are_left_out(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES)
    b = scored_file(tmp_path / "b.parquet", [[1.0, float("nan")], [0.5, 0.0], [float("inf")], [0.25]])
    report = compared(capsys, a, b)
    assert report["rows_not_finite"] == 2 and report["largest_difference"] == 0


def test_files_of_added_columns_take_verdicts_and_ids_from_the_rollouts(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", drawn(1))
    for name, spec in (("a", "grpo"), ("b", "ktae")):
        arguments = ["-o", tmp_path / f"{name}.parquet", "-e", spec, "--columns", "added", "-q"]
        assert ktae("score", path, *arguments) == 0
    options = [tmp_path / "a.parquet", tmp_path / "b.parquet", "--rollouts", path]
    files = compared(capsys, *options)
    direct = compared(capsys, path, *estimators("grpo", "ktae"), "--null", 0)
    for name in ("rollouts", "tokens", "groups_mixed", "largest_difference"):
        assert files[name] == direct[name]
    measures = files["pairs"][0].keys() - {"first", "second"}
    assert {m: files["pairs"][0][m] for m in measures} == {m: direct["pairs"][0][m] for m in measures}
    assert [e["length"] for e in files["estimators"]] == [e["length"] for e in direct["estimators"]]
    limited = compared(capsys, *options, "-n", 2)
    assert limited["groups"] == 2 and limited["rollouts"] < files["rollouts"]


def test_files_without_a_common_rollout_exit_2(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES)
    b = scored_file(tmp_path / "b.parquet", ONES, group_id=["other"] * 4)
    text = refusal(capsys, tmp_path, "compare", a, b, "-o", tmp_path / "out.parquet")
    assert "no rollout can be compared (4 in a.parquet alone; 4 in b.parquet alone)" in text


def test_parts_of_a_trajectory_are_joined_in_their_order(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES, rollout_id=["a", "a", "c", "d"])
    b = scored_file(tmp_path / "b.parquet", ONES, rollout_id=["a", "a", "c", "d"])
    report = compared(capsys, a, b)
    assert report["rollouts"] == 3 and report["largest_difference"] == 0
    assert report["estimators"][0]["sum_abs"]["right"] == 2.5


def test_scored_file_agrees_with_itself_and_fails_over_nothing(tmp_path, capsys):
    score(tmp_path, drawn(1))
    assert ktae("compare", tmp_path / "out.parquet", tmp_path / "out.parquet", "--fail-over", 0) == 0
    out = capsys.readouterr().out
    assert "largest difference of a token's value from 1: 0" in out


def test_by_names_another_column(tmp_path, capsys):
    score(tmp_path, drawn(1))
    (tmp_path / "out.parquet").rename(tmp_path / "a.parquet")
    score(tmp_path, drawn(1), "-e", "ktae(tf=bounded)")
    report = compared(capsys, tmp_path / "a.parquet", tmp_path / "out.parquet", "--by", "key_weight")
    tables = [pq.read_table(tmp_path / name) for name in ("a.parquet", "out.parquet")]
    flat = [np.array([v for row in t["key_weight"].to_pylist() for v in row or []]) for t in tables]
    assert report["largest_difference"] == pytest.approx(np.abs(flat[0] - flat[1]).max())
    text = refusal(capsys, tmp_path, "compare", tmp_path / "a.parquet", tmp_path / "out.parquet", "--by", "reward")
    assert "'reward' holds no number for each token; columns that do: advantages" in text


def test_fail_over_exits_1_and_names_the_difference(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES)
    b = scored_file(tmp_path / "b.parquet", [[1.0, -1.0], [0.5, 0.0], [2.0], [0.75]])
    assert ktae("compare", a, b, "--fail-over", 0.5) == 0
    assert ktae("compare", a, b, "--fail-over", 0.4999, "-q") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "over --fail-over 0.4999: 0.5"


def test_rows_are_written_with_every_change_of_sign(tmp_path, capsys):
    table = drawn(2)
    path, out = write(tmp_path / "in.parquet", table), tmp_path / "out.compare.parquet"
    report = compared(capsys, path, *estimators(*SPECS), "-o", out)
    scored = score(tmp_path, table, *estimators(*SPECS)).to_pylist()
    rows = pq.read_table(out).to_pylist()
    scored = [row for row in scored if row["advantages"] is not None]
    for row, other in zip(rows, scored, strict=True):
        a, b = np.array(other["adv_grpo"]), np.array(other["adv_ktae"])
        assert (row["group_id"], row["rollout_id"], row["correct"]) == tuple(
            other[name] for name in ("group_id", "rollout_id", "correct")
        )
        assert row["n_tokens"] == sum(other["response_mask"])
        assert row["flip_positions_ktae"] == np.flatnonzero(a * b < 0).tolist()
        assert row["sum_abs_ktae"] == pytest.approx(np.abs(b).sum())
    metadata = json.loads(pq.read_metadata(out).metadata[b"ktae"])
    assert metadata["compare"]["pairs"] == report["pairs"] and str(tmp_path) not in json.dumps(metadata)
    n_flips = sum(len(row["flip_positions_ktae"]) for row in rows)
    assert n_flips == round(report["pairs"][0]["sign_flips"] * report["tokens"]) > 0


def test_the_same_call_gives_the_same_bytes(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", drawn(2))
    for name, jobs in (("a", 1), ("b", 2)):
        assert ktae("compare", path, *estimators(*SPECS), "-o", tmp_path / name, "-j", jobs, "-q") == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_order_of_the_rows_changes_nothing(tmp_path, capsys):
    table = drawn(4)
    ordered = table.sort_by([("group_id", "ascending")])
    options = [*estimators("grpo", "ktae", "ktae(base=reinforce_plus_plus)"), "--null", 0]
    one = compared(capsys, write(tmp_path / "a.parquet", table), *options)
    two = compared(capsys, write(tmp_path / "b.parquet", ordered), *options)
    for name in ("sign_flips", "token_pearson", "token_spearman", "rollout_spearman", "top_jaccard"):
        assert [p[name] for p in one["pairs"]] == pytest.approx([p[name] for p in two["pairs"]])
    assert one["estimators"][1]["key_weight"]["agreement"] == pytest.approx(
        two["estimators"][1]["key_weight"]["agreement"]
    )


def test_report_is_readable_at_100_columns(capsys):
    assert ktae("compare", SAMPLE, *estimators(*SPECS, "rloo"), "-n", 6, "--null", 1) == 0
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 100
    for line in ("5 estimators on 96 rollouts", "1  grpo", "Size and length", "Agreement with 1 grpo", "Key weights"):
        assert line in captured.out
    assert "  token    " in captured.out and "self share" in captured.out
    assert "token text from tokenizer.json" in captured.err


def test_names_in_the_file_cannot_act_on_the_terminal(tmp_path, capsys):
    bad = "a\x1b]0;title\x07\u202e\nb"
    a = scored_file(tmp_path / "a.parquet", ONES, rollout_id=[bad, "b", "c", "d"], group_id=[bad] * 4)
    b = scored_file(
        tmp_path / "b.parquet", [[-v for v in row] for row in ONES], rollout_id=[bad, "b", "c", "d"], group_id=[bad] * 4
    )
    assert ktae("compare", a, b) == 0
    captured = capsys.readouterr()
    assert not set("\x1b\x07\u202e") & set(captured.out + captured.err) and "a␛]0;title␇" in captured.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-e", "grpo"], "two estimators or more"),
        ([], "give estimators with -e, two or more, or two scored files"),
        (["-e", "grpo", "-e", "nope"], "unknown estimator 'nope'"),
        (["-e", "grpo", "-e", "grpo"], "two estimators would write the columns of 'grpo'"),
        (["-e", "grpo", "-e", "ktae", "--by", "key_weight"], "--by: is for two scored files"),
        (["-e", "grpo", "-e", "ktae", "--fail-over", "nan"], "--fail-over takes a number"),
        (["-e", "grpo", "-e", "ktae", "-o", "-"], "compare writes a Parquet file"),
        (["-e", "grpo", "-e", "ktae", "-o", "INPUT", "--force"], "is an input"),
    ],
)
def test_wrong_usage_exits_2(tmp_path, capsys, arguments, text):
    path = write(tmp_path / "in.parquet", four())
    arguments = [path if argument == "INPUT" else argument for argument in arguments]
    assert text in refusal(capsys, tmp_path, "compare", path, *arguments)


def test_options_of_scoring_are_refused_for_two_files(tmp_path, capsys):
    a = scored_file(tmp_path / "a.parquet", ONES)
    b = scored_file(tmp_path / "b.parquet", ONES)
    assert "--map: is for estimators" in refusal(capsys, tmp_path, "compare", a, b, "--map", "reward=x")
    plain = write(tmp_path / "plain.parquet", four())
    assert "plain.parquet is not a scored file" in refusal(capsys, tmp_path, "compare", a, plain)


def test_file_without_rewards_exits_2(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=pa.nulls(4, pa.float64())))
    assert "no rollout has a known reward" in refusal(capsys, tmp_path, "compare", path, *estimators("grpo", "ktae"))


def test_rows_that_cannot_be_scored_are_skipped_and_said(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", four(reward=["1", "bad", "0", "0"]))
    assert ktae("compare", path, *estimators("grpo", "ktae"), "--on-error", "skip") == 0
    captured = capsys.readouterr()
    assert "on 3 rollouts" in captured.out and "1 row(s) left out, the first: " in captured.err


def test_two_files_are_compared_without_torch(tmp_path):
    a = scored_file(tmp_path / "a.parquet", ONES)
    code = (
        "import sys; from ktae_cli.cli.app import run; s = run(sys.argv[1:]); "
        "print({'torch', 'matplotlib', 'scipy', 'ray'} & set(sys.modules)); sys.exit(s)"
    )
    done = subprocess.run([sys.executable, "-c", code, "compare", a, a], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "set()"


@given(numbers)
def test_ranks_are_those_of_scipy(values):
    assert (twice_ranks(np.array(values)) / 2).tolist() == rankdata(values).tolist()


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.floats(-3, 3, width=32)] * 3), min_size=3, max_size=40), st.integers(1, 5))
def test_moments_merge_to_the_correlation_of_the_whole(rows, parts):
    values = np.array(rows, np.float32).T
    moments = CoMoments(3)
    for part in np.array_split(values, parts, axis=1):
        moments.add(part)
    found = moments.correlations()
    for i in range(3):
        for j in range(3):
            if min(np.ptp(values[i]), np.ptp(values[j])) > 1e-3:
                expected = pearsonr(*values[[i, j]].astype(np.float64))[0]
                assert found[i, j] == pytest.approx(expected, abs=1e-6)


@given(numbers, st.integers(0, 9))
def test_signs_are_counted_as_one_by_one(values, seed):
    other = np.random.default_rng(seed).permutation(values)
    signs = SignCounts(2)
    signs.add(np.array([values, other], np.float32))
    assert signs.opposite[0, 1] == sum(a * b < 0 for a, b in zip(values, other, strict=True))
    assert signs.one_sided[0, 1] == sum((a == 0) != (b == 0) for a, b in zip(values, other, strict=True))
    assert signs.nonzero.tolist() == [np.count_nonzero(values)] * 2


def test_top_set_takes_ties_and_leaves_zeros():
    values = np.array([3.0, -3.0, 2.0, 2.0, *[0.0] * 196])
    assert top_values(values).tolist() == [True, True, *[False] * 198]  # 1 % of 200 is 2
    assert top_values(values, 0.012).tolist() == [True] * 4 + [False] * 196  # the third ties with the fourth
    assert top_values(values, 0.5).sum() == 4
    found = jaccard([top_values(values), top_values(values, 0.012), np.zeros(200, bool)])
    assert found[0, 1] == 0.5 and found[0, 2] == 0 and np.isnan(found[2, 2])


def test_slope_inside_blocks_ignores_their_levels():
    x = np.array([1.0, 2.0, 3.0, 11.0, 12.0, 13.0])
    y = np.array([2.0, 4.0, 6.0, -7.0, -5.0, -3.0])
    assert slope_within(x, y, np.repeat([0, 1], 3)) == pytest.approx(2)
    assert slope_within(x, y, np.zeros(6, int)) == pytest.approx(linregress(x, y).slope)
    assert math.isnan(slope_within(np.full(3, 0.1), y[:3], np.zeros(3, int)))


def test_sample_keeps_whole_groups_whatever_the_order():
    groups = [f"g{i}" for i in range(40)]
    random = np.random.default_rng(0)
    values = {g: random.normal(size=(2, 10)).astype(np.float32) for g in range(40)}

    def sampled(order) -> TokenSample:
        sample = TokenSample(2, groups, 120)
        for g in order:
            sample.add(values[g], np.array([g]), np.array([10]))
        return sample

    one, two = sampled(range(40)), sampled(reversed(range(40)))
    kept = one.kept_groups().tolist()
    assert kept == two.kept_groups().tolist() and 0 < one.held == 10 * len(kept) <= 120
    joined = np.concatenate([values[g] for g in kept], 1)
    assert one.measure()["spearman"][0, 1] == pytest.approx(spearmanr(*joined)[0])


def test_sampled_ranks_are_said(tmp_path, capsys):
    from ktae_cli.comparing import CompareOptions, compare_inputs
    from ktae_cli.plan import ScoreOptions
    from ktae_cli.reports.comparison import comparison_lines

    path = write(tmp_path / "in.parquet", drawn(1))
    options = ScoreOptions(estimators=("grpo", "ktae"))
    report = compare_inputs([str(path)], None, False, options, CompareOptions(0, 0, 100))
    assert 0 < report["ranked_tokens"] <= 100 < report["tokens"]
    text = "\n".join(str(line) for line in comparison_lines(report))
    assert f"are of {report['ranked_tokens']} tokens, whole groups ({report['ranked_groups']} of 8)" in text


def test_the_library_function_can_be_called_again(tmp_path):
    import ktae_cli

    for _ in range(2):
        assert len(ktae_cli.compare(four(), ["grpo", "rloo"], null=0)["estimators"]) == 2
