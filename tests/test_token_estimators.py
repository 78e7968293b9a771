"""Estimators of token credit by entropy, conflict, prefix and chance: worked vectors, slow versions, edge cases."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import needs, resolve_spec
from ktae_cli.errors import KtaeError
from ktae_cli.estimators.base import estimate, rollout_advantages
from tests.helpers import batch_of, cut, draw_groups, rewarded, rollout


def batch_with(groups, entropies=None, **fields) -> GroupBatch:
    """Build a batch with the entropies of its rollouts, one list each."""
    if entropies is not None:
        flat = [h for row in entropies for h in row]
        fields["old_entropy"] = torch.tensor(flat, dtype=torch.float32)
    return batch_of(groups, **fields)


def advantages(spec, groups, entropies=None, **fields) -> list[list[float]]:
    """Return the advantages of each rollout."""
    found = cut(estimate(spec, batch_with(groups, entropies, **fields)).advantages, groups)
    return [values.tolist() for group in found for values in group]


def assert_rows(found, expected, abs=1e-6):
    assert [len(row) for row in found] == [len(row) for row in expected]
    for row, values in zip(found, expected, strict=True):
        assert row == pytest.approx(values, abs=abs)


def small_groups(n_ids=3, longest=6):
    """Draw groups of rollouts over few ids, with masks, rewards of few values and unknown verdicts."""
    token = st.tuples(st.integers(0, n_ids - 1), st.sampled_from([True, True, True, False]))
    row = st.tuples(st.lists(token, max_size=longest), st.sampled_from([0.0, 1.0, 0.5]), st.integers(-1, 1))

    def build(rows, first_seed):
        return [
            rollout([i for i, _ in tokens], reward, correct, [m for _, m in tokens], seed=first_seed + n)
            for n, (tokens, reward, correct) in enumerate(rows)
        ]

    group = st.lists(row, min_size=1, max_size=7)
    return st.lists(group, min_size=1, max_size=3).map(lambda gs: [build(g, 100 * n) for n, g in enumerate(gs)])


# GTPO and GRPO-S by entropy

E4 = [[rollout([1, 2], 1), rollout([1, 2, 3], 1), rollout([1, 2], 0), rollout([1], 0)]]
H4 = [[0.2, 0.6], [0.4, 0.2, 0.5], [0.3, 0.1], [0.5]]


def test_gtpo_entropy_of_the_worked_example():
    shaped = [[0.966667, 1.05], [1.033333, 0.95, 1.0], [-1.025, -1.0], [-0.975]]
    assert_rows(advantages("gtpo_entropy(alpha1=0.9,normalise=false)", E4, H4), shaped)
    scored = [[-0.784465, 1.176697], [0.784465, -1.176697, 0], [-1, 0], [1]]
    assert_rows(advantages("gtpo_entropy(alpha1=0.9)", E4, H4), scored)


def test_the_alphas_of_gtpo_entropy_cancel_in_the_z_score():
    plain = advantages("gtpo_entropy", E4, H4)
    assert_rows(advantages("gtpo_entropy(alpha1=0.3,alpha2=0.7)", E4, H4), plain)


def test_gtpo_entropy_divides_by_the_deviation_of_all_tokens_with_ddof_0():
    expected = [[x * np.sqrt(5 / 4) for x in (-0.784465, 1.176697)]]
    assert_rows(advantages("gtpo_entropy(ddof=0)", E4, H4)[:1], expected)


def test_half_of_the_tokens_of_right_rollouts_get_a_negative_advantage():
    random = np.random.default_rng(0)
    groups = [[rollout(range(200), i % 2) for i in range(8)]]
    found = advantages("gtpo_entropy", groups, random.exponential(0.4, (8, 200)).tolist())
    right = np.array(found[1::2])
    assert right.mean() == pytest.approx(0, abs=1e-6)
    assert 0.3 < (right < 0).mean() < 0.7


@settings(max_examples=60, deadline=None)
@given(small_groups())
def test_gtpo_entropy_equals_the_slow_version(groups):
    batch = batch_of(groups, ["old_entropy"])
    for spec, alphas, normalise in (
        ("gtpo_entropy(alpha1=0.9)", (0.9, 0.1), True),
        ("gtpo_entropy(alpha1=0.5,alpha2=0.5,normalise=false)", (0.5, 0.5), False),
    ):
        found = cut(estimate(spec, batch).advantages, groups)
        entropies = cut(batch.old_entropy, groups)
        for group, values, entropy in zip(groups, found, entropies, strict=True):
            expected = slow_gtpo_entropy(group, [e.tolist() for e in entropy], *alphas, normalise)
            assert_rows([v.tolist() for v in values], expected, abs=2e-5)


def slow_gtpo_entropy(group, entropies, alpha1, alpha2, normalise):
    out = [[0.0] * len(row.ids) for row in group]
    if len({row.reward for row in group}) == 1:
        return out
    for side in (0, 1):
        at = defaultdict(dict)  # position -> {(rollout, place): weight}
        for i, row in enumerate(group):
            kept = [place for place, m in enumerate(row.mask) if m] if row.correct == side else []
            for t, place in enumerate(kept):
                h = entropies[i][place]
                at[t][i, place] = h if side else 1 / (h + 1e-8)
        shaped = {}
        for weights in at.values():
            total = sum(weights.values()) + 1e-8
            for where, w in weights.items():
                shaped[where] = (1 if side else -1) * (alpha1 + alpha2 * len(weights) * w / total)
        values = np.array(list(shaped.values()))
        std = values.std(ddof=1) if len(values) > 1 else 0.0
        for (i, place), r in shaped.items():
            out[i][place] = r if not normalise else (r - values.mean()) / std if std > 1e-8 else 0.0
    return out


def test_shaped_rewards_add_up_to_the_rollouts_at_each_position():
    # Prop. 2.2: alpha1 + alpha2 = 1
    groups, random = draw_groups(5), np.random.default_rng(5)
    entropies = [random.uniform(0.1, 3, len(row.ids)).tolist() for group in groups for row in group]
    batch = batch_with(groups, entropies)
    found = cut(estimate("gtpo_entropy(alpha1=0.7,alpha2=0.3,normalise=false)", batch).advantages, groups)
    for group, values in zip(groups, found, strict=True):
        sums, counts = defaultdict(float), defaultdict(int)
        for row, v in zip(group, values, strict=True):
            for t, r in enumerate(v[torch.tensor(row.mask, dtype=torch.bool)].tolist()):
                sums[row.correct, t] += r
                counts[row.correct, t] += row.correct >= 0 and len({r.reward for r in group}) > 1
        for (side, t), total in sums.items():
            assert total == pytest.approx(counts[side, t] if side == 1 else -counts[side, t], abs=1e-5)


def test_gtpo_entropy_of_constant_entropies_has_no_signal():
    for h in (0.0, 0.7, 0.1):
        assert_rows(advantages("gtpo_entropy", E4, [[h] * len(row) for row in H4]), [[0] * len(row) for row in H4], 0)


def test_an_entropy_of_zero_takes_the_budget_of_the_wrong_side_at_its_position():
    groups = [[rollout([1], 1), rollout([1], 0), rollout([1], 0), rollout([1], 0)]]
    found = advantages("gtpo_entropy(normalise=false)", groups, [[0.0], [0.0], [0.5], [1.0]])
    # on the right side 0 / (0 + 1e-8) gets no share
    assert_rows(found, [[1.0], [-1.3], [-1.0], [-1.0]])
    found = advantages("gtpo_entropy(normalise=false)", groups, [[0.0], [-1e-7], [0.0], [1.0]])
    assert_rows(found, [[1.0], [-1.15], [-1.15], [-1.0]])


def test_gtpo_entropy_leaves_out_a_side_without_rollouts():
    right = [rollout([1, 2], 1.0), rollout([1, 2], 1.1)]
    found = advantages("gtpo_entropy", [right], [[0.1, 0.2], [0.3, 0.2]])
    # shares .5, 1, 1.5, 1
    assert_rows(found, [[-1.224745, 0], [1.224745, 0]])
    wrong = [replace(row, correct=0) for row in right]
    found = advantages("gtpo_entropy", [wrong], [[0.1, 0.2], [0.3, 0.2]])
    # shares 1.5, 1, .5, 1 with the sign turned
    assert_rows(found, [[-1.224745, 0], [1.224745, 0]])


def test_gtpo_entropy_gives_a_lone_token_of_a_side_and_unknown_verdicts_nothing():
    group = [rollout([1], 1), rollout([1, 2], 0), rollout([1, 2], 0.5, -1), rollout([1], 0)]
    found = advantages("gtpo_entropy", [group], [[0.3], [0.2, 0.4], [0.9, 0.1], [0.6]])
    assert found[0] == [0]
    assert found[2] == [0, 0]
    without = advantages("gtpo_entropy", [[group[0], group[1], group[3]]], [[0.3], [0.2, 0.4], [0.6]])
    assert found[1] == without[1]
    assert any(found[1])


def test_gtpo_entropy_numbers_positions_without_masked_tokens():
    plain = advantages("gtpo_entropy", E4, H4)
    group = [replace(E4[0][0], ids=(1, 8, 8, 2), mask=(True, False, False, True)), *E4[0][1:]]
    found = advantages("gtpo_entropy", [group], [[0.2, 9.0, 9.0, 0.6], *H4[1:]])
    assert found[0] == [plain[0][0], 0, 0, plain[0][1]]
    assert found[1:] == plain[1:]


def test_grpo_s_of_the_worked_example():
    found = rollout_advantages("grpo_s(beta1=0.9)", batch_with(E4, H4)).tolist()
    assert found == pytest.approx([0.869388, 0.861860, -0.902722, -0.828526], abs=3e-6)


def test_grpo_s_with_beta2_0_is_grpo_of_the_verdicts():
    found = rollout_advantages("grpo_s(beta2=0)", batch_with(E4, H4))
    expected = rollout_advantages("grpo", batch_of([rewarded([1, 1, -1, -1])]))
    assert found.tolist() == pytest.approx(expected.tolist())


def test_grpo_s_keeps_unknown_verdicts_out_of_its_means():
    odd = [*E4[0], rollout([1], 0.5, -1)]
    found = rollout_advantages("grpo_s(beta1=0.9)", batch_with([odd], [*H4, [5.0]])).tolist()
    assert found == pytest.approx([0.869388, 0.861860, -0.902722, -0.828526, 0], abs=3e-6)


def test_grpo_s_gives_a_rollout_without_tokens_a_share_of_one():
    group = [rollout([1], 1), rollout([1], 1), rollout([], 1), rollout([1], 0)]
    found = rollout_advantages("grpo_s", batch_with([group], [[0.2], [0.6], [], [0.4]])).tolist()
    # shaped rewards 1 + .1 * (.5, 1.5, 1) and -1.1
    shaped = np.array([1.05, 1.15, 1.1, -1.1])
    assert found == pytest.approx(((shaped - shaped.mean()) / shaped.std(ddof=1)).tolist(), abs=3e-6)


def test_a_mean_entropy_of_zero_takes_the_budget_of_the_wrong_side():
    group = [rollout([1], 1), rollout([1], 0), rollout([1], 0)]
    found = rollout_advantages("grpo_s", batch_with([group], [[0.2], [0.0], [0.5]])).tolist()
    shaped = np.array([1.1, -1.2, -1.0])
    assert found == pytest.approx(((shaped - shaped.mean()) / shaped.std(ddof=1)).tolist(), abs=3e-6)


@pytest.mark.parametrize(
    "spec",
    [
        "gtpo_entropy(alpha2=-1)", "gtpo_entropy(ddof=2)", "grpo_s(beta1=-0.1)", "grpo_s(eps=-1)",
        "gtpo_conflict(weight=-1)", "gtpo_conflict(penalty=-0.1)", "s_grpo(p=1.5)", "s_grpo(alpha=-1)",
        "s_grpo(cutoff=-1)", "entropy_top(rho=0)", "entropy_top(rho=1.1)",
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_are_refused(spec):
    with pytest.raises(KtaeError, match=r"; found .*(-1|2|-0\.1|1\.5|0|1\.1)"):
        estimate(spec, batch_with(E4, H4))


# GTPO by conflict

C3 = [[rollout([1, 2, 3, 9], 1), rollout([1, 2, 4, 9], 0), rollout([1, 5, 4, 9], 0)]]


def factors(spec, groups, **fields):
    """Return lambda of each token: advantages over the base's, dr_grpo with rewards that leave no base at 0."""
    batch = batch_with(groups, **fields)
    base = batch.spread(rollout_advantages("dr_grpo", batch))
    found = estimate(spec, batch).advantages
    return [row.tolist() for group in cut(torch.where(base == 0, 1, found / base), groups) for row in group]


