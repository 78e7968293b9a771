"""Estimators: the laws that each must pass, literal vectors, and slow versions of KTAE."""

import math
import re
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli import catalogue
from ktae_cli.batch import TOKEN_COLUMNS, GroupBatch
from ktae_cli.catalogue import declaration, needs, resolve_spec
from ktae_cli.errors import KtaeError, MissingColumnError, PrerequisiteError
from ktae_cli.estimators.base import BATCH_FIELDS, check_needs, estimate, rollout_advantages
from ktae_cli.estimators.dapo import shaped_rewards
from ktae_cli.schema import STAND_INS
from ktae_cli.stats.released_float32 import float32_cells
from tests.helpers import SHARED, batch_of, cut, draw_groups, rewarded, rollout

VARIANTS = [
    "ktae(loo=true)",
    "ktae(tf=bounded)",
    "ktae(tf=off)",
    "ktae(base=dr_grpo)",
    "ktae(fisher=point,zero_ids=2)",
    "ktae(base=dapo(buffer_length=6,max_length=9),loo=true)",
    "ktae_paper(loo=true)",
    "ktae_reference(tf=off)",
    "grpo(singleton=raw)",
    "dapo(buffer_length=6,max_length=9)",
    "dapo(buffer_length=4,filter=false,floor=false,max_length=4)",
    "grpo(aggregation=token_mean)",
    "dapo(aggregation=seq_mean_token_mean)",
    "ktae(aggregation=seq_mean_token_sum,base=dapo)",
    "ktae(aggregation=dr_grpo)",
    "ktae(base=reinforce_plus_plus)",
    "ktae(base=grpo_s)",
    "ktae(cap=0.5,center=rollout)",
    "ktae(before=5,loo=true)",
    "ktae(before=outcome)",
    "gtpo_conflict(filter=true,penalty=0.1,rule=product,threshold=0.7)",
    "gtpo_entropy(normalise=false)",
    "s_grpo(alpha=1,p=0.5)",
    "entropy_top(base=grpo)",
    "tepo(link=prefix)",
    "tepo(link=prefix_mean,reference=ref)",
    "sspo(bounds=entropy)",
    "sspo(delimiters=none,ids=2)",
    "dhpo(mix=entropy)",
    "gmpo(clip=sequence)",
    "cispo(cap=absolute)",
]
SPECS = [*catalogue.names("estimators"), *VARIANTS]
WEIGHTED = [s for s in SPECS if "key_weight" in declaration("estimators", resolve_spec(s).name).columns]
OF_VERDICTS = [s for s in WEIGHTED if not s.startswith("ktae_reference")]
# These keep the raw reward of a group of one; every other spec gives 0 where a group has no contrast.
RAW_SINGLETON = {"ktae_reference", "ktae_reference(tf=off)", "grpo(singleton=raw)"}
SEEDS = range(4)
# What credits a token; the others (ratios, masks, loss weights) say something where there is nothing to credit.
CREDIT = {"advantages", "key_weight", "grad_weight"}
# Widths of the float32 columns that an estimator may not meet bit for bit when rows move; it states its own.
TOLERANCE: dict[str, float] = {}

EVERYTHING = (*TOKEN_COLUMNS, "rewards", "response_tokens", "response")
V1 = [
    rollout([5, 7, 9], 1), rollout([5, 7, 8], 1), rollout([5, 6, 9], 0), rollout([5, 6, 6, 9], 0),
]  # fmt: skip
V2 = [
    rollout([1, 2, 3, 4], 1), rollout([1, 2, 2, 4], 1), rollout([1, 3, 3, 4], 1),
    rollout([1, 2, 3, 3], 0), rollout([1, 3, 4, 4], 0), rollout([1, 2, 4, 4], 0),
]  # fmt: skip
B = [rewarded([1, 0, 0, 0], [2, 4, 3, 1]), rewarded([1, 1], [1, 2])]


def full(groups, **fields) -> GroupBatch:
    """Build the batch with every token column."""
    return batch_of(groups, EVERYTHING, **fields)


def results(spec, batch) -> dict[str, torch.Tensor]:
    """Return every column of an estimate by name."""
    found = estimate(spec, batch)
    return {"advantages": found.advantages, **found.columns}


def credit(spec, batch) -> dict[str, torch.Tensor]:
    """Return the columns that credit tokens."""
    return {name: values for name, values in results(spec, batch).items() if name in CREDIT}


def token_table(spec, batch) -> dict[str, torch.Tensor]:
    return estimate(spec, batch).tokens()


def weights_by_id(spec, rollouts, **fields) -> dict[int, float]:
    """Return the key weight of each token id of one group."""
    found = token_table(spec, batch_of([rollouts], **fields))
    return dict(zip(found["token_id"].tolist(), found["key_weight"].tolist(), strict=True))


def per_rollout(spec, groups, **fields) -> list[float]:
    return rollout_advantages(spec, batch_of(groups, **fields)).tolist()


def assert_same(spec, found, expected):
    tolerance = TOLERANCE.get(resolve_spec(spec).name, 0)
    assert torch.allclose(found, expected, rtol=0, atol=tolerance) if tolerance else torch.equal(found, expected)


