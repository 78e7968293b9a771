"""The table of `ktae tokens` against counts by hand, other libraries, and the figures of real rollouts."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy.stats import false_discovery_control, fisher_exact
from statsmodels.stats.contingency_tables import StratifiedTable

import ktae_cli
from ktae_cli.evidence.unit_table import SCHEMA
from tests.evidence.rollouts import planted, table
from tests.rollout_files import SHARED, ktae, write

FEW = {"permutations": 20, "resamples": 20}


def pooled(rollouts: pa.Table, **options) -> dict[int, dict]:
    """Return the rows of the table by token id."""
    found = ktae_cli.tokens(rollouts, **(FEW | options))
    assert found.schema == SCHEMA
    return {row["token_id"]: row for row in found.to_pylist()}


def test_one_group_has_the_counts_and_the_p_of_fishers_test():
    # id 7 stands in 3 of 3 right and 1 of 3 wrong rollouts, id 5 in all
    group = [([7, 5], 1.0), ([7, 5, 7], 1.0), ([5, 7], 1.0), ([5], 0.0), ([5, 7], 0.0), ([5, 5], 0.0)]
    found = pooled(table([group]), min_groups=1, length_control="off")
    seven = found[7]
    assert (seven["correct_with"], seven["incorrect_with"], seven["n_correct"], seven["n_incorrect"]) == (3, 1, 3, 3)
    assert (seven["n_groups"], seven["n_prompts"]) == (1, 1)
    assert seven["p_value"] == pytest.approx(fisher_exact([[3, 0], [1, 2]]).pvalue, abs=1e-12)
    # the law of T given the margins is 4/20, 12/20, 4/20 at 1, 2, 3: both ends are as likely
    assert seven["p_value"] == pytest.approx(0.4)
    assert seven["p_mid"] == pytest.approx(0.2)
    assert seven["odds_ratio"] == float("inf")
    assert found[5]["p_value"] is None and found[5]["n_groups"] == 0


def test_only_mixed_groups_and_known_verdicts_count():
    mixed = [([1], 1.0), ([2], 0.0)]
    unknown = [([1, 9], float("nan")), ([1], 1.0), ([2], 0.0)]
    all_right = [([9], 1.0), ([9], 1.0)]
    found = pooled(table([mixed, unknown, all_right]), min_groups=1, length_control="off", on_error="skip")
    assert set(found) == {1, 2}
    assert (found[1]["correct_with"], found[1]["incorrect_with"], found[1]["n_groups"]) == (2, 0, 2)


def test_parts_of_a_trajectory_are_one_rollout():
    parts = table([[([1], 1.0), ([2], 1.0), ([3], 0.0)]], rollout_id=["a", "a", "b"])
    found = pooled(parts, min_groups=1, length_control="off")
    assert {token: (row["correct_with"], row["n_correct"]) for token, row in found.items()} == {
        1: (1, 1), 2: (1, 1), 3: (0, 1),
    }  # fmt: skip


def test_masked_tokens_hold_no_unit():
    rollouts = table([[([1, 8], 1.0), ([2, 8], 0.0)]], response_mask=[[True, False], [True, False]])
    assert set(pooled(rollouts, min_groups=1, length_control="off")) == {1, 2}


@pytest.fixture(scope="module")
def noise() -> pa.Table:
    return planted(40, 5, right=0.7, wrong=0.3)


def test_every_unit_equals_statsmodels(noise):
    found = pooled(noise, length_control="off", min_groups=5)
    groups = {}
    for name, ids, reward in zip(*(noise[c].to_pylist() for c in ("group_id", "response_ids", "reward")), strict=True):
        groups.setdefault(name, []).append((set(ids), reward > 0))
    compared = 0
    for token, row in found.items():
        cells = []
        for rollouts in groups.values():
            with_, without = (
                [sum(t == right for h, t in rollouts if (token in h) == holds) for right in (True, False)]
                for holds in (True, False)
            )
            cells.append(np.array([with_, without]))
        varying = [c for c in cells if c.sum(1).all() and c.sum(0).all()]
        assert row["n_groups"] == len(varying)
        if row["p_value"] is None:
            continue
        oracle = StratifiedTable([c.astype(float) for c in varying])
        assert row["odds_ratio"] == pytest.approx(oracle.oddsratio_pooled, rel=1e-8)
        low, high = oracle.oddsratio_pooled_confint()
        assert (row["ci_low"], row["ci_high"]) == (pytest.approx(low, rel=1e-8), pytest.approx(high, rel=1e-8))
        compared += 1
    assert compared > 40


def test_q_values_are_scipys_over_the_family(noise):
    found = [row for row in pooled(noise, min_groups=5).values() if row["p_value"] is not None]
    for p, q in (("p_value", "q_value"), ("p_given_length", "q_given_length")):
        expected = false_discovery_control([row[p] for row in found])
        np.testing.assert_allclose([row[q] for row in found], expected)


def test_a_planted_unit_is_found_and_nothing_else():
    report = ktae_cli.tokens(planted(140, 1), permutations=200, resamples=200)
    rows = [row for row in report.to_pylist() if row["q_given_length"] is not None and row["q_given_length"] <= 0.05]
    assert [row["token_id"] for row in rows] == [1]
    assert rows[0]["p_fwer"] == pytest.approx(1 / 201)
    assert rows[0]["sign_stability"] == 1 and rows[0]["rank_low"] == 1
    assert rows[0]["mean_key_weight"] > 0


def test_shuffled_rows_give_the_same_table(noise):
    order = np.random.default_rng(0).permutation(noise.num_rows)
    first, second = pooled(noise), pooled(noise.take(pa.array(order)))
    exact = ("n_groups", "n_prompts", "correct_with", "incorrect_with", "odds_ratio", "q_value")
    for token, row in first.items():
        assert [row[name] for name in exact] == [second[token][name] for name in exact]
        if row["p_given_length"] is not None:
            assert row["p_given_length"] == pytest.approx(second[token]["p_given_length"], rel=1e-9)


def test_length_alone_leaves_nothing_beyond_it():
    # wrong rollouts are longer, and the longer hold more of every id
    random = np.random.default_rng(3)
    groups = []
    for _ in range(80):
        lengths = np.exp(random.normal(3, 0.7, 8))
        chance = 1 / (1 + np.exp(2.5 * (np.log(lengths) - 3)))
        verdicts = random.random(8) < chance
        if 0 < verdicts.sum() < 8:
            rollouts = zip(lengths.tolist(), verdicts.tolist(), strict=True)
            groups.append([(random.integers(0, 80, int(n) + 1).tolist(), float(v)) for n, v in rollouts])
    rows = pooled(table(groups)).values()
    at_all = sum(row["q_value"] is not None and row["q_value"] <= 0.05 for row in rows)
    beyond = sum(row["q_given_length"] is not None and row["q_given_length"] <= 0.05 for row in rows)
    assert at_all > 40
    assert beyond <= 1


def test_prefix_control_looks_at_what_all_rollouts_of_a_group_have():
    # id 9 stands behind the length of the shortest rollout, so it can tell nothing there
    groups = [[([1, 9], 1.0), ([1, 9], 1.0), ([2], 0.0), ([2, 3], 0.0)] for _ in range(8)]
    found = pooled(table(groups), length_control="prefix")
    assert found[9]["p_value"] < 1e-4 and found[9]["p_given_length"] == 1
    assert found[1]["p_given_length"] == found[1]["p_value"] < 1e-4


def test_a_real_outcome_is_tested_by_its_score():
    random = np.random.default_rng(4)
    groups = []
    for _ in range(60):
        group = []
        for _ in range(6):
            holds = random.random() < 0.5
            group.append(([1, 2] if holds else [2, 3], float(random.normal(0.6 * holds))))
        groups.append(group)
    found = pooled(table(groups), outcome="reward", correct_threshold=0.0)
    assert found[1]["q_given_length"] < 1e-3 and found[1]["odds_ratio"] is None
    # one group by hand: S = sum (r - mean) x, Var = s^2 k (n - k) / n
    rewards, holds = np.array([3.0, 1.0, 2.0, 0.5]), np.array([1, 1, 0, 0])
    one = table([[([1] if h else [2], r) for r, h in zip(rewards.tolist(), holds.tolist(), strict=True)]])
    score, variance = (rewards - rewards.mean()) @ holds, rewards.var(ddof=1) * 2 * 2 / 4
    from scipy.stats import norm

    found = pooled(one, outcome="reward", min_groups=1, length_control="off")
    assert found[1]["p_value"] == pytest.approx(2 * norm.sf(abs(score) / np.sqrt(variance)))


def test_an_outcome_of_two_values_is_tested_like_a_verdict(noise):
    parts = pa.array([{"tests": 2.0 * reward} for reward in noise["reward"].to_pylist()])
    found = pooled(noise.append_column("rewards", parts), outcome="tests")
    expected = pooled(noise)
    assert {t: row["p_value"] for t, row in found.items()} == {t: row["p_value"] for t, row in expected.items()}


def test_verdict_noise_counts_what_stays(tmp_path):
    rollouts = planted(140, 1)
    correct = pa.array([bool(r) if i % 40 else None for i, r in enumerate(rollouts["reward"].to_pylist())])
    path = write(tmp_path / "a.parquet", rollouts.append_column("correct", correct))
    report = ktae_cli.tokens(path, verdict_noise=True, **FEW)
    doubts = {entry["doubt"]: entry for entry in report["verdict_noise"]}
    assert set(doubts) == {"unknown right", "unknown wrong"}
    assert all(entry["verdicts"] == 28 and entry["robust"] for entry in doubts.values())


def test_what_is_written_after_the_outcome_vanishes():
    # "Answer: 4" or "Answer: 5" settles it, and what follows only tells which
    def response(reward):
        return ["so", " we", " add", "\n", "Answer", ":", f" {4 if reward else 5}", " done" if reward else " hm"]

    groups = [[1.0, 1.0, 0.0, 0.0]] * 10
    texts = [response(reward) for group in groups for reward in group]
    vocabulary = {text: i for i, text in enumerate(sorted({t for row in texts for t in row}))}
    ids = [[[vocabulary[t] for t in response(r)] for r in group] for group in groups]
    rollouts = table([list(zip(i, g, strict=True)) for i, g in zip(ids, groups, strict=True)], response_tokens=texts)
    whole, before = pooled(rollouts, length_control="off"), pooled(rollouts, length_control="off", before="outcome")
    assert whole[vocabulary[" hm"]]["q_value"] < 1e-6
    assert set(before) == {vocabulary[t] for t in ("so", " we", " add", "\n")}


def test_units_can_be_words_and_ngrams_at_places():
    texts = ["go", " on", ".", " No", ".", " go"], ["go", ".", " on", " on"]
    vocabulary = {text: i for i, text in enumerate(sorted({t for row in texts for t in row}))}
    ids = [[vocabulary[t] for t in row] for row in texts]
    rollouts = table([[(ids[0], 1.0), (ids[1], 0.0)]], response_tokens=list(texts))
    words = ktae_cli.tokens(rollouts, unit="word", min_groups=1, length_control="off", **FEW)
    assert set(words["unit"].to_pylist()) == {"go", "on", "No", "."}
    assert words["token_id"].null_count == len(words)
    placed = ktae_cli.tokens(rollouts, unit="word", within="sentence", min_groups=1, length_control="off", **FEW)
    assert {"go @ sentence 1", "No @ sentence 2"} <= set(placed["unit"].to_pylist())
    grams = ktae_cli.tokens(rollouts, unit="ngram:2..3", min_groups=1, length_control="off", **FEW)
    # all n-grams of a rollout occur in it alone: they are one event, and the longest stands for it
    assert sorted(grams["correct_with"].to_pylist()) == [0, 1]
    assert all(len(text.replace("·", " ").split(" ")) >= 2 for text in grams["unit"].to_pylist())


@pytest.mark.parametrize(
    ("name", "tested", "at_all"), [("rg_llama3b_amc_aime_50x", 1254, 12), ("gsm8k_openai_4x", 581, 17)]
)
def test_real_rollouts_have_the_known_survivors(name, tested, at_all):
    path = SHARED / "data" / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    report = ktae_cli.tokens(path, **FEW)
    assert (report["tested"], report["survive_at_all"]) == (tested, at_all)
    assert 0 < report["survive_beyond_length"] <= 20
    assert not report["length_separates"]


def test_shuffled_verdicts_leave_no_survivor_on_real_rollouts():
    path = SHARED / "data" / "gsm8k_openai_4x.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    rollouts = pq.read_table(path, columns=["prompt_id", "prompt", "response_ids", "reward"])
    group = np.unique(rollouts["prompt_id"].to_pylist(), return_inverse=True)[1]
    order = np.lexsort((np.random.default_rng(11).random(len(group)), group))
    reward = np.empty(len(group), np.float32)
    reward[np.argsort(group, kind="stable")] = rollouts["reward"].to_numpy()[order]
    shuffled = rollouts.set_column(3, "reward", pa.array(reward))
    found = ktae_cli.tokens(shuffled, **FEW)
    assert pc.min(found["q_value"]).as_py() > 0.05 and pc.min(found["q_given_length"]).as_py() > 0.05


def test_the_command_writes_the_table_and_says_the_verdict_first(tmp_path, capsys):
    path, output = write(tmp_path / "in.parquet", planted(140, 1)), tmp_path / "tokens.parquet"
    assert ktae("tokens", path, "-o", output, "--permutations", 50, "--resamples", 50) == 0
    assert capsys.readouterr().out.splitlines()[0] == "1 of 59 tokens survives at 5 %, beyond length."
    assert pq.read_schema(output).remove_metadata() == SCHEMA
    metadata = json.loads(pq.read_metadata(output).metadata[b"ktae"])
    assert metadata["tokens"]["law"] == "given-length" and str(tmp_path) not in json.dumps(metadata)
    before = output.read_bytes()
    assert ktae("tokens", path, "-o", output, "--permutations", 50, "--resamples", 50, "--force", "-q") == 0
    assert output.read_bytes() == before
    capsys.readouterr()
    assert ktae("tokens", path, "--json", "-q", "--permutations", 50, "--resamples", 50) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["survive_beyond_length"] == 1 and report["strongest"][0]["token_id"] == 1


def test_noise_says_that_nothing_survives_and_what_it_would_take(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", planted(30, 2, right=0.5, wrong=0.5))
    assert ktae("tokens", path, "--permutations", 20, "--resamples", 20) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("None of 59 tokens survives at 5 %, beyond length.")
    assert "prompts" in said.partition("rollouts of")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--unit", "tokne"], "--unit"),
        (["--within", "first:0"], "--within"),
        (["--before", "12"], "--before"),
        (["--level", "1.5"], "--level takes a number between 0 and 1"),
        (["--outcome", "speed"], "has no named rewards"),
        (["--outcome", "reward", "--length-control", "prefix"], "--length-control prefix is for the verdict"),
        (["-o", "-"], "tokens writes a Parquet file"),
        (["--unit", "word"], "needs the text of tokens"),
        (["-e", "grpo"], "key weight"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, capsys, options, message):
    path = write(tmp_path / "in.parquet", planted(6, 0))
    assert ktae("tokens", path, *options) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


def test_groups_of_one_verdict_are_one_line(tmp_path, capsys):
    path = write(tmp_path / "in.parquet", table([[([1], 1.0), ([2], 1.0)]]))
    assert ktae("tokens", path) == 2
    assert "no group holds rollouts of different correct" in capsys.readouterr().err
