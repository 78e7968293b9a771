"""Estimators of one advantage per rollout, those that pool over a step's batch, and the optimal token baseline."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.catalogue import resolve_spec
from ktae_cli.errors import InputError, KtaeError
from ktae_cli.estimators.base import estimate, pool_requests, rollout_advantages
from ktae_cli.pipeline import column_plan, gather_pools, score_rows
from ktae_cli.rollouts import Rollouts, concat_rollouts
from tests.helpers import batch_of, cut, rewarded, rollout
from tests.rollout_files import score

# Groups aaaa and bb: rewards 1 0 0 0 and 1 1, lengths 2 4 3 1 and 1 2.
B = [rewarded([1, 0, 0, 0], [2, 4, 3, 1]), rewarded([1, 1], [1, 2])]
WHITENED = ["reinforce_plus_plus", "reinforce_plus_plus(gamma=0.9)", "reinforce_plus_plus_baseline", "gdpo"]
POOLED = [*WHITENED, "gpg", "gpg(alpha=contrast)"]
NAN = math.nan


def per_rollout(spec, groups, **fields) -> list[float]:
    return rollout_advantages(spec, batch_of(groups, **fields)).tolist()


def with_parts(groups, **parts):
    """Build a batch whose reward has named parts, a value a rollout each."""
    return batch_of(groups, rewards_by_name={name: torch.tensor(v, dtype=torch.float64) for name, v in parts.items()})


def whitened(values, weights) -> list[float]:
    """Whiten values that count as often as their weights say, with the standard library's exact moments; 0 of none."""
    tokens = [value for value, weight in zip(values, weights, strict=True) for _ in range(weight)]
    if not tokens:
        return [0.0] * len(values)
    mean, variance = statistics.mean(tokens), statistics.variance(tokens) if len(tokens) > 1 else 0.0
    return [(value - mean) / math.sqrt(variance + 1e-8) for value in values]


# Literals


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("reinforce_plus_plus", [1.215287, *[-0.759555] * 3, 1.215287, 1.215287]),
        ("reinforce_plus_plus_baseline", [2.155408, *[-0.578280] * 3, 0.105142, 0.105142]),
        ("opo", [0.8, -0.2, -0.2, -0.2, 0, 0]),
        ("gpg", [1.5, -0.5, -0.5, -0.5, 0, 0]),
        ("gpg(alpha=contrast)", [0.75 * 1.5, *[-0.25 * 1.5] * 3, 0, 0]),
        ("max_rl", [2.999988, -0.999996, -0.999996, -0.999996, 0, 0]),
        ("grpo_passk", [1.999996, 0, 0, 0, 0, 0]),
        ("grpo_passk(scale=false)", [1, 0, 0, 0, 0, 0]),
        ("grpo_passk(ddof=0,eps=0)", [1 / math.sqrt(3 / 16), 0, 0, 0, 0, 0]),
    ],
)
def test_advantages_of_the_published_vector(spec, expected):
    assert per_rollout(spec, B) == pytest.approx(expected, abs=6e-7)


def test_gdpo_of_a_reward_in_two_parts_worked_out_by_hand():
    # part a: z = 1.5, -.5, -.5, -.5; part b: 0, 0, 2, 2 gives z = -.75^.5 twice, +.75^.5 twice; lengths 1 1 1 1
    group = [rewarded([1, 0, 0, 0])]
    batch = with_parts(group, b=[0, 0, 2, 2], a=[1, 0, 0, 0])
    root = math.sqrt(0.75)
    sums = [1.5 - root, -0.5 - root, -0.5 + root, -0.5 + root]
    deviation = math.sqrt(sum(x * x for x in sums) / 3)
    assert rollout_advantages("gdpo", batch).tolist() == pytest.approx([x / deviation for x in sums], abs=3e-6)
    sums = [1.5 - 2 * root, -0.5 - 2 * root, -0.5 + 2 * root, -0.5 + 2 * root]
    deviation = math.sqrt(sum(x * x for x in sums) / 3)
    found = rollout_advantages("gdpo(weights=1+2)", with_parts(group, b=[0, 0, 2, 2], a=[1, 0, 0, 0]))
    assert found.tolist() == pytest.approx([x / deviation for x in sums], abs=3e-6)