# The laws, for every estimator of the folder


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_finite_float32_per_token_and_zero_off_the_mask(spec, seed):
    batch = full(draw_groups(seed))
    found = results(spec, batch)
    assert set(found) == {"advantages", *catalogue.columns(resolve_spec(spec))}
    for name, values in found.items():
        assert values.shape == batch.token_ids.shape, name
        assert values.dtype == (torch.bool if "mask" in name else torch.float32), name
        assert torch.isfinite(values).all(), name
        assert (values[~batch.response_mask] == 0).all(), name
    assert found["advantages"].count_nonzero() > 0


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", SEEDS)
def test_groups_of_two_steps_are_scored_as_if_alone(spec, seed):
    groups = draw_groups(seed)
    together = results(spec, full(groups))
    for g, group in enumerate(groups):
        for name, values in results(spec, full([group])).items():
            assert_same(spec, values, torch.cat(cut(together[name], groups)[g]))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", SEEDS)
def test_reordered_rollouts_keep_their_results(spec, seed):
    groups = draw_groups(seed)
    random = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(group), generator=random).tolist() for group in groups]
    moved = [[group[i] for i in order] for group, order in zip(groups, orders, strict=True)]
    expected = results(spec, full(groups))
    for name, values in results(spec, full(moved)).items():
        before, after = cut(expected[name], groups), cut(values, moved)
        for g, order in enumerate(orders):
            for place, i in enumerate(order):
                assert_same(spec, after[g][place], before[g][i])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("reward", [0.7, 0.1, 0.0, -1.0])
def test_equal_rewards_give_no_advantage(spec, reward):
    # the means of three times 0.7 and of ten times 0.1 are rounded
    for size in (3, 10):
        group = [rollout([1, 2, i], reward, seed=i) for i in range(size)]
        assert all((values == 0).all() for values in credit(spec, full([group])).values())


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("reward", [0.7, 0.0, -2.0])
def test_a_group_of_one_gives_the_documented_value(spec, reward):
    found = credit(spec, full([[rollout([1, 2, 1], reward)]]))
    expected = reward / (1 + 1e-6) if spec in RAW_SINGLETON else 0.0
    assert found.pop("advantages").tolist() == pytest.approx([expected] * 3, rel=1e-7)
    assert all((values == 0).all() for values in found.values())


@pytest.mark.parametrize("spec", SPECS)
def test_batches_without_tokens_or_rollouts_give_empty_results(spec):
    for groups in ([], [[rollout([], 1)]], [[rollout([], 1), rollout([], 0)], [rollout([], 0)]]):
        assert all(values.shape == (0,) for values in results(spec, full(groups)).values())


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not re.search("max_length|=dr_grpo", spec)])
def test_an_empty_and_a_wholly_masked_response_are_scored_alike(spec):
    def with_last(last):
        return [rollout([1, 2], 1.2, seed=1), rollout([1], 0, seed=2), rollout([3, 2], 0.5, seed=3), last]

    empty = results(spec, full([with_last(rollout([], 1, seed=4))]))
    masked = results(spec, full([with_last(rollout([1, 2, 3], 1, mask=[False] * 3, seed=4))]))
    for name, values in empty.items():
        assert torch.equal(masked[name], torch.cat([values, torch.zeros(3, dtype=values.dtype)])), name
    assert empty["advantages"].count_nonzero() > 0


@pytest.mark.parametrize("spec", SPECS)
def test_results_are_the_same_every_time(spec):
    groups = draw_groups(1)
    batch = full(groups)
    first = results(spec, batch)
    for again in (results(spec, batch), results(spec, full(groups))):
        assert all(torch.equal(again[name], values) for name, values in first.items())


@pytest.mark.parametrize("spec", SPECS)
def test_the_order_of_the_estimators_of_one_call_changes_nothing(spec):
    batch = full(draw_groups(2))
    for other in SPECS:
        estimate(other, batch)
    alone = results(spec, full(draw_groups(2)))
    assert all(torch.equal(alone[name], values) for name, values in results(spec, batch).items())


@pytest.mark.parametrize("spec", SPECS)
def test_a_missing_need_is_named(spec):
    wanted = needs(resolve_spec(spec))
    everything = {"response_ids", "reward", *EVERYTHING}
    assert wanted
    check_needs(resolve_spec(spec), everything)
    for name in wanted:
        absent = {name, STAND_INS.get(name)} - {None}
        with pytest.raises(MissingColumnError, match=f"{re.escape(spec)} needs {name}, which the input does not have"):
            check_needs(resolve_spec(spec), everything - absent)
        if name in EVERYTHING:
            fields = {BATCH_FIELDS.get(column, column): None for column in absent}
            with pytest.raises(MissingColumnError, match=name):
                estimate(spec, replace(full(draw_groups(0)), **fields))


@pytest.mark.parametrize("spec", SPECS)
def test_columns_that_are_not_needed_change_nothing(spec):
    groups = draw_groups(3)
    lean = batch_of(groups, [name for name in needs(resolve_spec(spec)) if name in EVERYTHING])
    expected = results(spec, lean)
    assert all(torch.equal(expected[name], values) for name, values in results(spec, full(groups)).items())


