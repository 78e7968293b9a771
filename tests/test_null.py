"""`--null`: hand-worked sums, slow versions that score files of their own, and data of which the answer is known."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ktae_cli
from ktae_cli.errors import KtaeError
from ktae_cli.key_weight.figures import chance_figures
from ktae_cli.key_weight.halves import Entries, paired_moments, reliability, split_halves
from ktae_cli.key_weight.intervals import resample, sums_by_prompt, with_interval
from ktae_cli.key_weight_passes import mixed_groups_of
from ktae_cli.mapping import resolve_mapping
from ktae_cli.plan import ScoreOptions, make_plan
from ktae_cli.readers._memory import TableRollouts
from ktae_cli.readers._relabelled import RelabelledRollouts, exchange_labels
from ktae_cli.runners.local import Job
from ktae_cli.stats.conditional import Strata
from tests.helpers import ROOT
from tests.rollout_files import four, ktae, refusal, score, write

SAMPLE = ROOT / "sample_data" / "rollouts.parquet"


def null_of(directory, table: pa.Table, *options) -> dict:
    """Score a table with --null and return what the file's metadata say."""
    score(directory, table, *options)
    return json.loads(pq.read_metadata(directory / "out.parquet").metadata[b"ktae"])["null"]


def drawn(seed: int, n_groups: int = 8, size: int = 8) -> pa.Table:
    """Rollouts in shuffled order: masks, unknown verdicts and rewards, two parts, shaped rewards, shared prompts."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(n_groups):
        for place in range(size):
            correct = None if random.random() < 0.1 else bool(random.random() < (0.5 if group else 0.0))
            reward = None if random.random() < 0.05 else float(correct or 0) + 0.1 * (group == 1 and place == 1)
            for _ in range(1 + (place == 2)):
                ids = random.integers(0, 12, random.integers(0, 15)).tolist()
                mask = [bool(m) for m in random.random(len(ids)) < 0.8]
                rows.append((f"g{group}", f"p{group // 2}", f"g{group}/{place}", reward, correct, ids, mask))
    random.shuffle(rows)
    names = ("group_id", "prompt", "rollout_id", "reward", "correct", "response_ids", "response_mask")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def table_of(rows: list[tuple]) -> pa.Table:
    """Rollouts of group, id, reward and token ids."""
    names = ("group_id", "rollout_id", "reward", "response_ids")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def squares_in_mixed_groups(scored: pa.Table) -> float:
    rows = scored.to_pylist()
    verdicts = {}
    for row in rows:
        if row["advantages"] is not None:
            verdicts.setdefault(row["group_id"], set()).add(row["correct"])
    mixed = {group for group, found in verdicts.items() if {True, False} <= found}
    return sum(k * k for row in rows if row["group_id"] in mixed for k in row["key_weight"] or ())


def mixed_groups(table: pa.Table, **options):
    """What the passes of --null know of a table, every row of which with a reward is scored."""
    plan = make_plan(TableRollouts(table), ScoreOptions(**options))
    job = Job(plan.source, plan.mapping, plan.index, plan.specs, plan.read)
    lengths = [sum(mask) for mask in table["response_mask"].to_pylist()]
    scored = np.array([reward is not None for reward in table["reward"].to_pylist()])
    return mixed_groups_of(plan, job, scored, np.array(lengths))


def test_figures_of_two_prompts_by_hand():
    # rows of the sums: |base|, |shift|, K x verdict, tokens, K^2; three groups, the first two of one prompt
    own = np.array([[0.0] * 3, [0.0] * 3, [2, 1, 3], [10, 10, 20], [4, 2, 2]])
    left_out = np.array([[0.0] * 3, [0.0] * 3, [-1, 1, 1.5], [10, 10, 20], [0.0] * 3])
    shuffled = {"free": np.array([2.0, 1, 3]), "given-length": np.array([4.0, 2, 2])}
    # pairs (a, b) of weight 1: (0, 0), (1, 2), (2, 1): means 1, spreads 2, product 1: r = 1/2, stepped up 2/3
    halves = np.array([[1.0, 0, 2], [0, 0, 3], [0, 0, 3], [0, 0, 5], [0, 0, 5], [0, 0, 4]])
    found = chance_figures(own, left_out, shuffled, halves, np.array([7, 7, 9]), np.random.default_rng(0))
    assert found["shuffle_share"]["free"]["value"] == 0.75
    assert found["shuffle_share"]["given-length"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert found["agreement"]["value"] == 0.15 and found["agreement_left_out"]["value"] == 0.0375
    assert found["self_share"]["value"] == 0.75
    assert found["reliability"]["value"] == pytest.approx(2 / 3, abs=1e-6)
    # of two prompts the resamples are one of them twice or both: 3 of 6, 6 of 8 and 3 of 2
    assert (found["shuffle_share"]["free"]["low"], found["shuffle_share"]["free"]["high"]) == (0.5, 1.5)
    assert (found["self_share"]["low"], found["self_share"]["high"]) == (0.5, 1.0)


def test_figures_that_do_not_exist_are_none():
    own = np.array([[0.0], [0.0], [-1.0], [4.0], [0.0]])
    found = chance_figures(own, None, {"free": np.zeros(1)}, np.zeros((6, 1)), np.zeros(1), np.random.default_rng(0))
    nothing = {"value": None, "low": None, "high": None}
    assert found["shuffle_share"]["free"] == found["self_share"] == found["reliability"] == nothing
    assert found["agreement"] == {"value": -0.25, "low": None, "high": None}  # one prompt cannot be resampled
    assert found["agreement_left_out"] == nothing
    negative = chance_figures(own, own, {}, np.zeros((6, 1)), np.zeros(1), np.random.default_rng(0))
    assert negative["self_share"] == nothing and negative["agreement_left_out"]["value"] == -0.25


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=12),
    st.integers(0, 9),
)
def test_resampled_sums_are_sums_over_drawn_prompts(rows, seed):
    prompt = np.array([row[0] for row in rows])
    values = np.array([row[1:] for row in rows]).T
    sums = sums_by_prompt(values, prompt)
    names = sorted(set(prompt.tolist()))
    expected = [[sum(r[1 + i] for r in rows if r[0] == name) for name in names] for i in range(2)]
    assert np.allclose(sums, expected)
    random = np.random.default_rng(seed)
    slow = [sums[0, random.integers(0, len(names), len(names))].sum() for _ in range(3)]
    assert np.allclose(resample(sums, np.random.default_rng(seed), 3)[0], slow)


def test_an_interval_is_not_given_where_many_resamples_have_no_figure():
    sums = np.array([[1.0, 0.0], [0.0, 2.0]])

    def ratio(s):
        return np.divide(s[0], s[1], out=np.full(np.shape(s[0]), np.nan), where=np.asarray(s[1]) > 0)

    assert with_interval(ratio, sums, np.array([[2.0, 1], [0.0, 2]])) == {"value": 0.5, "low": None, "high": None}
    some = np.concatenate([np.full((2, 1), 0.0), np.ones((2, 99))], 1)
    assert with_interval(ratio, sums, some) == {"value": 0.5, "low": 1.0, "high": 1.0}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6), st.integers(0, 9))
def test_halves_keep_the_proportions(groups, seed):
    right = np.concatenate([[1] * r + [0] * w for r, w in groups]).astype(np.uint8)
    random = np.random.default_rng(seed)
    strata = Strata(np.array([r + w for r, w in groups]), np.array([r for r, _ in groups]))
    order = np.lexsort((random.random(len(right)), strata.group))
    half = split_halves(right[order], strata, random, max_groups=3)
    kept = 0
    for start, (r, w) in zip(strata.starts, groups, strict=True):
        own, verdict = half[start : start + r + w], right[order][start : start + r + w]
        if own[0] < 0:
            assert (own < 0).all()
            continue
        kept += 1
        assert min(r, w) >= 2
        for part in (own, own[verdict == 1], own[verdict == 0]):
            assert abs((part == 0).sum() - (part == 1).sum()) == len(part) % 2
    assert kept == min(3, sum(min(pair) >= 2 for pair in groups))


def test_both_halves_of_a_group_are_drawn():
    strata, right = Strata(np.array([4]), np.array([2])), np.array([1, 1, 0, 0], np.uint8)
    seen = {tuple(split_halves(right, strata, np.random.default_rng(seed)).tolist()) for seed in range(60)}
    assert seen == {(a, 1 - a, b, 1 - b) for a in (0, 1) for b in (0, 1)}


def entries(rows) -> Entries:
    found = Entries([])
    names = ("group", "token_id", "key_weight", "correct_with", "incorrect_with")
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        if part:
            found.add(dict(zip(names, map(np.array, zip(*part, strict=True)), strict=True)))
    return found


def test_halves_meet_in_the_entries_that_both_count():
    first = entries([(0, 5, 0.5, 1, 1), (0, 7, 1.0, 1, 0), (1, 5, -0.5, 0, 2)])
    second = entries([(0, 5, 0.25, 2, 0), (1, 5, 0.25, 1, 1), (1, 7, 1.0, 1, 0)])
    assert paired_moments(first, second, 3).T.tolist() == [
        [4, 2, 1, 1, 0.25, 0.5], [4, -2, 1, 1, 0.25, -0.5], [0, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    assert paired_moments(Entries([]), second, 1).tolist() == [[0.0]] * 6


weighted_pairs = st.lists(
    st.tuples(st.integers(1, 5), st.floats(-1, 1, width=32), st.floats(-1, 1, width=32)), min_size=3, max_size=20
)


@given(weighted_pairs)
def test_reliability_is_a_weighted_correlation_stepped_up(pairs):
    w, a, b = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    if min(np.std(np.repeat(v, w.astype(int))) for v in (a, b)) < 1e-2:
        return
    r = np.corrcoef(np.repeat(a, w.astype(int)), np.repeat(b, w.astype(int)))[0, 1]
    found = reliability(np.array([w, w * a, w * b, w * a * a, w * b * b, w * a * b]).sum(1))
    assert r < -0.99 or found == pytest.approx(2 * r / (1 + r), rel=1e-4, abs=1e-6)
    assert np.isnan(reliability(np.array([3.0, 3, 3, 3, 3, 3])))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=16),
    st.integers(0, 9),
)
def test_drawn_right_rows_get_the_labels_of_right_rows(rows, seed):
    random = np.random.default_rng(seed)
    group, verdict = (np.array(column) for column in zip(*rows, strict=True))
    drawn_verdict = verdict.copy()
    for g in set(group.tolist()):
        drawn_verdict[group == g] = random.permutation(verdict[group == g])
    known = np.ones(len(group), bool)
    giver = exchange_labels(group, np.arange(len(group)), known, random, verdict, drawn_verdict)
    assert sorted(giver.tolist()) == list(range(len(group)))
    assert (group[giver] == group).all() and (verdict[giver] == drawn_verdict).all()


def test_right_labels_are_handed_out_at_random():
    group, verdict = np.zeros(4, int), np.array([1, 1, 0, 0])
    drawn_verdict = np.array([0, 1, 1, 0])
    givers = [
        tuple(exchange_labels(group, np.arange(4), np.ones(4, bool), np.random.default_rng(s), verdict, drawn_verdict))
        for s in range(200)
    ]
    assert set(givers) == {(a, b, 1 - b, 5 - a) for a in (2, 3) for b in (0, 1)}


def test_rows_without_a_giver_have_no_labels():
    table = four(correct=[True, None, False, True], finish_reason=["length"] * 4)
    giver = np.array([1, -1, 0, -1])
    source = RelabelledRollouts(TableRollouts(table), resolve_mapping(table.schema), giver, "zero")
    moved = pa.Table.from_batches(list(source.batches()), source.schema)
    found = {name: moved[source.mapping.columns[name]].to_pylist() for name in ("reward", "correct", "finish_reason")}
    assert found == {
        "reward": [0.0, None, 1.0, None], "correct": [None, None, True, None],
        "finish_reason": ["length", None, "length", None],
    }  # fmt: skip


def test_the_law_given_length_draws_long_rollouts_where_they_are_right():
    rows = [(f"g{g}", f"{g}/{i}", float(i >= 2), [1] * (40 if i == 3 else 10)) for g in range(30) for i in range(4)]
    table = table_of(rows).append_column("response_mask", pa.array([[True] * len(r[3]) for r in rows]))
    mixed = mixed_groups(table)
    law = mixed.model_length()
    long = np.array([len(r[3]) == 40 for r in rows])
    reward = table["reward"].to_numpy()
    free, by_length = (
        np.mean([reward[mixed.giver(one, np.random.default_rng(s))][long] for s in range(40)]) for one in (None, law)
    )
    assert free == pytest.approx(0.5, abs=0.06) and by_length > 0.97  # every long rollout is right


@pytest.mark.parametrize("null", ["free", "given-length"])
def test_shuffle_share_is_that_of_files_with_exchanged_labels(tmp_path, null):
    table = drawn(3)
    found = null_of(tmp_path, table, "--null", 2, "--seed", 5)
    mixed = mixed_groups(table)
    law = {"free": None, "given-length": mixed.model_length()}[null]
    at = ("free", "given-length").index(null)
    observed = squares_in_mixed_groups(score(tmp_path, table))
    shares = []
    for time in range(2):
        giver = pa.array(mixed.giver(law, np.random.default_rng([5, time, at])))
        moved = table.set_column(3, "reward", table["reward"].take(giver))
        moved = moved.set_column(4, "correct", table["correct"].take(giver))
        assert moved != table
        shares.append(squares_in_mixed_groups(score(tmp_path, moved)) / observed)
    value = found["estimators"]["ktae"]["shuffle_share"][null]["value"]
    assert value == pytest.approx(np.mean(shares), rel=1e-5)
    assert found["groups"] == len(mixed.place) and found["prompts"] == len(set(mixed.rollouts.prompt.tolist()))


def test_reliability_is_that_of_files_that_hold_one_half(tmp_path):
    table = drawn(4, n_groups=6, size=12)
    found = null_of(tmp_path, table, "--null", 1, "--seed", 2)
    mixed = mixed_groups(table)
    half = split_halves(mixed.rollouts.right, mixed.rollouts.strata, np.random.default_rng([2, 0, 2]))
    of_row = mixed.rollouts.of_row
    tables = []
    for side in (0, 1):
        chosen = (of_row >= 0) & (half[of_row] == side)
        score(tmp_path, table.filter(pa.array(chosen)))
        rows = pl.read_parquet(tmp_path / "out.tokens.parquet")
        tables.append(
            rows.select("group_id", "token_id", "key_weight", w=pl.col("correct_with") + pl.col("incorrect_with"))
        )
    both = tables[0].join(tables[1], on=["group_id", "token_id"])
    times = (both["w"] + both["w_right"]).to_numpy()
    a, b = (np.repeat(both[name].to_numpy().astype(np.float64), times) for name in ("key_weight", "key_weight_right"))
    r = np.corrcoef(a, b)[0, 1]
    assert found["estimators"]["ktae"]["reliability"]["value"] == pytest.approx(2 * r / (1 + r), rel=1e-4)
    assert found["groups_split"] == len(set(mixed.rollouts.strata.group[half >= 0].tolist())) > 2


def test_self_share_compares_with_the_form_that_leaves_a_rollout_out(tmp_path):
    table = drawn(3)
    found = null_of(tmp_path, table, "--null", 1)["estimators"]["ktae"]
    scored = score(tmp_path, table, "-e", "ktae", "-e", "ktae(loo=true)").to_pylist()
    groups = {}
    for row in scored:
        groups.setdefault(row["group_id"], set()).add(row["correct"] if row["advantages"] is not None else None)
    mixed = {group for group, verdicts in groups.items() if {True, False} <= verdicts}
    total, tokens = np.zeros(2), 0
    for row in scored:
        if row["group_id"] in mixed and row["correct"] is not None and row["advantages"] is not None:
            sign = 1 if row["correct"] else -1
            total += [sign * sum(row[name]) for name in ("key_weight_ktae", "key_weight_ktae__loo_true")]
            tokens += sum(row["response_mask"])
    assert found["agreement"]["value"] == pytest.approx(total[0] / tokens, rel=1e-5)
    assert found["agreement_left_out"]["value"] == pytest.approx(total[1] / tokens, rel=1e-5)
    assert found["self_share"]["value"] == pytest.approx(1 - total[1] / total[0], rel=1e-4)


def texts(seed: int, n_groups: int, verdict_of) -> pa.Table:
    """Groups of 8 rollouts with Zipf-like ids and lengths of 5 to 60; verdict_of(lengths, random) says who is right."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(n_groups):
        lengths = random.integers(5, 60, 8)
        for i, (n, right) in enumerate(zip(lengths.tolist(), verdict_of(lengths, random).tolist(), strict=True)):
            ids = np.minimum(random.zipf(1.4, n), 400).tolist()
            rows.append((f"g{group}", f"g{group}/{i}", float(right), ids))
    return table_of(rows)