@pytest.mark.parametrize("rule", ["union", "product"])
def test_conflict_tokens_of_the_worked_examples(rule):
    spec = f"gtpo_conflict(base=dr_grpo,rule={rule})"
    assert_rows(factors(spec, C3), [[2, 2, 1, 2], [0, 0, 1, 0], [0, 1, 1, 0]])
    pair = [[rollout([1, 2, 9], 1), rollout([1, 3, 4, 9], 0)]]
    assert_rows(factors(spec, pair), [[2, 1, 2], [0, 1, 1, 0]])
    twins = [[rollout([1, 2], 1), rollout([1, 2], 0)]]
    assert_rows(factors(spec, twins), [[2, 2] if rule == "union" else [4, 4], [0, 0]])


def test_a_rollout_without_advantage_makes_no_conflict_and_is_left_alone():
    # the mean of 1, 0, .5 is the reward of the third
    group = [rollout([1, 2], 1), rollout([3, 2], 0), rollout([1, 4], 0.5)]
    assert_rows(factors("gtpo_conflict(base=dr_grpo)", [group]), [[1, 2], [1, 0], [1, 1]])
    assert_rows(factors("gtpo_conflict(base=dr_grpo)", [group[:2]]), [[1, 2], [1, 0]])
    assert advantages("gtpo_conflict", [group])[2] == [0, 0]