def test_discounted_returns_fall_towards_the_start_and_skip_masked_tokens():
    groups = [[rollout([1, 2, 3, 4], 1, mask=[True, False, True, True]), rollout([5], 0)]]
    found = estimate("reinforce_plus_plus(gamma=0.9)", batch_of(groups)).advantages.tolist()
    first, second, last, other = whitened([0.81, 0.9, 1.0, 0.0], [1, 1, 1, 1])
    assert found == pytest.approx([first, 0, second, last, other])


def test_a_gamma_of_zero_rewards_the_last_unmasked_token_alone():
    groups = [[rollout([1, 2, 3], 1, mask=[True, True, False]), rollout([5], 1)]]
    found = estimate("reinforce_plus_plus(gamma=0)", batch_of(groups)).advantages.tolist()
    low, high, _ = whitened([0, 1, 1], [1, 1, 1])
    assert found == pytest.approx([low, high, 0, high])


def test_max_rl_of_zeros_and_ones_is_the_inverse_share_of_right_rollouts_less_one():
    assert per_rollout("max_rl(eps=0)", [rewarded([1, 1, 0, 0, 0])]) == pytest.approx([1.5, 1.5, -1, -1, -1])
    assert per_rollout("max_rl(eps=0)", [rewarded([0, 0]), rewarded([1])]) == [0, 0, 0]


def test_pass_at_k_credits_no_rollout_where_several_are_best():
    assert per_rollout("grpo_passk", [rewarded([1, 1, 0]), rewarded([0, 0, 0])]) == [0] * 6
    found = per_rollout("grpo_passk(scale=false)", [rewarded([-3, -1, -0.5]), rewarded([0.25, 0.75, 0.25])])
    assert found == [0, 0, 0.5, 0, 0.5, 0]


def test_gpg_scales_by_the_share_of_rollouts_that_its_alpha_counts():
    # eight rollouts: three rewards are not 0, five stand in groups with a contrast
    groups = [rewarded([1, 0, 0]), rewarded([0.5, 0]), rewarded([0, 0]), rewarded([2])]
    above = [2 / 3, -1 / 3, -1 / 3, 0.25, -0.25, 0, 0, 0]
    assert per_rollout("gpg", groups) == pytest.approx([a * 8 / 3 for a in above])
    assert per_rollout("gpg(alpha=contrast)", groups) == pytest.approx([a * 8 / 5 for a in above])
    assert per_rollout("gpg", [rewarded([0, 0])]) == [0, 0]


def test_the_baseline_of_opo_counts_unmasked_tokens():
    group = [
        rollout([1, 2, 3, 4], 1, mask=[True, False, False, True]), rollout([1], 0), rollout([], 5),
        rollout([1, 2], 7, mask=[False, False]),
    ]  # fmt: skip
    assert per_rollout("opo", [group]) == pytest.approx([1 - 2 / 3, -2 / 3, 5 - 2 / 3, 7 - 2 / 3])
    assert all(map(math.isfinite, per_rollout("opo", [[rollout([], 1), rollout([], 0)]])))


def certain(groups, pi, squared):
    """Build a batch of given probabilities of the sampled tokens and sums of squares, token by token."""
    return batch_of(groups, old_log_probs=torch.tensor(pi).log(), sum_pi_squared=torch.tensor(squared))


def test_the_optimal_token_baseline_worked_out_by_hand():
    # w = 1 - 2 pi + squares: .5, .25 | 1, 1 | .5; W = .5, .75 | 1, 2 | .5
    groups = [[rollout([1, 2], 1), rollout([1, 2], 0), rollout([1], 0.5)]]
    batch = certain(groups, [0.5, 0.5, 0.25, 0.5, 0.5], [0.5, 0.25, 0.5, 1.0, 0.5])
    first = (1 * 0.5 + 0 * 1 + 0.5 * 0.5) / (0.5 + 1 + 0.5)
    second = (1 * 0.75 + 0 * 2) / (0.75 + 2)
    found = estimate("optimal_token_baseline", batch).advantages.tolist()
    assert found == pytest.approx([1 - first, 1 - second, -first, -second, 0.5 - first], abs=1e-7)