@pytest.mark.parametrize("spec", SPECS)
def test_the_batch_is_not_modified(spec):
    batch = full(draw_groups(0))
    tensors = [f.name for f in fields(batch) if isinstance(getattr(batch, f.name), torch.Tensor)]
    before = {name: getattr(batch, name).clone() for name in tensors}
    for values in results(spec, batch).values():
        values.fill_(77)
    assert all(torch.equal(getattr(batch, name), before[name]) for name in tensors)
    assert {"token_ids", "rewards", "correct", "response_mask", "old_entropy"} <= set(tensors)


@pytest.mark.parametrize("spec", SPECS)
def test_a_batch_without_a_mask_is_wholly_unmasked(spec):
    groups = [[replace(row, mask=(True,) * len(row.ids)) for row in group] for group in draw_groups(1)]
    expected = results(spec, full(groups))
    found = results(spec, replace(full(groups), response_mask=None))
    assert all(torch.equal(found[name], values) for name, values in expected.items())


@pytest.mark.parametrize("spec", SPECS)
def test_ids_of_32_bits_are_ids_of_64_bits(spec):
    batch = full(draw_groups(1))
    found = results(spec, replace(batch, token_ids=batch.token_ids.int(), memo={}))
    assert all(torch.equal(found[name], values) for name, values in results(spec, batch).items())


@pytest.mark.parametrize("spec", [s for s in SPECS if not s.startswith("ktae_reference")])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_cpu_gives(spec):
    groups = draw_groups(0, n_groups=30)
    for name, values in results(spec, full(groups, device="cuda")).items():
        expected = results(spec, full(groups))[name]
        assert torch.allclose(values.cpu().float(), expected.float(), rtol=0, atol=1e-5), name


@pytest.mark.parametrize("spec", OF_VERDICTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_swapped_verdicts_negate_the_key_weights(spec, seed):
    groups = draw_groups(seed)
    swapped = [[replace(row, correct=1 - row.correct if row.correct >= 0 else -1) for row in g] for g in groups]
    found, expected = (results(spec, full(g))["key_weight"] for g in (swapped, groups))
    assert torch.equal(found, -expected)
    assert expected.count_nonzero() > 0


# A cap looks at the base, which the reward of every rollout moves.
@pytest.mark.parametrize("spec", [spec for spec in OF_VERDICTS if "cap" not in spec])
def test_a_rollout_of_unknown_verdict_keeps_its_base_and_stays_out_of_the_counts(spec):
    known = [rollout([1, 2], 1), rollout([1, 3], 0), rollout([2, 2], 1), rollout([3, 4], 0)]
    groups = [[*known[:1], rollout([1, 2, 4, 9], 0.5, -1), *known[1:]]]
    batch = full(groups)
    found, [rows] = results(spec, batch), cut(results(spec, batch)["key_weight"], groups)
    base = batch.spread(rollout_advantages(dict(resolve_spec(spec).arguments).get("base", "grpo"), batch))
    assert (rows.pop(1) == 0).all()
    assert torch.equal(cut(found["advantages"], groups)[0][1], cut(base, groups)[0][1])
    assert torch.equal(torch.cat(rows), results(spec, full([known]))["key_weight"])
    assert torch.cat(rows).count_nonzero() > 0


def test_the_reference_takes_right_and_wrong_from_the_reward():
    groups = draw_groups(0)
    blind = [[replace(row, correct=-1) for row in group] for group in groups]
    found = results("ktae_reference", full(blind))
    assert found["key_weight"].count_nonzero() > 0
    assert torch.equal(found["key_weight"], results("ktae_reference", full(groups))["key_weight"])


# Rollout-level estimators


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("grpo", [1.499997, -0.499999, -0.499999, -0.499999, 0, 0]),
        ("grpo(eps=1e-4)", [1.4997, -0.4999, -0.4999, -0.4999, 0, 0]),
        ("grpo(eps=0,ddof=0)", [1.732051, -0.577350, -0.577350, -0.577350, 0, 0]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25, 0, 0]),
        ("dapo", [1.499997, -0.499999, -0.499999, -0.499999, 0, 0]),
        ("rloo", [1, -1 / 3, -1 / 3, -1 / 3, 0, 0]),
    ],
)
def test_advantages_of_the_published_vector(spec, expected):
    assert per_rollout(spec, B) == pytest.approx(expected, abs=6e-7 if "e-4" not in spec else 5e-5)
    advantages = estimate(spec, batch_of(B)).advantages
    lengths = [2, 4, 3, 1, 1, 2]
    spread = [advantage for advantage, n in zip(expected, lengths, strict=True) for _ in range(n)]
    assert advantages.tolist() == pytest.approx(spread, abs=5e-5)


def test_an_advantage_without_eps_is_finite_where_the_rewards_are_equal():
    assert per_rollout("grpo(eps=0)", [rewarded([0.7] * 3), rewarded([1]), rewarded([1, 3])]) == pytest.approx(
        [0, 0, 0, 0, -math.sqrt(0.5), math.sqrt(0.5)]
    )


@pytest.mark.parametrize("spec", ["grpo(ddof=2)", "grpo(ddof=-1)", "grpo(eps=-0.1)", "dapo(ddof=2)"])
def test_impossible_normalisers_are_refused(spec):
    with pytest.raises(KtaeError, match="ddof is 0 or 1, and eps is not negative"):
        per_rollout(spec, B)