def test_groups_of_one_sign_have_no_conflicts():
    assert_rows(factors("gtpo_conflict(base=dr_grpo)", [[rollout([1, 2], 1), rollout([], 0)]]), [[1, 1], []])


def test_the_base_of_gtpo_conflict_is_trls():
    found = advantages("gtpo_conflict(weight=3)", [[rollout([1, 2], 1), rollout([3, 2], 0)]])
    a = 0.5 / (np.sqrt(0.5) + 1e-4)
    assert_rows(found, [[a, 3 * a], [-a, 0]])


def test_conflicts_are_sought_among_unmasked_tokens_only():
    group = [replace(C3[0][0], ids=(7, 1, 2, 3, 7, 9), mask=(False, True, True, True, False, True)), *C3[0][1:]]
    found = advantages("gtpo_conflict(base=dr_grpo)", [group])
    assert_rows(found, [[0, 4 / 3, 4 / 3, 2 / 3, 0, 4 / 3], [0, 0, -1 / 3, 0], [0, -1 / 3, -1 / 3, 0]])


@settings(max_examples=80, deadline=None)
@given(small_groups(n_ids=2, longest=14), st.sampled_from(["union", "product"]))
def test_gtpo_conflict_equals_the_slow_version(groups, rule):
    batch = batch_of(groups)
    found = cut(estimate(f"gtpo_conflict(base=dr_grpo,rule={rule},weight=3)", batch).advantages, groups)
    base = iter(rollout_advantages("dr_grpo", batch).tolist())
    for group, values in zip(groups, found, strict=True):
        a = [next(base) for _ in group]
        expected = [[x * s for x in row] for row, s in zip(slow_lambda(group, a, rule, 3), a, strict=True)]
        assert_rows([v.tolist() for v in values], expected)