def test_the_longest_rollout_has_no_baseline_beyond_the_second_longest():
    groups = [[rollout([1, 2, 3], 1), rollout([1], 0)]]
    batch = certain(groups, [0.5] * 4, [0.5] * 4)
    assert estimate("optimal_token_baseline", batch).advantages.tolist() == pytest.approx([0.5, 1, 1, -0.5], abs=1e-7)
    kept = estimate("optimal_token_baseline(zero_tail=false)", batch).advantages.tolist()
    assert kept == pytest.approx([0.5, 0, 0, -0.5], abs=1e-7)


def test_there_is_no_baseline_where_every_token_was_certain():
    batch = certain([[rollout([1, 2], 1), rollout([1, 2], 0)]], [1, 0.5, 1, 0.5], [1, 0.5, 1, 0.5])
    assert estimate("optimal_token_baseline", batch).advantages.tolist() == pytest.approx([1, 0.5, 0, -0.5], abs=1e-7)


# Slow versions

MASKS = st.lists(st.booleans(), max_size=5)
VALUES = st.sampled_from([0.0, 0.1, 0.7, 1.0, -2.0, 1 / 3])
GROUPS = st.lists(st.lists(st.tuples(VALUES, MASKS), min_size=1, max_size=5), min_size=1, max_size=4)