def test_rloo_subtracts_the_mean_of_the_others():
    rewards = [0.3, 0.9, 0.0, 0.4, 1.0]
    expected = [r - (sum(rewards) - r) / 4 for r in rewards]
    assert per_rollout("rloo", [rewarded(rewards), rewarded([0.2, 0.6])]) == pytest.approx([*expected, -0.4, 0.4])


@pytest.mark.parametrize(
    ("length", "floor", "penalty"),
    [(16384, True, 0), (18432, True, -0.5), (20480, True, -1), (30720, True, -1), (30720, False, -3.5), (5, False, 0)],
)
def test_overlong_penalty_of_dapo(length, floor, penalty):
    batch = batch_of([[rollout(range(length), 1), rollout([1], 0.25)]])
    shaped = shaped_rewards(batch, 20480, 4096, floor=floor)
    assert shaped.tolist() == pytest.approx([1 + penalty, 0.25])
    assert shaped_rewards(batch, 20480, 4096, 0.5, floor).tolist() == pytest.approx([1 + penalty / 2, 0.25])


def test_overlong_penalty_counts_masked_tokens():
    batch = batch_of([[rollout(range(10), 1, mask=[False] * 9 + [True]), rollout([1], 0)]])
    assert shaped_rewards(batch, 10, 4).tolist() == [0, 0]


def test_dapo_shapes_nothing_by_default():
    assert per_rollout("dapo", [[rollout(range(30000), 1), rollout([1], 0)]]) == pytest.approx([0.707106, -0.707106])


def test_dapo_standardises_the_shaped_rewards():
    groups = [[rollout(range(8), 1), rollout([1], 1), rollout([1], 0)]]
    # at 8 of 10 tokens, 6 of them free, half of the penalty: rewards .5, 1, 0
    found = per_rollout("dapo(max_length=10,buffer_length=4)", groups)
    assert found == pytest.approx([0, 0.5 / 0.500001, -0.5 / 0.500001])


@pytest.mark.parametrize("buffer_length", [-1, 11])
def test_dapo_refuses_a_buffer_outside_its_length(buffer_length):
    with pytest.raises(KtaeError, match=f"buffer_length lies between 0 and max_length, found {buffer_length} and 10"):
        per_rollout(f"dapo(max_length=10,buffer_length={buffer_length})", B)


def test_dapo_takes_a_fifth_of_the_length_as_its_buffer():
    groups = [[rollout(range(9), 1), rollout([1], 1), rollout([1], 0)]]
    # at 9 of 10 tokens, 8 of them free, half of the penalty: rewards .5, 1, 0
    assert per_rollout("dapo(max_length=10)", groups) == pytest.approx([0, 0.5 / 0.500001, -0.5 / 0.500001])


def test_dapo_keeps_groups_of_both_verdicts_only():
    right = [rollout([1], 1.0, 1), rollout([2], 0.5, 1)]
    mixed = [rollout([1], 1.0, 1), rollout([2], 0.0, 0)]
    wrong = [rollout([1], 0.1, 0), rollout([2], 0.0, 0)]
    doubtful = [[*right, rollout([3], 0.0, -1)], [*mixed, rollout([3], 0.5, -1)], [*wrong, rollout([3], 0.3, -1)]]
    unknown = [rollout([1], 1.0, -1), rollout([2], 0.0, -1)]
    groups = [right, mixed, wrong, *doubtful, unknown]
    found = cut(torch.tensor(per_rollout("dapo", groups)), [[rollout([1], 1)] * len(group) for group in groups])
    assert [bool(torch.cat(group).any()) for group in found] == [False, True, False, False, True, False, True]
    found = per_rollout("dapo(filter=false)", [right, wrong])
    assert found == pytest.approx(per_rollout("grpo", [right, wrong]))
    assert all(found)


def test_dapo_without_the_filter_may_learn_from_length_alone():
    group = [rollout(range(10), 1), rollout([1], 1)]
    unknown = [replace(row, correct=-1) for row in group]
    assert per_rollout("dapo(max_length=10,buffer_length=4)", [group, unknown]) == [0, 0, 0, 0]
    found = per_rollout("dapo(max_length=10,buffer_length=4,filter=false)", [group])
    assert found == pytest.approx([-0.707106, 0.707106], abs=2e-6)


# KTAE: the worked vectors

V1_WEIGHTS = {5: 0, 6: -1, 7: 1, 8: 1, 9: -0.127098}
V1_ADVANTAGES = [
    [0.866024, 1.866024, 0.738926], [0.866024, 1.866024, 1.866024], [-0.866024, -1.866024, -0.993122],
    [-0.866024, -1.866024, -1.866024, -0.993122],
]  # fmt: skip


def test_ktae_of_the_worked_example():
    found = estimate("ktae", batch_of([V1])).advantages
    assert [row.tolist() for row in cut(found, [V1])[0]] == [pytest.approx(row, abs=1.1e-6) for row in V1_ADVANTAGES]
    assert weights_by_id("ktae", V1) == pytest.approx(V1_WEIGHTS, abs=1e-6)