def slow_lambda(group, base, rule, weight):
    kept = [[i for i, m in zip(row.ids, row.mask, strict=True) if m] for row in group]
    runs = []
    for rows in (kept, [row[::-1] for row in kept]):
        signs = defaultdict(set)
        for row, a in zip(rows, base, strict=True):
            for t, i in enumerate(row):
                signs[t, i].add(np.sign(a))
        found = []
        for row in rows:
            n = 0
            while n < len(row) and {1, -1} <= signs[n, row[n]]:
                n += 1
            found.append(n)
        runs.append(found)
    out = []
    for i, (row, a) in enumerate(zip(group, base, strict=True)):
        values, t = [], 0
        for m in row.mask:
            in_runs = (t < runs[0][i]) + (len(kept[i]) - t <= runs[1][i])
            times = min(in_runs, 1) if rule == "union" else in_runs
            values.append(0.0 if not m else 1.0 if a == 0 else (weight if a > 0 else 0.0) ** times)
            t += m
        out.append(values)
    return out


def test_long_runs_with_changing_companions_are_followed_to_their_end():
    random = np.random.default_rng(3)
    for _ in range(5):
        stem = random.integers(0, 2, 700)
        rows = []
        for i in range(9):
            ids = stem.copy()
            ids[random.random(700) < (0.15 if i else 0)] ^= 1
            rows.append(rollout(ids[: 700 - 11 * i].tolist(), i % 2))
        found = advantages("gtpo_conflict(base=dr_grpo,rule=product)", [rows])
        a = rollout_advantages("dr_grpo", batch_of([rows])).tolist()
        expected = [[x * s for x in row] for row, s in zip(slow_lambda(rows, a, "product", 2), a, strict=True)]
        assert_rows(found, expected)