def built(groups):
    """Make the rollouts of drawn (reward, mask), two groups a step."""
    return [
        [rollout(range(len(mask)), r, mask=mask, seed=10 * g + i, step=g // 2) for i, (r, mask) in enumerate(group)]
        for g, group in enumerate(groups)
    ]


def expected_per_step(groups, value_of_group) -> list[float]:
    """Whiten the values of each step's groups, rollout by rollout in plain Python; a token a weight."""
    out = []
    for first in range(0, len(groups), 2):
        rows = [row for group in groups[first : first + 2] for row in group]
        values = [value for group in groups[first : first + 2] for value in value_of_group(group)]
        out += whitened(values, [sum(row.mask) for row in rows])
    return out


@settings(max_examples=40, deadline=None)
@given(GROUPS)
def test_reinforce_plus_plus_is_its_slow_version(drawn):
    groups = built(drawn)
    expected = expected_per_step(groups, lambda group: [row.reward for row in group])
    assert per_rollout("reinforce_plus_plus", groups) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(GROUPS)
def test_reinforce_plus_plus_baseline_is_its_slow_version(drawn):
    def above(group):
        mean = statistics.mean(row.reward for row in group) if len(group) > 1 else 0.0
        return [row.reward - mean for row in group]

    groups = built(drawn)
    # equal rewards are an exact 0 here and a rounding error there, which whitening makes 1e4 times as large
    expected = expected_per_step(groups, above)
    assert per_rollout("reinforce_plus_plus_baseline", groups) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_discounted_reinforce_plus_plus_is_its_slow_version(drawn, gamma):
    groups = built(drawn)
    expected = []
    for first in range(0, len(groups), 2):
        rows = [row for group in groups[first : first + 2] for row in group]
        mask = [m for row in rows for m in row.mask]
        returns = [row.reward * gamma ** sum(row.mask[t + 1 :]) for row in rows for t in range(len(row.ids))]
        expected += [a * m for a, m in zip(whitened(returns, mask), mask, strict=True)]
    found = estimate(f"reinforce_plus_plus(gamma={gamma})", batch_of(groups)).advantages.tolist()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


PARTS = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from([0.0, 1.0, 0.3, NAN]), st.sampled_from([0.0, 5.0, -1.0, NAN])
        ),
        min_size=1, max_size=5,
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(PARTS, st.sampled_from([(1.0, 1.0), (0.5, 2.0)]))
def test_gdpo_is_its_slow_version(drawn, weights):
    def z_scores(values):
        known = [v for v in values if not math.isnan(v)]
        if len(values) == 1:
            return [v / (1 + 1e-6) if known else 0.0 for v in values]
        if len(set(known)) < 2:
            return [0.0] * len(values)
        mean, std = statistics.mean(known), statistics.stdev(known)
        return [0.0 if math.isnan(v) else (v - mean) / (std + 1e-6) for v in values]

    groups = [rewarded([0] * len(group), [n for n, _, _ in group]) for group in drawn]
    columns = [[row[k] for group in drawn for row in group] for k in (1, 2)]
    present = [not all(map(math.isnan, column)) for column in columns]
    sums = []
    for group in drawn:
        z = [z_scores([row[k] for row in group]) for k in (1, 2)]
        sums += [weights[0] * a + weights[1] * b for a, b in zip(*z, strict=True)]
    lengths = [n for group in drawn for n, _, _ in group]
    expected = whitened(sums, lengths)
    used = [weight for weight, there in zip(weights, present, strict=True) if there] or [1.0]
    spec = f"gdpo(weights={'+'.join(map(str, used))})"
    found = rollout_advantages(spec, with_parts(groups, first=columns[0], second=columns[1])).tolist()
    assert found == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(GROUPS)
def test_opo_and_gpg_are_their_slow_versions(drawn):
    groups = built(drawn)
    opo, gpg = [], []
    for g, group in enumerate(groups):
        rewards, lengths = [row.reward for row in group], [sum(row.mask) for row in group]
        step = [row for other in groups[g // 2 * 2 : g // 2 * 2 + 2] for row in other]
        alpha = len(step) / max(1, sum(row.reward != 0 for row in step))
        dead = len(set(rewards)) == 1
        mean = statistics.mean(rewards)
        base = sum(r * n for r, n in zip(rewards, lengths, strict=True)) / sum(lengths) if sum(lengths) else mean
        opo += [0.0 if dead else r - base for r in rewards]
        gpg += [0.0 if dead else alpha * (r - mean) for r in rewards]
    assert per_rollout("opo", groups) == pytest.approx(opo, abs=1e-12)
    assert per_rollout("gpg", groups) == pytest.approx(gpg, abs=1e-12)


def slow_token_baseline(group, pi, squared) -> list[list[float]]:
    """Position by position over the rollouts of one group; pi and squared are lists by rollout."""
    rewards, counted = [row.reward for row in group], [sum(row.mask) for row in group]
    path = [
        [sum(1 - 2 * p[u] + q[u] for u in range(t + 1) if row.mask[u]) for t in range(len(p))]
        for row, p, q in zip(group, pi, squared, strict=True)
    ]
    by_length = sorted(counted)
    out = []
    for i, row in enumerate(group):
        values = []
        for t in range(len(row.ids)):
            alive = [j for j, other in enumerate(group) if t < len(other.ids) and other.mask[t]]
            weight = sum(path[j][t] for j in alive)
            base = sum(path[j][t] * rewards[j] for j in alive) / (weight + 1e-8)
            if len(group) > 1 and counted[i] == by_length[-1] > by_length[-2] <= t:
                base = 0.0
            values.append((rewards[i] - base) if row.mask[t] and len(set(rewards)) > 1 else 0.0)
        out.append(values)
    return out


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.integers(0, 99))
def test_the_optimal_token_baseline_is_its_slow_version(drawn, seed):
    groups, random = built(drawn), np.random.default_rng(seed)
    sizes = [len(row.ids) for group in groups for row in group]
    pi = random.uniform(0.05, 0.95, sum(sizes)).astype(np.float32)
    squared = (pi**2 + random.random(sum(sizes)) * (1 - pi) ** 2).astype(np.float32)
    log_probs = torch.from_numpy(np.log(pi))
    found = estimate(
        "optimal_token_baseline",
        batch_of(groups, old_log_probs=log_probs, sum_pi_squared=torch.from_numpy(squared)),
    ).advantages
    exact = log_probs.double().exp()
    for group, rows, p, q in zip(
        groups, cut(found, groups), cut(exact, groups), cut(torch.from_numpy(squared), groups), strict=True
    ):
        for ours, slow in zip(
            rows, slow_token_baseline(group, [x.tolist() for x in p], [x.tolist() for x in q]), strict=True
        ):
            assert ours.tolist() == pytest.approx(slow, rel=1e-6, abs=1e-6)


# Degenerate and impossible


@pytest.mark.parametrize("spec", ["opo", "gpg", "max_rl", "grpo_passk"])
def test_groups_without_contrast_are_exactly_zero_beside_others(spec):
    groups = [rewarded([1, 0, 0.5], [2, 4, 3]), rewarded([0.1] * 3, [1, 2, 5]), rewarded([0.7], [3])]
    found = per_rollout(spec, groups)
    assert found[3:] == [0, 0, 0, 0]
    assert any(found[:3])


def test_groups_without_contrast_have_the_whitened_value_beside_others():
    groups = [rewarded([1, 0], [1, 1]), rewarded([0.5] * 2, [1, 1]), rewarded([2], [1])]
    # baseline: x = .5, -.5, 0, 0 and the raw 2 of the group of one
    expected = whitened([0.5, -0.5, 0, 0, 2], [1] * 5)
    assert per_rollout("reinforce_plus_plus_baseline", groups) == pytest.approx(expected)
    assert per_rollout("reinforce_plus_plus", groups) == pytest.approx(whitened([1, 0, 0.5, 0.5, 2], [1] * 5))
    half = math.sqrt(0.5) / (math.sqrt(0.5) + 1e-6) * math.sqrt(0.5)
    batch = with_parts(groups, only=[1, 0, 0.5, 0.5, 2])
    expected = whitened([half, -half, 0, 0, 2 / (1 + 1e-6)], [1] * 5)
    assert rollout_advantages("gdpo", batch).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("reward", [0.1, 0.7, 1e30, -1e30, 1e-30])
def test_equal_rewards_of_a_whole_step_whiten_to_exactly_zero(reward):
    groups = [rewarded([reward] * 3, [3, 1, 7]), rewarded([reward] * 10, range(10))]
    assert per_rollout("reinforce_plus_plus", groups) == [0] * 13


def test_a_step_of_one_token_or_of_none_whitens_to_zero():
    for groups in ([[rollout([1], 3)]], [[rollout([], 3), rollout([1], 2, mask=[False])]]):
        for spec in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
            assert per_rollout(spec, groups) == [0] * len(groups[0])
        assert (estimate("reinforce_plus_plus(gamma=0.5)", batch_of(groups)).advantages == 0).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("reinforce_plus_plus(gamma=1.1)", "gamma lies between 0 and 1, found 1.1"),
        ("reinforce_plus_plus(gamma=-0.5)", "gamma lies between 0 and 1, found -0.5"),
        ("max_rl(eps=-1)", "eps is not negative, found -1.0"),
        ("grpo_passk(ddof=2)", "ddof is 0 or 1, and eps is not negative; found ddof=2"),
        ("optimal_token_baseline(eps=-1)", "eps is not negative, found -1.0"),
        ("gdpo(eps=-1)", "eps is not negative, found -1.0"),
        ("gdpo(weights=1+2+3)", r"3 weights for 2 part\(s\) of the reward \('exact', 'format'\); give one for each"),
    ],
)
def test_impossible_parameters_are_refused(spec, message):
    with pytest.raises(KtaeError, match=message):
        estimate(spec, batch_of(B, ("old_log_probs", "sum_pi_squared", "rewards")))