def test_token_table_of_the_worked_example():
    found = token_table("ktae", batch_of([V1]))
    order = torch.argsort(found["token_id"])
    rows = {name: values[order].tolist() for name, values in found.items()}
    assert rows["token_id"] == [5, 6, 7, 8, 9]
    assert rows["group"] == [0] * 5
    assert rows["correct_with"] == [2, 0, 2, 1, 1]
    assert rows["incorrect_with"] == [2, 2, 0, 0, 2]
    assert rows["n_correct"] == rows["n_incorrect"] == [2] * 5
    assert rows["p_value"] == pytest.approx([1, 1 / 3, 1 / 3, 1, 1])
    assert rows["information_gain"] == pytest.approx([0, 1, 1, 0.311278, 0.311278], abs=5e-7)
    assert rows["effect"] == pytest.approx([0, -1.570796, 1.570796, 0.785398, -0.785398], abs=5e-7)
    assert rows["tf_correct"] == pytest.approx([0.443182, 0, 0.443182, 0.239264, 0.239264], abs=5e-7)
    assert rows["tf_incorrect"] == pytest.approx([0.362791, 0.513158, 0, 0, 0.362791], abs=5e-7)
    assert rows["key_weight"] == pytest.approx([0, -1, 1, 1, -0.127098], abs=5e-7)
    point = token_table("ktae(fisher=point)", batch_of([V1]))
    assert point["p_value"][order].tolist() == pytest.approx([1, 1 / 6, 1 / 6, 1 / 2, 1 / 2])


def test_ktae_gives_no_weight_to_a_p_value_of_one():
    # the float32 trap: id 2 has a table without evidence and unequal frequencies
    weights = weights_by_id("ktae", V2)
    assert weights.pop(4) == pytest.approx(0.005133, abs=5e-7)
    assert weights == {1: 0, 2: 0, 3: 0}
    first = cut(estimate("ktae", batch_of([V2])).advantages, [V2])[0][0]
    assert first.tolist() == pytest.approx([0.912869, 0.912869, 0.912869, 0.918002], abs=1.5e-6)


def test_ktae_paper_of_the_worked_examples():
    assert weights_by_id("ktae_paper", V1) == pytest.approx({5: 0, 6: -0.5, 7: 0.5, 8: 0.5, 9: -0.253108}, abs=5e-7)
    assert weights_by_id("ktae_paper", V2) == pytest.approx({1: 0, 2: 0.056391, 3: 0, 4: 0.015021}, abs=5e-7)


@cache
def released_p(a, b, n_correct, n_incorrect) -> float:
    """Return the two-sided p of the released arithmetic on this build of libm."""
    return float(float32_cells(np.array([a]), np.array([b]), n_correct, n_incorrect)[0, 0])


@pytest.mark.parametrize(
    ("rollouts", "token", "table", "gain", "direction", "exact"),
    [
        (V1, 5, (2, 2, 2, 2), 0, 0.4030, 0),
        (V1, 6, (0, 2, 2, 2), 1, -51317.36, -1),
        (V1, 7, (2, 0, 2, 2), 1, 44319.75, 1),
        (V1, 8, (1, 0, 2, 2), 0.311278, 23927.17, 1),
        (V1, 9, (1, 2, 2, 2), 0.311278, -1.6421, -0.127098),
        (V2, 2, (2, 2, 3, 3), 0, 0.7521, 0),
        (V2, 3, (2, 2, 3, 3), 0, 0, 0),
        (V2, 4, (3, 2, 3, 3), 0.190875, 0.1076, 0.005133),
    ],
)
def test_the_reference_follows_the_float32_p_of_its_build(rollouts, token, table, gain, direction, exact):
    found = weights_by_id("ktae_reference", rollouts)[token]
    p = released_p(*table)
    association = 0 if p == 1 else math.exp(-2 * p)
    assert found == pytest.approx(math.tanh((association + gain) * direction / 4), abs=2e-5)
    if p == 1 or abs(p - 1) > 0.1:
        assert found == pytest.approx(exact, abs=2e-6)
    if token == 2:
        assert found == pytest.approx(0 if p == 1 else 0.025441, abs=2e-6)


def test_the_reference_of_the_worked_example_adds_a_grpo_base():
    found = estimate("ktae_reference", batch_of([V1]))
    base = found.advantages - found.columns["key_weight"]
    signs = torch.tensor([0.866024] * 6 + [-0.866024] * 7)
    assert torch.allclose(base, signs, atol=1.1e-6)


def test_tokens_of_one_side_saturate():
    found = weights_by_id("ktae", [rollout([1, 2, 3], 1), rollout([1, 4], 0)])
    assert found == {1: pytest.approx(0), 2: 1, 3: 1, 4: -1}


@pytest.mark.parametrize("reward", [0, 1])
def test_a_group_of_one_verdict_has_no_key_weight(reward):
    group = [rollout([1, 2], reward + 0.5), rollout([1], reward + 1)]
    group = [replace(row, correct=reward) for row in group]
    found = results("ktae", batch_of([group]))
    assert found["key_weight"].tolist() == [0, 0, 0]
    assert found["advantages"].tolist() == pytest.approx([-0.707106, -0.707106, 0.707106], abs=2e-6)