def test_random_labels_keep_all_of_their_weights_when_shuffled(tmp_path):
    table = texts(0, 150, lambda lengths, random: random.permutation(np.arange(8) < 4))
    null = null_of(tmp_path, table, "--null", 2)
    found = null["estimators"]["ktae"]
    free = found["shuffle_share"]["free"]
    assert free["value"] == pytest.approx(1, abs=0.05) and free["low"] < 1 < free["high"]
    assert found["shuffle_share"]["given-length"]["value"] == pytest.approx(1, abs=0.05)
    assert abs(found["reliability"]["value"]) < 0.15
    # the others of a right rollout are one right rollout short, so that they agree with it less than not at all
    assert -0.1 * found["agreement"]["value"] < found["agreement_left_out"]["value"] < 0
    assert found["self_share"]["value"] == pytest.approx(1, abs=0.1)
    assert null["overlap"] > 0.95 and null["groups_split"] == 150


def test_where_length_decides_its_law_keeps_the_weights(tmp_path):
    table = texts(1, 100, lambda lengths, random: np.argsort(np.argsort(lengths)) >= 4)
    null = null_of(tmp_path, table, "--null", 1, "-e", "ktae(tf=off)")
    shares = null["estimators"]["ktae(tf=off)"]["shuffle_share"]
    assert null["overlap"] < 0.1
    assert shares["free"]["high"] < 0.6 < 0.9 < shares["given-length"]["value"] < 1.1