def test_max_rl_refuses_negative_rewards_where_they_would_count():
    with pytest.raises(InputError, match=r"rewards are at least 0; found -0\.5;.*--reward-from correct"):
        per_rollout("max_rl", [rewarded([1, -0.5])])
    assert per_rollout("max_rl", [rewarded([-1, -1]), rewarded([-3])]) == [0, 0, 0]


def test_gdpo_refuses_a_part_that_no_advantage_can_hold_and_shows_its_name_harmlessly():
    with pytest.raises(InputError, match=r"the part '␛\[31m' of the reward is -inf"):
        rollout_advantages("gdpo", with_parts([rewarded([1, 0])], **{"\x1b[31m": [0.0, -math.inf]}))


def test_gdpo_leaves_out_a_part_that_nobody_has():
    groups = [rewarded([1, 0, 0], [1, 2, 3])]
    two = with_parts(groups, a=[1.0, 0.0, 0.0], b=[NAN] * 3)
    one = with_parts(groups, a=[1.0, 0.0, 0.0])
    assert torch.equal(rollout_advantages("gdpo(weights=3)", two), rollout_advantages("gdpo(weights=3)", one))
    assert rollout_advantages("gdpo", with_parts(groups)).tolist() == [0, 0, 0]


def test_a_discounted_return_is_no_base():
    with pytest.raises(KtaeError, match="gives one advantage per token; a base gives one per rollout"):
        rollout_advantages("reinforce_plus_plus(gamma=0.9)", batch_of(B))