def test_an_empty_response_counts_as_absence():
    found = token_table("ktae", batch_of([[rollout([1], 1), rollout([], 1), rollout([1], 0)]]))
    assert [found[name].tolist() for name in ("correct_with", "incorrect_with", "n_correct")] == [[1], [1], [2]]


# KTAE: the parameters


def test_base_scale_and_shift_scale_weigh_the_two_parts():
    batch = batch_of([V1])
    base = batch.spread(rollout_advantages("grpo", batch))
    shift = estimate("ktae", batch).columns["key_weight"]
    for base_scale, shift_scale in ((1, 0), (0, 1), (0.5, -2), (3, 0.25)):
        found = estimate(f"ktae(base_scale={base_scale},shift_scale={shift_scale})", batch)
        assert torch.allclose(found.advantages, base_scale * base + shift_scale * shift, atol=1e-6)
        assert torch.equal(found.columns["key_weight"], shift)


def test_base_takes_any_spec_of_one_advantage_per_rollout():
    batch = batch_of([V1])
    shift = estimate("ktae", batch).columns["key_weight"]
    for base in ("rloo", "dr_grpo", "dapo(max_length=4,buffer_length=2)"):
        found = estimate(f"ktae(base={base})", batch).advantages
        assert torch.allclose(found, batch.spread(rollout_advantages(base, batch)) + shift, atol=1e-6)


def test_alpha_and_beta_weigh_association_and_information():
    strong = {7: (1 / 3, 1, 44319.746), 9: (1, 0.311278, -1.642100)}
    for alpha, beta in ((1, 0), (0, 1), (2, 0.5)):
        found = weights_by_id(f"ktae(alpha={alpha},beta={beta},top=3)", V1)
        for token, (p, gain, direction) in strong.items():
            association = math.exp(-2 * p) if p < 1 else 0
            z = (alpha * association + beta * gain) * direction / (alpha + beta)
            assert found[token] == pytest.approx(3 * math.tanh(z / 2), abs=5e-5)


def test_tf_is_switched_off_or_bounded():
    off, bounded = weights_by_id("ktae(tf=off)", V1), weights_by_id("ktae(tf=bounded)", V1)
    # id 6: D = -pi/2 without frequencies, -pi with them; F = exp(-2/3), IG = 1
    strength = (math.exp(-2 / 3) + 1) / 2
    assert off[6] == pytest.approx(-math.tanh(strength * math.pi / 4))
    assert bounded[6] == pytest.approx(-math.tanh(strength * math.pi / 2))
    share = 0.239264 / (0.239264 + 0.362791)
    direction = -math.pi / 4 + math.asin(math.sqrt(share)) - math.asin(math.sqrt(1 - share))
    assert bounded[9] == pytest.approx(math.tanh(0.311278 / 2 * direction / 2), abs=1e-6)


def test_paper_gamma_multiplies_the_frequencies():
    found = weights_by_id("ktae_paper(gamma=0.5)", V1)[9]
    z = (math.exp(-1) + 0.311278) * (-0.785398 + 0.5 * (-1.642100 + 0.785398))
    assert found == pytest.approx(1 / (1 + math.exp(-z)) - 0.5, abs=2e-6)
    assert weights_by_id("ktae_paper(gamma=0)", V1) == pytest.approx(weights_by_id("ktae_paper(tf=off)", V1))


@pytest.mark.parametrize(
    "spec", ["ktae(alpha=0,beta=0)", "ktae_reference(alpha=0,beta=0)", "ktae(alpha=0,beta=0,loo=true)"]
)
def test_a_strength_without_weights_is_refused(spec):
    with pytest.raises(KtaeError, match=r"alpha \+ beta is 0"):
        estimate(spec, batch_of([V1]))


def test_the_paper_form_divides_by_nothing():
    assert set(weights_by_id("ktae_paper(alpha=0,beta=0)", V1).values()) == {0}


@pytest.mark.parametrize(
    "spec", ["ktae(alpha=-2)", "ktae(beta=-1,alpha=3)", "ktae(k1=-1)", "ktae(b=2)", "ktae(b=-0.1)", "ktae(tf_eps=0)"]
)
def test_parameters_out_of_range_are_refused(spec):
    with pytest.raises(KtaeError, match=r"must not be negative|give tf_eps > 0"):
        estimate(spec, batch_of([V1]))


@pytest.mark.parametrize("loo", ["", ",loo=true"])
def test_zero_ids_have_no_weight_and_still_count(loo):
    plain, zeroed = (results(spec, batch_of([V1])) for spec in (f"ktae(top=1{loo})", f"ktae(zero_ids=7+9+77{loo})"))
    struck = torch.isin(batch_of([V1]).token_ids, torch.tensor([7, 9]))
    assert (zeroed["key_weight"][struck] == 0).all()
    assert torch.equal(zeroed["key_weight"][~struck], plain["key_weight"][~struck])
    assert plain["key_weight"][struck].count_nonzero() > 0
    assert (zeroed["advantages"][struck].abs() - 0.866024).abs().max() < 2e-6


