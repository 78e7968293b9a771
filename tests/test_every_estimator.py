"""Every estimator through files: one partition, many, shuffled rows and single steps give the same bits."""

import numpy as np
import pyarrow as pa
import pytest

from ktae_cli.batch import TOKEN_COLUMNS
from ktae_cli.catalogue import names, pools_over_prompts, pools_over_steps, resolve_spec
from tests.rollout_files import score

SPECS = [
    *names("estimators"), "ktae(aggregation=token_mean,base=dapo)", "ktae(base=reinforce_plus_plus,loo=true)",
    "grpo(aggregation=seq_mean_token_mean)", "gspo(aggregation=dr_grpo)", "reinforce_plus_plus(gamma=0.9)",
    "entropy_top(base=grpo,rho=0.5)", "gdpo(weights=1+0.5)", "ktae(base=gdpo)",
    "ktae(gate=1,loo=true)", "ktae(length=off,size=pooled)", "ktae(base=gpg,shrink=eb)",
    "ktae(before=6,cap=0.5,center=rollout,shrink=eb)", "ktae(before=outcome)",
]  # fmt: skip
ASKED = [argument for spec in SPECS for argument in ("-e", spec)]


def draw(seed: int) -> pa.Table:
    """Draw 4 steps of groups with masks, unknown rewards and verdicts, empty responses and every column."""
    random = np.random.default_rng(seed)
    rows = []
    for step in range(4):
        for group in range(5):
            for place in range(int(random.integers(1, 7))):
                n = int(random.integers(0, 14))
                right = bool(random.random() < 0.5)
                reward = None if random.random() < 0.05 else float(right + random.choice([0, 0.1]))
                columns = {name: random.uniform(0.1, 1, n).astype(np.float32) for name in TOKEN_COLUMNS}
                columns = {name: -values if "log" in name else values for name, values in columns.items()}
                rows.append(
                    {
                        "group_id": f"{step}-{group}",
                        "rollout_id": f"{step}-{group}-{place}",
                        "step": step,
                        "response_ids": random.integers(0, 9, n).tolist(),
                        "response_mask": (random.random(n) < 0.8).tolist(),
                        "response_tokens": random.choice(["a", " b", ".", "\n", ","], n).tolist(),
                        "reward": reward,
                        "correct": None if random.random() < 0.1 else right,
                        "rewards": {"exact": float(right), "format": float(random.choice([0, 0.5, 1]))},
                        **{name: values.tolist() for name, values in columns.items()},
                    }
                )
    return pa.Table.from_pylist(rows)


@pytest.fixture(scope="module")
def rollouts() -> pa.Table:
    return draw(0)


@pytest.fixture(scope="module")
def whole(rollouts, tmp_path_factory) -> pa.Table:
    return score(tmp_path_factory.mktemp("whole"), rollouts, *ASKED)


def ours(rollouts: pa.Table, scored: pa.Table) -> list[str]:
    return [name for name in scored.column_names if name not in rollouts.column_names]


def test_every_result_column_holds_one_value_a_token_or_null(rollouts, whole):
    lengths = [len(ids) for ids in rollouts["response_ids"].to_pylist()]
    unscored = [reward is None for reward in rollouts["reward"].to_pylist()]
    assert len(ours(rollouts, whole)) > 60
    for spec in filter(pools_over_prompts, map(resolve_spec, SPECS)):
        assert np.count_nonzero(whole[f"key_weight_{spec.slug}"].combine_chunks().flatten()), spec
    for name in ours(rollouts, whole):
        values = whole[name].to_pylist()
        assert [row is None for row in values] == unscored, name
        assert all(row is None or len(row) == n for row, n in zip(values, lengths, strict=True)), name


@pytest.mark.parametrize("tokens", [1, 64])
def test_partitions_change_no_bit(rollouts, whole, tokens, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("ktae_cli.runners.local", fromlist=["local"]).CHUNK_TOKENS, "cpu", tokens)
    cut = score(tmp_path, rollouts, *ASKED)
    assert [name for name in ours(rollouts, whole) if not cut[name].equals(whole[name])] == []


def test_shuffled_rows_change_no_bit(rollouts, whole, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("ktae_cli.runners.local", fromlist=["local"]).CHUNK_TOKENS, "cpu", 64)
    monkeypatch.setattr("ktae_cli.partition.BUCKET_BYTES", 1 << 12)
    order = np.random.default_rng(1).permutation(len(rollouts))
    shuffled = score(tmp_path, rollouts.take(order), *ASKED)
    expected = whole.take(order)
    assert [
        n for n in ours(rollouts, whole) if not shuffled[n].combine_chunks().equals(expected[n].combine_chunks())
    ] == []


@pytest.mark.parametrize("step", [0, 3])
def test_a_step_alone_is_scored_as_beside_the_others(rollouts, whole, step, tmp_path):
    chosen = pa.compute.equal(rollouts["step"], step)
    alone, expected = score(tmp_path, rollouts.filter(chosen), *ASKED), whole.filter(chosen)
    differ = {n for n in ours(rollouts, whole) if not alone[n].combine_chunks().equals(expected[n].combine_chunks())}
    of_all_prompts = [resolve_spec(spec).slug for spec in SPECS if pools_over_prompts(resolve_spec(spec))]
    assert differ
    assert differ <= {f"{column}_{slug}" for slug in of_all_prompts for column in ("adv", "key_weight")}


def test_steps_matter_to_what_pools_over_a_batch_and_to_nothing_else(rollouts, whole, tmp_path):
    merged = score(tmp_path, rollouts.drop_columns("step"), *ASKED)
    for spec in SPECS:
        name = f"adv_{resolve_spec(spec).slug}"
        if "aggregation" in spec:
            name = name.replace("adv_", "loss_weight_")
        assert merged[name].equals(whole[name]) != pools_over_steps(resolve_spec(spec)), spec