def test_a_gate_stays_that_of_the_real_labels(tmp_path):
    random = np.random.default_rng(5)
    rows = []
    for group in range(60):
        for i in range(8):
            ids = random.integers(0, 9, 12).tolist()
            ids[0] = 99 if random.random() < (0.8 if i < 4 else 0.2) else ids[0]
            rows.append((f"g{group}", f"g{group}/{i}", float(i < 4), ids))
    table = table_of(rows)
    found = null_of(tmp_path, table, "--null", 1, "-e", "ktae(gate=0.05)")["estimators"]["ktae(gate=0.05)"]
    shares = found["shuffle_share"]
    assert 0.02 < shares["free"]["value"] < 0.8  # a gate from shuffled labels would let nothing through
    assert found["agreement_left_out"]["low"] > 0


def test_file_and_summary_hold_the_same_and_the_rows_are_those_without(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", drawn(7))
    capsys.readouterr()
    assert ktae("score", path, "-o", tmp_path / "a.parquet", "--null", 1, "--json", "-q") == 0
    summary = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    file = pq.ParquetFile(tmp_path / "a.parquet")
    metadata = json.loads(file.metadata.metadata[b"ktae"])
    assert metadata["null"] == summary["null"] and metadata["null"]["shuffles"] == 1
    assert ktae("score", path, "-o", tmp_path / "b.parquet", "--null", 0, "-q") == 0
    assert ktae("score", path, "-o", tmp_path / "c.parquet", "-q") == 0
    plain = json.loads(pq.read_metadata(tmp_path / "b.parquet").metadata[b"ktae"])
    same = {name for name in plain if name != "token_table"}
    assert "null" not in plain and {name: metadata[name] for name in same} == {name: plain[name] for name in same}
    assert pq.read_table(tmp_path / "a.parquet") == pq.read_table(tmp_path / "b.parquet")
    texts_of = [(tmp_path / name).read_bytes().replace(b"c.tokens", b"b.tokens") for name in ("b.parquet", "c.parquet")]
    assert texts_of[0] == texts_of[1]
    assert ktae("score", path, "-o", tmp_path / "d.parquet", "--null", 1, "-q", "-j", 1) == 0
    assert json.loads(pq.read_metadata(tmp_path / "d.parquet").metadata[b"ktae"])["null"] == metadata["null"]


def test_reports_print_what_the_file_holds(tmp_path, capsys):
    out = tmp_path / "out.parquet"
    assert ktae("score", SAMPLE, "-o", out, "-n", 12, "--null", 1, "-e", "ktae", "-e", "ktae(tf=off)") == 0
    said = capsys.readouterr().err
    null = ktae_cli.inspect(out)["null"]
    share = null["estimators"]["ktae"]["shuffle_share"]["given-length"]
    line = f"given-length {share['value']:.2f} ({share['low']:.2f} to {share['high']:.2f}); reliability"
    heading = "key weights against chance, 1 shuffle a null, seed 0: 12 mixed groups of 12 prompts"
    assert line in said and heading in said
    assert ktae("inspect", out) == 0
    inspected = capsys.readouterr().out
    assert line in inspected and heading in inspected and "  ktae(tf=off): shuffle share free" in inspected
    assert ktae("highlight", out, "-q") == 0
    assert (
        f"shuffle share free {null['estimators']['ktae']['shuffle_share']['free']['value']:.2f} ("
        in capsys.readouterr().out
    )
    assert ktae("compare", SAMPLE, "-n", 12, "--null", 1, "-e", "ktae", "-e", "ktae(tf=off)", "--json", "-q") == 0
    assert json.loads(capsys.readouterr().out)["null"] == null
    assert ktae("compare", SAMPLE, "-n", 12, "--null", 1, "-e", "grpo", "-e", "ktae") == 0
    compared = capsys.readouterr().out
    assert "Key weights against chance" in compared and f"{share['low']:.2f} to {share['high']:.2f}" in compared


def test_a_file_without_mixed_groups_says_so(tmp_path, capsys):
    null = null_of(tmp_path, four(reward=[1.0] * 4), "--null", 2)
    assert null["groups"] == 0 and null["overlap"] is None and null["estimators"] == {"ktae": None}
    assert "ktae: no group holds right and wrong rollouts" in capsys.readouterr().err
    assert ktae("inspect", tmp_path / "out.parquet") == 0


def test_groups_too_small_to_split_have_no_reliability(tmp_path):
    null = null_of(tmp_path, four(), "--null", 1)
    assert null["groups_split"] == 0 and null["estimators"]["ktae"]["reliability"]["value"] is None
    assert null["estimators"]["ktae"]["shuffle_share"]["free"]["value"] > 0


def test_rows_that_are_left_out_take_no_part(tmp_path):
    table = drawn(3)
    rows = table.to_pylist()
    bad = [
        {**rows[0], "rollout_id": f"bad {i}", "reward": 1.0, "correct": True, "response_ids": [-1]} for i in range(3)
    ]
    for row in bad:
        row["response_mask"] = [True]
    with_bad = pa.Table.from_pylist(rows + bad, table.schema)
    clean = null_of(tmp_path, table, "--null", 1)
    assert null_of(tmp_path, with_bad, "--null", 1, "--on-error", "skip") == clean


def test_progress_counts_every_pass(tmp_path):
    seen = []
    path = write(tmp_path / "in.parquet", drawn(3))
    ktae_cli.score(path, output=tmp_path / "out.parquet", null=2, progress=lambda *pair: seen.append(pair), warn=print)
    assert {total for _, total in seen} == {seen[-1][0]} == {len(drawn(3)) * (1 + 1 + 4 * 2)}


def test_truncated_answers_stay_wrong_and_follow_their_labels(tmp_path):
    table = drawn(3)
    reasons = ["length" if i % 5 == 0 else "stop" for i in range(len(table))]
    table = table.append_column("finish_reason", pa.array(reasons))
    found = null_of(tmp_path, table, "--null", 1, "--truncated", "zero")
    mixed = mixed_groups(table, truncated="zero")
    assert found["groups"] == len(mixed.place) and 0 < found["overlap"] < 1
    giver = mixed.giver(None, np.random.default_rng([0, 0, 0]))
    moved = table
    for name in ("reward", "correct", "finish_reason"):
        moved = moved.set_column(moved.column_names.index(name), name, table[name].take(pa.array(giver)))
    before, after = (score(tmp_path, t, "--truncated", "zero") for t in (table, moved))
    groups = {row["group_id"] for row in table.to_pylist()}
    kept = {mixed.job.index.keys[code] for code in range(len(mixed.place))}
    assert kept < groups
    totals = [
        sum(k * k for row in scored.to_pylist() if row["group_id"] in kept for k in row["key_weight"] or ())
        for scored in (before, after)
    ]
    value = found["estimators"]["ktae"]["shuffle_share"]["free"]["value"]
    assert value == pytest.approx(totals[1] / totals[0], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--null", 1, "-e", "grpo"], "--null measures key weights, and grpo has none; add a KTAE estimator"),
        (["--null", 1, "-e", "grpo", "--dry-run"], "--null measures key weights, and grpo has none"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path, capsys, options, text):
    path = write(tmp_path / "in.parquet", four())
    assert text in refusal(capsys, tmp_path, "score", path, *options)


def test_dry_run_says_how_often_the_input_is_read(tmp_path, capsys):
    assert ktae("score", write(tmp_path / "in.parquet", four()), "--dry-run", "--null", 3) == 0
    assert "--null 3: the rollouts are read and scored 13 times more" in capsys.readouterr().err


def test_library_refuses_a_null_that_cannot_be(tmp_path):
    with pytest.raises(KtaeError, match="--null and --seed take numbers of at least 0, found -1 and 0"):
        ktae_cli.score(write(tmp_path / "in.parquet", four()), null=-1)
    with pytest.raises(KtaeError, match="give a path to score"):
        ktae_cli.score(four(), null=1)
    with pytest.raises(KtaeError, match="--null and --seed take numbers of at least 0, found -2 and 0"):
        ktae_cli.compare(four(), ["grpo", "ktae"], null=-2)
    assert "null" not in ktae_cli.score(write(tmp_path / "in.parquet", four()), warn=print)