def test_one_zero_id_is_taken_without_a_list():
    assert weights_by_id("ktae(zero_ids=7)", V1) == pytest.approx({**V1_WEIGHTS, 7: 0}, abs=1e-6)
    assert weights_by_id("ktae(zero_ids=0)", V1) == pytest.approx(V1_WEIGHTS, abs=1e-6)


def test_zero_ids_of_the_end_of_text_come_with_the_batch():
    assert weights_by_id("ktae(zero_ids=eos)", V1, eos_ids=(9, 6)) == pytest.approx(
        {**V1_WEIGHTS, 9: 0, 6: 0}, abs=1e-6
    )
    with pytest.raises(PrerequisiteError, match="zero_ids=eos needs the end-of-text id"):
        weights_by_id("ktae(zero_ids=eos)", V1)


def test_the_reference_strikes_the_end_of_text_of_qwen():
    group = [rollout([1, 151643], 1), rollout([2, 151644], 0)]
    found = weights_by_id("ktae_reference", group)
    assert found[151643] == 0
    assert found[151644] == -1
    assert weights_by_id("ktae_reference(zero_ids=none)", group)[151643] == 1


def test_the_reference_decides_by_the_shaped_reward():
    group = [rollout(range(10), 1), rollout([1, 50], 1), rollout([2, 60], 0)]
    spec = "ktae_reference(base=dapo(max_length=10,buffer_length=4,filter=false))"
    # the overlong right answer has a shaped reward of 0: one right rollout remains
    found = token_table(spec, batch_of([group]))
    assert set(zip(found["n_correct"].tolist(), found["n_incorrect"].tolist(), strict=True)) == {(1, 2)}
    found = token_table("ktae_reference(threshold=-0.5)", batch_of([group]))
    assert found["token_id"].tolist() == [], "every reward is above the threshold"


def test_weights_stay_within_top():
    for seed in SEEDS:
        batch = full(draw_groups(seed))
        assert results("ktae(top=0.25)", batch)["key_weight"].abs().max() <= 0.25
        assert results("ktae_paper", batch)["key_weight"].abs().max() <= 0.5


# KTAE against slow versions

ROLLOUTS = st.lists(
    st.builds(
        lambda positions, correct, reward: rollout(
            [i for i, _ in positions], reward, correct, [m for _, m in positions]
        ),
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from([True, True, True, False])), max_size=7),
        st.sampled_from([1, 0, 1, 0, -1]),
        st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    ),
    min_size=1,
    max_size=7,
)


@cache
def scipy_p_values(a, b, c, d) -> tuple[float, float]:
    return scipy.stats.fisher_exact([[a, b], [c, d]]).pvalue, scipy.stats.hypergeom.pmf(a, a + b + c + d, a + b, a + c)


def entropy_of(*parts) -> float:
    return -sum(n / sum(parts) * math.log2(n / sum(parts)) for n in parts if n)


def slow_weights(rollouts, fisher="two_sided", tf="code", paper=False) -> dict[int, float]:
    """Return the key weight of each id of a group, by the formula's text."""
    sides = {1: [], 0: []}
    for row in rollouts:
        if row.correct >= 0:
            sides[row.correct].append([i for i, kept in zip(row.ids, row.mask, strict=True) if kept])
    right, wrong = sides[1], sides[0]
    if not right or not wrong:
        return {}
    joined = {side: [i for ids in rows for i in ids] for side, rows in sides.items()}

    def frequency(token, side):
        if not joined[side]:
            return 0.0
        f = joined[side].count(token) / len(joined[side])
        mean = (len(joined[0]) + len(joined[1])) / 2
        return 3 * f / (2 * (1 - 0.5 + 0.5 * len(joined[side]) / mean) + f)

    weights = {}
    for token in {*joined[0], *joined[1]}:
        a, b = sum(token in ids for ids in right), sum(token in ids for ids in wrong)
        c, d = len(right) - a, len(wrong) - b
        p = scipy_p_values(a, b, c, d)[fisher == "point"]
        association = 0 if math.isclose(p, 1, rel_tol=1e-9) else math.exp(-2 * p)
        n = a + b + c + d
        conditional = sum(sum(part) / n * entropy_of(*part) for part in ((a, b), (c, d)) if sum(part))
        gain = entropy_of(a + c, b + d) - conditional
        direction = math.asin(math.sqrt(a / (a + c))) - math.asin(math.sqrt(b / (b + d)))
        tf_correct, tf_incorrect = frequency(token, 1), frequency(token, 0)
        if tf == "code":
            direction += tf_correct / (tf_incorrect + 1e-5) - tf_incorrect / (tf_correct + 1e-5)
        elif tf == "bounded":
            share = tf_correct / (tf_correct + tf_incorrect)
            direction += math.asin(math.sqrt(share)) - math.asin(math.sqrt(1 - share))
        z = (association + gain) * direction
        weights[token] = math.tanh(z / 2) / 2 if paper else math.tanh(z / 4)
    return weights