def test_a_whitened_base_keeps_its_value_where_the_key_weight_is_zero():
    groups = [[rollout([1, 2], 1), rollout([1, 3], 0)], [rollout([7], 1)]]
    batch = batch_of(groups)
    found = estimate("ktae(base=reinforce_plus_plus_baseline)", batch)
    base = batch.spread(rollout_advantages("reinforce_plus_plus_baseline", batch))
    assert found.columns["key_weight"][-1] == 0
    assert found.advantages[-1] == base[-1] != 0
    assert torch.allclose(found.advantages, base + found.columns["key_weight"])


# However the input is cut and ordered


def drawn_rows(seed: int, n_groups: int = 12) -> list[Rollouts]:
    """Draw the rows of groups: three steps, masks, empty responses, unknown rewards, a part that few groups have."""
    random = np.random.default_rng(seed)

    def draw(group: int) -> Rollouts:
        n = int(random.integers(1, 7))
        lengths = random.integers(0, 9, n)
        total = int(lengths.sum())
        parts = {"exact": random.integers(0, 2, n).astype(float), "style": random.random(n)}
        parts["style"][random.random(n) < 0.3] = NAN
        if group % 5 == 1:
            parts["bonus"] = random.choice([0.0, 1.0, NAN], n)
        reward = random.choice([0.0, 0.1, 0.7, 1.0, 1 / 3], n)
        return Rollouts(
            np.full(n, group), reward, (reward > 0.5).astype(np.int8), random.random(n) < 0.95, lengths,
            random.integers(0, 6, total).astype(np.int32), random.random(total) < 0.8,
            step=np.full(n, group % 3), parts=parts,
            tokens={
                "old_log_probs": -random.exponential(1, total).astype(np.float32),
                "sum_pi_squared": random.random(total).astype(np.float32),
            },
        )  # fmt: skip

    return [draw(group) for group in range(n_groups)]


def score_in_parts(parts: list[Rollouts], text: str) -> list[np.ndarray]:
    """Score parts of an input as the runner does: passes over all of them until the statistics are complete."""
    spec = resolve_spec(text)
    known = {}
    for key, request in pool_requests([spec]).items():
        while key not in known or not known[key].complete:
            found = [gather_pools(part, [request], known)[key] for part in parts]
            merged = found[0]
            for other in found[1:]:
                merged = merged.merge(other)
            known[key] = merged
    plan = column_plan([spec])
    return [score_rows(part, [spec], plan, pooled=known).columns["advantages"] for part in parts]


@pytest.mark.parametrize("spec", [*POOLED, "gdpo(weights=0.5+1+2)", "ktae(base=gdpo)", "opo", "optimal_token_baseline"])
@pytest.mark.parametrize("seed", range(3))
def test_one_part_many_parts_and_any_order_give_the_same_bits(spec, seed):
    groups = drawn_rows(seed)
    [whole] = score_in_parts([concat_rollouts(groups)], spec)
    assert np.count_nonzero(whole)
    one_each = score_in_parts(groups, spec)
    assert np.array_equal(np.concatenate(one_each), whole)
    order = np.random.default_rng(seed).permutation(len(groups))
    moved = score_in_parts([concat_rollouts([groups[i] for i in order[k : k + 5]]) for k in range(0, 12, 5)], spec)
    assert np.array_equal(np.concatenate(moved), np.concatenate([one_each[i] for i in order]))


@pytest.mark.parametrize("spec", [*POOLED, "ktae(base=gdpo)"])
def test_two_steps_together_are_each_alone(spec):
    groups = drawn_rows(5)
    together = score_in_parts(groups, spec)
    for step in range(3):
        alone = score_in_parts(groups[step::3], spec)
        for ours, theirs in zip(together[step::3], alone, strict=True):
            assert np.array_equal(ours, theirs)