R3 = [[rollout([1], 1), rollout([2], 0), rollout([3], 0)]]


@pytest.mark.parametrize(
    ("parameters", "delta", "penalty"),
    [
        ("", (1, 1, 1), 0),
        ("penalty=0.1", (1, 1, 1), 0.1),
        ("filter=true,threshold=0.7", (1, 1, 0), 0),
        ("filter=true,penalty=0.1,threshold=0.7", (1, 1, 0), 0.1),
        ("filter=true", (1, 0, 0), 0),
        ("filter=true,h_ini=0.5", (1, 0, 0), 0),
        ("filter=true,h_ini=0.7", (1, 1, 1), 0),
    ],
)
def test_entropy_terms_of_gtpo_conflict(parameters, delta, penalty):
    base, entropies = [2 / 3, -1 / 3, -1 / 3], [0.3, 0.7, 0.71]
    spec = f"gtpo_conflict(base=dr_grpo{',' if parameters else ''}{parameters})"
    expected = [[d * (a - penalty * h)] for d, a, h in zip(delta, base, entropies, strict=True)]
    assert_rows(advantages(spec, R3, [[h] for h in entropies]), expected)


def test_entropy_terms_of_gtpo_conflict_do_not_change_the_signs_of_the_rollouts():
    pair = [[rollout([1, 2], 0.5), rollout([1, 3], 0.4)]]
    found = advantages("gtpo_conflict(base=dr_grpo,penalty=1)", pair, [[0.2, 0.4], [0.1, 0.1]])
    assert_rows(found, [[-0.5, -0.25], [0, -0.15]])


def test_the_penalty_leaves_groups_of_equal_rewards_alone():
    assert advantages("gtpo_conflict(penalty=1)", [[rollout([1], 1), rollout([2], 1)]], [[0.2], [0.3]]) == [[0], [0]]


def test_gtpo_conflict_needs_entropies_only_where_it_uses_them():
    def wanted(spec):
        return needs(resolve_spec(spec))

    assert wanted("gtpo_conflict(rule=product,threshold=0.7)") == ("response_ids", "reward")
    for parameters in ("filter=true", "penalty=0.1"):
        assert wanted(f"gtpo_conflict({parameters})") == ("response_ids", "reward", "old_entropy")


# T-SPMO

P3 = [[rollout([1, 2, 3], 1), rollout([1, 2, 4], 0), rollout([1, 5, 3], 0)]]


def test_t_spmo_of_the_worked_example():
    sixth, third = 1 / 6, 1 / 3
    assert_rows(advantages("t_spmo", P3), [[0, sixth, 0.5], [0, sixth, -0.5], [0, -third, 0]])


def test_a_rollout_that_ends_at_a_prefix_counts_in_its_mean():
    found = advantages("t_spmo", [[rollout([1], 1), rollout([1, 2], 0), rollout([1, 3, 4], 0.5), rollout([], 0.5)]])
    # the mean of the empty prefix and of [1] is .5; its children are [2] and [3]
    assert_rows(found, [[0], [0, -0.5], [0, 0, 0], []])


def test_masked_tokens_are_part_of_the_prefix_and_get_nothing():
    group = [
        rollout([1, 7, 3], 1, mask=[True, False, True]),
        rollout([1, 7, 4], 0, mask=[True, False, True]),
        rollout([1, 8, 3], 0, mask=[True, False, True]),
    ]
    assert_rows(advantages("t_spmo", [group]), [[0, 0, 0.5], [0, 0, -0.5], [0, 0, 0]])


def test_a_rollout_ends_with_its_last_unmasked_token():
    masked = [rollout([1, 2], 1), rollout([1, 3], 0), rollout([1, 2, 9], 0, mask=[True, False, False])]
    short = [*masked[:2], rollout([1], 0)]
    assert_rows(advantages("t_spmo", [masked])[:2], advantages("t_spmo", [short])[:2])
    assert advantages("t_spmo", [masked])[2] == [0, 0, 0]
    assert_rows(advantages("t_spmo", [short])[:1], [[0, 2 / 3]])