def slow_columns(groups, weights_of) -> tuple[list[float], list[float]]:
    """Return advantages and key weights per token; `weights_of(group, place)` gives those used for a rollout."""
    advantages, shifts = [], []
    for group in groups:
        rewards = [row.reward for row in group]
        mean = math.fsum(rewards) / len(group)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / max(len(group) - 1, 1))
        for place, row in enumerate(group):
            credited = row.correct >= 0 and min(rewards) < max(rewards)
            weights = weights_of(group, place) if credited else {}
            for token, kept in zip(row.ids, row.mask, strict=True):
                shifts.append(weights.get(token, 0.0) if kept else 0.0)
                advantages.append(((row.reward - mean) / (std + 1e-6) if kept else 0.0) + shifts[-1])
    return advantages, shifts


def assert_slow(spec, groups, weights_of):
    found = results(spec, batch_of(groups))
    advantages, shifts = slow_columns(groups, weights_of)
    assert found["key_weight"].tolist() == pytest.approx(shifts, abs=1e-6)
    assert found["advantages"].tolist() == pytest.approx(advantages, abs=2e-6)


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ("ktae", {}),
        ("ktae(tf=bounded)", {"tf": "bounded"}),
        ("ktae(tf=off,fisher=point)", {"tf": "off", "fisher": "point"}),
        ("ktae_paper", {"fisher": "point", "paper": True}),
        ("ktae_paper(fisher=two_sided)", {"paper": True}),
    ],
)
@settings(max_examples=60, deadline=None)
@given(groups=st.lists(ROLLOUTS, min_size=1, max_size=3))
def test_ktae_equals_the_slow_version(spec, form, groups):
    assert_slow(spec, groups, lambda group, place: slow_weights(group, **form))


def without(group, place):
    return group[:place] + group[place + 1 :]


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ("ktae(loo=true)", {}),
        ("ktae(loo=true,tf=bounded,fisher=point)", {"tf": "bounded", "fisher": "point"}),
        ("ktae_paper(loo=true)", {"fisher": "point", "paper": True}),
    ],
)
@settings(max_examples=60, deadline=None)
@given(groups=st.lists(ROLLOUTS, min_size=1, max_size=3))
def test_loo_weights_equal_the_slow_version_without_the_rollout(spec, form, groups):
    assert_slow(spec, groups, lambda group, place: slow_weights(without(group, place), **form))


@settings(max_examples=60, deadline=None)
@given(groups=st.lists(ROLLOUTS, min_size=1, max_size=2))
def test_loo_weights_are_those_of_the_group_without_the_rollout(groups):
    found = cut(results("ktae(loo=true)", batch_of(groups))["key_weight"], groups)
    for group, rows in zip(groups, found, strict=True):
        for place, (row, values) in enumerate(zip(group, rows, strict=True)):
            others = without(group, place)
            credited = row.correct >= 0 and len({row.reward for row in group}) > 1 < len({r.reward for r in others})
            if len(others) > 1 and row.correct >= 0 and not credited:
                continue  # equal rewards with different verdicts: the slow version above has that case
            weights = weights_by_id("ktae", others) if credited else {}
            expected = [weights.get(i, 0.0) if kept else 0.0 for i, kept in zip(row.ids, row.mask, strict=True)]
            assert values.tolist() == pytest.approx(expected, abs=1e-6)


def test_loo_leaves_the_base_and_the_token_table_alone():
    batch = batch_of([V2])
    loo, plain = estimate("ktae(loo=true)", batch), estimate("ktae", batch)
    assert torch.allclose(
        loo.advantages - loo.columns["key_weight"], plain.advantages - plain.columns["key_weight"], atol=1e-6
    )
    assert all(torch.equal(loo.tokens()[name], values) for name, values in plain.tokens().items())


def test_loo_of_a_lone_verdict_has_no_weight():
    group = [rollout([1, 2], 1), rollout([1, 3], 0), rollout([2, 4], 0)]
    found = cut(results("ktae(loo=true)", batch_of([group]))["key_weight"], [group])[0]
    assert found[0].tolist() == [0, 0], "the others are all wrong"
    # without the second: id 1 in the right one alone; id 3 in none
    assert found[1].tolist() == [pytest.approx(1), 0]


@pytest.mark.skipif(not (SHARED / "data" / "ktae_golden.parquet").exists(), reason="needs shared/data")
def test_loo_weights_of_real_rollouts_are_those_of_the_group_without_the_rollout():
    table = pq.read_table(SHARED / "data" / "ktae_golden.parquet").slice(0, 16)
    ids, rewards = table["response_ids"].to_pylist(), table["reward"].to_pylist()
    group = [rollout(i, r) for i, r in zip(ids, rewards, strict=True)]
    found = cut(results("ktae(loo=true)", batch_of([group]))["key_weight"], [group])[0]
    for place, values in enumerate(found):
        weights = weights_by_id("ktae", without(group, place))
        expected = torch.tensor([weights.get(i, 0.0) for i in group[place].ids])
        assert torch.allclose(values, expected, rtol=0, atol=1e-6)
        assert values.count_nonzero() > 0


def test_ktae_gives_no_weight_where_rewards_are_equal_and_verdicts_differ():
    batch = full([[rollout([1, 2], 0.7, correct=1), rollout([1, 3], 0.7, correct=0)]])
    found = estimate("ktae", batch)
    assert found.columns["key_weight"].tolist() == [0.0] * 4
    assert found.advantages.tolist() == [0.0] * 4
    assert len(found.tokens()["group"]) == 0