def table_of(groups: list[Rollouts]) -> pa.Table:
    """Write drawn rows as columns; the parts of the reward become a map, absent where they are NaN."""
    rows = []
    for group in groups:
        ends = np.cumsum(group.lengths)
        for i, stop in enumerate(ends.tolist()):
            at = slice(stop - int(group.lengths[i]), stop)
            ids = group.token_ids[at].tolist()
            rows.append({
                "group_id": f"g{group.group[i]}", "step": int(group.step[i]), "response_ids": ids,
                "reward": float(group.reward[i]) if group.scored[i] else None, "response_mask": group.mask[at].tolist(),
                "rewards": [(name, float(v[i])) for name, v in group.parts.items() if not np.isnan(v[i])],
                "old_log_probs": group.tokens["old_log_probs"][at].tolist(),
                "sum_pi_squared": group.tokens["sum_pi_squared"][at].tolist(), "row": len(rows),
            })  # fmt: skip
    types = {
        "group_id": pa.string(), "step": pa.int64(), "response_ids": pa.list_(pa.int32()), "reward": pa.float64(),
        "response_mask": pa.list_(pa.bool_()), "rewards": pa.map_(pa.string(), pa.float64()),
        "old_log_probs": pa.list_(pa.float32()), "sum_pi_squared": pa.list_(pa.float32()), "row": pa.int64(),
    }  # fmt: skip
    return pa.table({name: pa.array([row[name] for row in rows], dtype) for name, dtype in types.items()})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Score one input whole with every pooled estimator."""
    table = table_of(drawn_rows(3))
    return table, by_row(score(tmp_path_factory.mktemp("whole"), table, *chosen()))


def chosen() -> list[str]:
    return [word for spec in (*POOLED, "optimal_token_baseline", "ktae(base=gdpo)") for word in ("-e", spec)]


def by_row(scored: pa.Table) -> dict[str, dict[int, list[float]]]:
    rows = scored["row"].to_pylist()
    names = [name for name in scored.column_names if name.startswith("adv")]
    return {name: dict(zip(rows, scored[name].to_pylist(), strict=True)) for name in names}


@pytest.mark.parametrize("shuffled", [False, True])
def test_files_in_small_chunks_or_shuffled_are_scored_to_the_same_bits(tmp_path, monkeypatch, files, shuffled):
    table, expected = files
    monkeypatch.setattr("ktae_cli.runners.local.CHUNK_TOKENS", {"cpu": 8, "cuda": 8})
    if shuffled:
        table = table.take(np.random.default_rng(0).permutation(len(table)))
    assert by_row(score(tmp_path, table, *chosen())) == expected
    assert all(any(any(row or ()) for row in column.values()) for column in expected.values())


def test_a_file_of_one_step_is_scored_as_in_the_file_of_all(tmp_path, files):
    table, expected = files
    for step in range(3):
        alone = by_row(score(tmp_path, table.filter(pa.compute.equal(table["step"], step)), *chosen()))
        for name, column in alone.items():
            assert column == {row: expected[name][row] for row in column}


def test_rollouts_in_another_order_within_their_group_keep_their_results():
    groups = built([[(0.1, [True] * 3), (0.7, [True, False]), (1 / 3, [True] * 4), (1.0, [True] * 2), (0.1, [])]])
    order = [3, 0, 4, 2, 1]
    columns = ("old_log_probs", "sum_pi_squared", "rewards")
    for spec in (*POOLED, "opo", "max_rl", "grpo_passk", "optimal_token_baseline"):
        before = cut(estimate(spec, batch_of(groups, columns)).advantages, groups)[0]
        moved = [[groups[0][i] for i in order]]
        after = cut(estimate(spec, batch_of(moved, columns)).advantages, moved)[0]
        assert all(torch.equal(after[place], before[i]) for place, i in enumerate(order)), spec


def test_a_negative_zero_is_a_zero():
    plus = [[rollout([1, 2], 0.0), rollout([1], 1, mask=[True])]]
    minus = [[replace(plus[0][0], reward=-0.0), plus[0][1]]]
    for spec in ("reinforce_plus_plus", "gpg"):
        assert per_rollout(spec, plus) == per_rollout(spec, minus)