@settings(max_examples=80, deadline=None)
@given(small_groups(n_ids=2, longest=20))
def test_t_spmo_equals_the_slow_version(groups):
    found = cut(estimate("t_spmo", batch_of(groups)).advantages, groups)
    for group, values in zip(groups, found, strict=True):
        assert_rows([v.tolist() for v in values], slow_t_spmo(group))


def prefixes_of(row):
    last = max((t + 1 for t, m in enumerate(row.mask) if m), default=0)
    return [row.ids[:t] for t in range(last + 1)]


def slow_t_spmo(group):
    rewards = defaultdict(list)
    for row in group:
        for prefix in prefixes_of(row):
            rewards[prefix].append(row.reward)
    out = [[0.0] * len(row.ids) for row in group]
    for row, values in zip(group, out, strict=True):
        for t, prefix in enumerate(prefixes_of(row)[1:]):
            if row.mask[t]:
                values[t] = np.mean(rewards[prefix]) - np.mean(rewards[prefix[:-1]])
    return out


def test_t_spmo_of_long_common_prefixes_equals_the_slow_version():
    random = np.random.default_rng(0)
    stem = random.integers(0, 50, 300).tolist()
    cuts = [0, 15, 16, 17, 31, 32, 47, 48, 49, 100, 299, 300, 300]
    group = [rollout(stem[:c] + random.integers(50, 99, 5).tolist(), i % 3 / 2) for i, c in enumerate(cuts)]
    group += [rollout(stem, 1), rollout(stem[:100], 0), rollout(stem, 0.3)]
    assert_rows(advantages("t_spmo", [group]), slow_t_spmo(group))


def test_the_advantages_of_the_tokens_of_a_prefix_add_up_to_zero():
    random = np.random.default_rng(1)
    # all of one length: none ends before the others
    group = [rollout(random.integers(0, 2, 8).tolist(), random.random()) for _ in range(12)]
    sums = defaultdict(float)
    for row, values in zip(group, advantages("t_spmo", [group]), strict=True):
        for t, a in enumerate(values):
            sums[row.ids[:t]] += a
    assert max(map(abs, sums.values())) < 1e-6
    assert len(sums) > 20


def test_a_prefix_with_one_continuation_gives_exactly_nothing():
    group = [rollout([4, 4, i], r) for i, r in enumerate([0.7, 0.1, 0.7, 0.3])]
    found = advantages("t_spmo", [group])
    assert all(row[:2] == [0, 0] and row[2] for row in found)


def test_identical_rollouts_have_no_advantage_between_them():
    assert advantages("t_spmo", [[rollout([1, 2, 3] * 30, r) for r in (1, 0, 0.5)]]) == [[0] * 90] * 3


# S-GRPO


def kept_of(spec, groups, **fields):
    return [[a != 0 for a in row] for row in advantages(spec, groups, **fields)]


def test_s_grpo_keeps_the_first_tokens_and_a_share_of_the_others():
    random = np.random.default_rng(0)
    groups = [[rollout(random.integers(0, 1000, 2000).tolist(), i % 2) for i in range(16)]]
    kept = np.array(kept_of("s_grpo(alpha=100,cutoff=1500,p=0.3)", groups))
    assert kept[:, :100].all()
    assert not kept[:, 1500:].any()
    share = kept[:, 100:1500].mean()
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / (16 * 1400)))
    agreement = (kept[0, 100:1500] == kept[1, 100:1500]).mean()
    assert agreement == pytest.approx(0.58, abs=0.06), "the masks of two rollouts are independent"
    neighbours = (kept[:, 100:1499] & kept[:, 101:1500]).mean()
    assert neighbours == pytest.approx(0.09, abs=0.01), "and so are neighbouring tokens"


def test_s_grpo_scales_nothing():
    plain = advantages("grpo", P3)
    assert advantages("s_grpo(alpha=0,p=1)", P3) == plain
    assert advantages("s_grpo(alpha=0,p=0)", P3) == [[0] * 3] * 3
    assert advantages("s_grpo(alpha=2,p=0)", P3) == [[a, a, 0] for a, _, _ in plain]
    assert advantages("s_grpo(alpha=3,cutoff=1,p=0)", P3) == plain, "the first tokens are kept whatever the cutoff"


def test_the_mask_of_s_grpo_depends_on_seed_content_and_position_alone():
    random = np.random.default_rng(1)
    rows = [rollout([i, 9, *random.integers(0, 9, 60).tolist()], i % 2) for i in range(4)]
    spec = "s_grpo(alpha=0,p=0.5)"
    found = kept_of(spec, [rows])
    elsewhere = kept_of(spec, [[rollout([5] * 7, 1), rollout([], 0)], [rows[3], rows[1], rollout([2], 0), rows[0]]])
    assert elsewhere[2:] == [found[3], found[1], elsewhere[4], found[0]]
    assert kept_of("s_grpo(alpha=0,p=0.5,seed=1)", [rows]) != found
    swapped = replace(rows[0], ids=(rows[0].ids[1], rows[0].ids[0], *rows[0].ids[2:]))
    assert kept_of(spec, [[swapped, rows[1]]])[0] != found[0]


def test_identical_responses_share_a_mask():
    ids = list(range(50))
    found = kept_of("s_grpo(alpha=0)", [[rollout(ids, 1), rollout(ids, 0)], [rollout(ids, 1), rollout([1], 0)]])
    assert found[0] == found[1] == found[2]
    assert 5 < sum(found[0]) < 35


def test_s_grpo_counts_tokens_without_masked_ones():
    group = [rollout([1, 7, 7, 2, 3], 1, mask=[True, False, False, True, True]), rollout([1], 0)]
    assert kept_of("s_grpo(alpha=2,p=0)", [group]) == [[True, False, False, True, False], [True]]


# The tokens of highest entropy

T2 = [[rollout(range(6), 1), rollout(range(4), 0)]]


def test_entropy_top_of_the_worked_example():
    found = kept_of("entropy_top", T2, entropies=[[0, 0.1, 0.2, 0.3, 0.4, 2.0], [0.5, 0.6, 0.7, 0.8]])
    assert found == [[False] * 5 + [True], [False] * 3 + [True]]
    assert advantages("entropy_top(rho=1)", T2, [[0.1] * 6, [0.2] * 4]) == advantages("dapo", T2)


def test_tokens_at_the_threshold_are_all_kept():
    assert kept_of("entropy_top", T2, entropies=[[0.3] * 6, [0.3] * 4]) == [[True] * 6, [True] * 4]


def test_entropy_top_takes_its_threshold_over_the_groups_of_a_step():
    pair = [rollout([1, 2], 1), rollout([3, 4], 0)]
    entropies = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]]
    one_step = kept_of("entropy_top(rho=0.25)", [pair, pair], entropies=entropies)
    assert one_step == [[False, False]] * 3 + [[True, True]]
    later = [replace(row, step=1) for row in pair]
    two_steps = kept_of("entropy_top(rho=0.25)", [pair, later], entropies=entropies)
    assert two_steps == [[False, False], [False, True]] * 2


def test_entropy_top_leaves_masked_tokens_and_filtered_groups_out_of_its_quantile():
    masked = [rollout([1, 2, 3, 4, 5], 1, mask=[True] * 3 + [False] * 2), rollout([1, 2, 3], 0)]
    right = [rollout([1, 2, 3], 1), rollout([1, 2, 3], 1)]
    entropies = [[0.1, 0.2, 0.3, 9, 9], [0.4, 0.5, 0.6], [9, 9, 9], [9, 9, 9]]
    found = kept_of("entropy_top", [masked, right], entropies=entropies)
    assert found == [[False] * 5, [False, True, True], [False] * 3, [False] * 3]
    # with a base that filters nothing the tokens of the second group take part
    assert not any(map(any, kept_of("entropy_top(base=grpo)", [masked, right], entropies=entropies)))


def test_entropy_top_equals_torchs_quantile_on_drawn_entropies():
    random = np.random.default_rng(4)
    groups = [[rollout(range(int(random.integers(1, 60))), i % 2) for i in range(8)] for _ in range(12)]
    entropies = [random.exponential(0.4, len(row.ids)).tolist() for group in groups for row in group]
    batch = batch_with(groups, entropies)
    for rho in (0.2, 0.05, 0.5):
        found = estimate(f"entropy_top(base=grpo,rho={rho})", batch).advantages != 0
        expected = batch.old_entropy >= torch.quantile(batch.old_entropy, 1 - rho)
        assert torch.equal(found, expected)
