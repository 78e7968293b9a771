"""Evidence from other prompts: the gate against a slow version, its laws, planted units, and a fixed gate."""

import itertools
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.optimize
import scipy.stats
import torch

from ktae_cli.association import compare_within_groups
from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import needs, pools_over_prompts, pools_over_steps, resolve_spec, scope
from ktae_cli.errors import InputError, KtaeError, MissingColumnError
from ktae_cli.estimators._fixed_gate import gated_estimate, read_gate
from ktae_cli.estimators._presence_pool import PresencePool
from ktae_cli.estimators.base import estimate, evidence_of, rollout_advantages
from ktae_cli.mapping import resolve_mapping
from ktae_cli.prompts import prompt_numbers
from ktae_cli.stats.conditional import Strata
from ktae_cli.stats.length_fit import RIDGE, length_basis
from tests.helpers import batch_of, cut, rollout
from tests.rollout_files import ktae, score, tokens_of

N_FOLDS = 5


def drawn(seed: int, n_prompts: int, size: int, n_ids: int, lift: dict[int, float], long=0.0, wild=()) -> GroupBatch:
    """Draw groups of `size`, one or two a prompt; id i is in half of the rollouts, more in right ones by `lift`.

    Wrong rollouts are longer where `long` is above 0; the lift of wild ids changes its sign from group to group. Prompt
    numbers are hashes, as those of files.
    """
    random = np.random.default_rng(seed)
    groups, prompts = [], []
    for prompt in range(n_prompts):
        number = int(random.integers(0, 1 << 62))
        for _ in range(1 + (prompt % 4 == 0)):
            n_right = int(random.integers(1, size))
            rows, turned = [], random.choice([-1, 1], len(wild))
            for place in range(size):
                right = place < n_right
                shares = np.full(n_ids, 0.5)
                shares[list(lift)] += np.array(list(lift.values())) * (1 if right else -1)
                shares[list(wild)] *= 1 + 2 * turned * (0.4 if right else -0.4)
                ids = np.flatnonzero(random.random(n_ids) < shares)
                filler = random.poisson(6 + (0 if right else 6 * long))
                rows.append(rollout([*ids.tolist(), *[n_ids] * (1 + filler)], float(right)))
            groups.append([rows[i] for i in random.permutation(size)])
            prompts += [number] * size
    return batch_of(groups, prompt=torch.tensor(prompts))


SMALL = drawn(0, 50, 6, 8, {0: 0.3, 1: -0.3, 2: 0.15}, long=0.5, wild=(3, 4, 5))
LIFTED = dict.fromkeys(range(10), 0.1) | dict.fromkeys(range(10, 20), -0.1)
"""Units that stand in 60 % of the right and 40 % of the wrong rollouts, or the other way round."""
PLANTED = drawn(1, 256, 8, 120, LIFTED, long=0.2)


def rows_of(batch: GroupBatch) -> list[dict]:
    """Return the rollouts of a batch as plain Python."""
    ends = batch.offsets.tolist()
    return [
        {
            "group": group, "right": right, "ids": set(batch.token_ids[a:b].tolist()), "length": b - a,
            "fold": prompt % N_FOLDS,
        }
        for group, right, prompt, (a, b) in zip(
            batch.group_index.tolist(), batch.correct.tolist(), batch.prompt.tolist(), itertools.pairwise(ends),
            strict=True,
        )
    ]  # fmt: skip


# A slow version: every set of right rollouts of a group is written down, and how likely it is


def laws_of(groups: list[list[dict]], given_length: bool) -> list[list[tuple[float, tuple[int, ...]]]]:
    """Return for each group its possible sets of right rollouts with their probabilities."""
    sets = [list(itertools.combinations(range(len(g)), sum(r["right"] for r in g))) for g in groups]
    if not given_length:
        return [[(1 / len(s), members) for members in s] for s in sets]
    sizes = np.array([len(g) for g in groups])
    strata = Strata(sizes, np.array([sum(r["right"] for r in g) for g in groups]))
    lengths = np.array([r["length"] for g in groups for r in g])
    basis = np.split(length_basis(lengths, np.zeros(len(lengths), bool), strata), np.cumsum(sizes)[:-1])
    nothing = np.zeros(basis[0].shape[1])
    sums = [np.array([sum(b[i] for i in members) for members in s]) for s, b in zip(sets, basis, strict=True)]

    def tilted(slopes):
        for s, x_of_set in zip(sets, sums, strict=True):
            weights = np.exp(x_of_set @ slopes)
            yield list(zip((weights / weights.sum()).tolist(), s, strict=True))

    def covariance(law, b):
        means = [(p, sum(b[i] for i in members)) for p, members in law]
        mean = sum(p * v for p, v in means)
        return sum(p * np.outer(v - mean, v - mean) for p, v in means)

    prior = RIDGE * sum(covariance(law, b) for law, b in zip(tilted(nothing), basis, strict=True))

    observed = [s.index(tuple(i for i, r in enumerate(g) if r["right"])) for s, g in zip(sets, groups, strict=True)]

    group = np.repeat(np.arange(len(sums)), [len(s) for s in sums])
    flat, first = np.concatenate(sums), np.searchsorted(group, np.arange(len(sums)))

    def loss(slopes):
        eta = flat @ slopes
        weights = np.exp(eta)
        total = np.bincount(group, weights)
        expected = np.stack([np.bincount(group, weights * column) for column in flat.T], 1) / total[:, None]
        value = 0.5 * slopes @ prior @ slopes - (eta[first + observed] - np.log(total)).sum()
        return value, prior @ slopes - (flat[first + observed] - expected).sum(0)

    slopes = scipy.optimize.minimize(loss, nothing, jac=True, method="BFGS", options={"gtol": 1e-8})
    laws = list(tilted(slopes.x))
    information = sum(covariance(law, b) for law, b in zip(laws, basis, strict=True))
    return [laws, basis, information]


def slow_evidence(rows: list[dict], fold: int, given_length: bool) -> dict[int, tuple[float, float, float, list]]:
    """Return {id: (q, U, V, [(U, V) of a group])} of the family of a fold, from the groups of the others."""
    by_group = defaultdict(list)
    for row in rows:
        if row["fold"] != fold:
            by_group[row["group"]].append(row)
    groups = [g for g in by_group.values() if 0 < sum(r["right"] for r in g) < len(g)]
    found = laws_of(groups, given_length)
    laws, basis, information = found if given_length else (found, [None] * len(groups), None)
    tests = {}
    for unit in sorted({i for g in groups for r in g for i in r["ids"]}):
        total, expected, variance, cross, cells, law_of_t = 0, 0.0, 0.0, 0.0, [], np.ones(1)
        for g, law, b in zip(groups, laws, basis, strict=True):
            holders = {i for i, r in enumerate(g) if unit in r["ids"]}
            if not 0 < len(holders) < len(g):
                continue
            held = sum(g[i]["right"] for i in holders)
            counts = [(p, len(holders & set(members)), members) for p, members in law]
            mean = sum(p * t for p, t, _ in counts)
            cells.append((held - mean, sum(p * (t - mean) ** 2 for p, t, _ in counts)))
            total, expected, variance = total + held, expected + mean, variance + cells[-1][1]
            if given_length:
                cross = cross + sum(p * (t - mean) * sum(b[i] for i in members) for p, t, members in counts)
            own = np.zeros(len(holders) + 1)
            for p, t, _ in counts:
                own[t] += p
            law_of_t = np.convolve(law_of_t, own)
        if len(cells) < 5:
            continue
        left = variance - (cross @ np.linalg.solve(information, cross) if given_length else 0)
        if variance < 10:
            p = law_of_t[law_of_t <= law_of_t[total] * (1 + 1e-7)].sum()
        else:
            p = scipy.stats.chi2.sf((total - expected) ** 2 / left, 1)
        tests[unit] = (min(p, 1.0), total - expected, left, cells)
    q = scipy.stats.false_discovery_control([p for p, *_ in tests.values()])
    return {unit: (q[k], *values) for k, (unit, (_, *values)) in enumerate(tests.items())}


@pytest.fixture(scope="module", params=[True, False], ids=["given length", "free"])
def slow(request):
    rows = rows_of(SMALL)
    return request.param, [slow_evidence(rows, fold, request.param) for fold in range(N_FOLDS)]


def test_the_evidence_of_a_fold_is_that_of_a_slow_version_on_the_other_folds(slow):
    given_length, expected = slow
    found = PresencePool(SMALL).evidence(given_length)
    rows = zip(found.fold, found.unit, found.q, found.score, found.variance, strict=True)
    by_fold = [{} for _ in range(N_FOLDS)]
    for fold, unit, *values in rows:
        by_fold[fold][unit] = values
    for ours, theirs in zip(by_fold, expected, strict=True):
        assert set(ours) == set(theirs)
        for unit, values in theirs.items():
            assert ours[unit] == pytest.approx(values[:3], rel=2e-5, abs=2e-6)
    for fold, units in enumerate(expected):
        u, v = np.array([values[1:3] for values in units.values()]).T
        assert found.between[fold] == pytest.approx(max(0, ((u**2 / v).sum() - len(u)) / v.sum()), rel=1e-4)
        excess, weight = 0.0, 0.0
        for *_, cells in units.values():
            u, v = np.array(cells).T
            excess += ((u - v * u.sum() / v.sum()) ** 2 / v).sum() - (len(u) - 1)
            weight += v.sum() - (v**2).sum() / v.sum()
        assert found.within[fold] == pytest.approx(max(0, excess / weight), rel=1e-4)
        assert excess > 0
    assert (found.q < 0.05).sum() > 8


def test_gated_weights_are_those_of_the_slow_version(slow):
    given_length, evidence = slow
    length = "" if given_length else ",length=off"
    plain, pooled = (
        estimate(spec, SMALL).columns["key_weight"]
        for spec in (f"ktae(gate=0.05{length})", f"ktae(gate=0.05,size=pooled{length})")
    )
    own = estimate("ktae", SMALL).columns["key_weight"].tolist()
    rows, at = rows_of(SMALL), torch.repeat_interleave(torch.arange(SMALL.n_rollouts), SMALL.lengths).tolist()
    between = PresencePool(SMALL).evidence(given_length).between
    against = 0
    for position, (unit, i) in enumerate(zip(SMALL.token_ids.tolist(), at, strict=True)):
        q, u, v, _ = evidence[rows[i]["fold"]].get(unit, (1.0, 0.0, 0.0, []))
        kept = q < 0.05 and own[position] * u > 0
        against += q < 0.05 and own[position] * u < 0
        assert plain[position].item() == (own[position] if kept else 0)
        tau2 = between[rows[i]["fold"]]
        expected = np.tanh(tau2 * u / (1 + tau2 * v) / 2) if q < 0.05 else 0
        assert pooled[position].item() == pytest.approx(expected, abs=1e-5)
    assert plain.count_nonzero() > 100
    assert pooled.count_nonzero() > plain.count_nonzero()
    assert against > 10


# The laws of evidence


def parts_of(batch: GroupBatch, order: list[int], cuts: int) -> list[GroupBatch]:
    """Return the groups of a batch in another order, and the rollouts within each, as several batches."""
    groups = torch.split(torch.arange(batch.n_rollouts), batch.group_sizes.tolist())
    random = np.random.default_rng(3)
    found = []
    for part in np.array_split(order, cuts):
        rows = [groups[g][torch.from_numpy(random.permutation(len(groups[g])))] for g in part]
        taken = torch.cat(rows)
        tokens = torch.cat([torch.arange(batch.offsets[i], batch.offsets[i + 1]) for i in taken])
        found.append(
            GroupBatch(
                batch.token_ids[tokens], torch.cat([torch.zeros(1, dtype=torch.int64), batch.lengths[taken].cumsum(0)]),
                batch.rewards[taken], batch.correct[taken],
                torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(r) for r in rows])),
                prompt=None if batch.prompt is None else batch.prompt[taken],
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("with_prompts", [True, False])
@pytest.mark.parametrize("given_length", [True, False])
def test_evidence_has_the_same_bits_however_the_input_is_cut_and_ordered(with_prompts, given_length):
    batch = replace(SMALL, prompt=SMALL.prompt if with_prompts else None, memo={})
    expected = PresencePool(batch).evidence(given_length)
    order = np.random.default_rng(0).permutation(batch.n_groups).tolist()
    pools = [PresencePool(part) for part in parts_of(batch, order, 7)]
    merged = pools[3]
    for pool in (*pools[:3], *pools[4:]):
        merged = merged.merge(pool)
    for name, values in vars(expected).items():
        assert np.array_equal(getattr(merged.evidence(given_length), name), values), name
    assert len(expected.q) > 30


def test_the_verdicts_of_a_fold_do_not_move_the_evidence_it_is_judged_by():
    fold = 2
    mine = SMALL.prompt % N_FOLDS == fold
    before = PresencePool(SMALL).evidence(True)
    turned = replace(
        SMALL, correct=torch.where(mine, 1 - SMALL.correct, SMALL.correct),
        rewards=torch.where(mine, 1 - SMALL.rewards, SMALL.rewards), memo={},
    )  # fmt: skip
    after = PresencePool(turned).evidence(True)
    for name in ("unit", "q", "score", "variance"):
        same = np.array_equal(getattr(before, name)[before.fold == fold], getattr(after, name)[after.fold == fold])
        assert same, name
    assert not np.array_equal(before.q[before.fold == 0], after.q[after.fold == 0])


def test_a_prompt_alone_has_no_evidence_and_shifts_nothing():
    groups = [[rollout([1, 2], 1), rollout([1, 3], 0), rollout([2, 3], 1), rollout([3], 0)]] * 8
    batch = batch_of(groups, prompt=torch.full((32,), 7))
    for spec in ("ktae(gate=1)", "ktae(size=pooled)", "ktae(shrink=eb)"):
        assert estimate(spec, batch).columns["key_weight"].count_nonzero() == 0
        assert torch.equal(estimate(spec, batch).advantages, estimate("grpo", batch).advantages)
    assert estimate("ktae", batch).columns["key_weight"].count_nonzero() > 0


def test_a_gate_that_all_pass_leaves_the_weights_that_agree_in_sign():
    found = estimate("ktae(gate=1,length=off)", SMALL)
    own = estimate("ktae", SMALL).columns["key_weight"]
    kept = found.columns["key_weight"]
    assert torch.equal(kept, torch.where(kept != 0, own, 0))
    table = found.tokens()
    assert found.counts["weights"] == int(table["key_weight"].count_nonzero())
    assert 0 < found.counts["against"] < len(table["group"])


def test_shrunken_weights_are_the_posterior_of_the_group_under_the_prior_of_the_others():
    pool = PresencePool(SMALL)
    evidence, fold = pool.evidence(True), pool.folds(SMALL)
    table = estimate("ktae(shrink=eb,top=2)", SMALL).tokens()
    known = {(f, i): (u, v) for f, i, u, v in zip(
        evidence.fold, evidence.unit, evidence.score, evidence.variance, strict=True
    )}  # fmt: skip
    for k in range(0, len(table["group"]), 7):
        f = int(fold[table["group"][k]])
        a, b, n1, n0 = (int(table[name][k]) for name in ("correct_with", "incorrect_with", "n_correct", "n_incorrect"))
        u, v = known.get((f, int(table["token_id"][k])), (0, 0))
        tau2, n = evidence.between[f], n1 + n0
        mean, spread = tau2 * u / (1 + tau2 * v), tau2 / (1 + tau2 * v) + evidence.within[f]
        variance = (a + b) * (n - a - b) * n1 * n0 / (n**2 * (n - 1))
        expected = (mean + spread * (a - (a + b) * n1 / n)) / (1 + spread * variance)
        assert table["key_weight"][k].item() == pytest.approx(2 * np.tanh(expected / 2), rel=1e-9)
    assert evidence.within.max() > 0


def test_left_out_shrunken_weights_are_those_of_the_group_without_the_rollout():
    spec, pool = "ktae(loo=true,shrink=eb)", PresencePool(SMALL)
    held = evidence_of([resolve_spec(spec)], {"ktae": pool})
    batch = replace(SMALL, pooled=held, memo={})
    found = estimate(spec, batch).columns["key_weight"]
    first = int(batch.group_sizes[0])
    for left in range(first):
        kept = [i for i in range(first) if i != left]
        tokens = torch.cat([torch.arange(batch.offsets[i], batch.offsets[i + 1]) for i in kept])
        rest = GroupBatch(
            batch.token_ids[tokens], torch.cat([torch.zeros(1, dtype=torch.int64), batch.lengths[kept].cumsum(0)]),
            batch.rewards[kept], batch.correct[kept], torch.zeros(first - 1, dtype=torch.int64),
            prompt=batch.prompt[kept], pooled=held,
        )  # fmt: skip
        table = estimate("ktae(shrink=eb)", rest).tokens()
        weights = dict(zip(table["token_id"].tolist(), table["key_weight"].tolist(), strict=True))
        span = slice(batch.offsets[left], batch.offsets[left + 1])
        expected = [weights.get(i, 0.0) for i in batch.token_ids[span].tolist()]
        # an id that only this rollout holds has the mean of its prior, which the rest does not show
        shown = [k for k, i in enumerate(batch.token_ids[span].tolist()) if i in weights]
        assert found[span][shown].tolist() == pytest.approx([expected[k] for k in shown], abs=1e-6)


@pytest.mark.parametrize("spec", ["ktae(gate=0.05)", "ktae(gate=0.2,length=off,size=pooled)", "ktae(shrink=eb)"])
def test_swapped_verdicts_negate_weights_from_other_prompts(spec):
    swapped = replace(SMALL, correct=1 - SMALL.correct, memo={})
    found, expected = (estimate(spec, batch).columns["key_weight"] for batch in (swapped, SMALL))
    assert torch.allclose(found, -expected, rtol=0, atol=1e-6)
    assert expected.count_nonzero() > 100


def test_scope_is_batch_where_other_prompts_are_asked_and_steps_play_no_part():
    for text, asks in (("ktae", False), ("ktae(gate=0.1)", True), ("ktae(size=pooled)", True), ("ktae(cap=1)", False)):
        spec = resolve_spec(text)
        assert scope(spec) == ("batch" if asks else "group")
        assert pools_over_prompts(spec) == asks
        assert not pools_over_steps(spec)
    assert pools_over_steps(resolve_spec("ktae(base=reinforce_plus_plus,gate=0.1)"))


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("ktae(gate=1.5)", "gate is a false discovery rate between 0"),
        ("ktae(cap=-0.1)", "cap is a share of the base advantage"),
        ("ktae(shrink=eb,size=pooled)", "choose one of them"),
        ("ktae(length=off)", "length=off is about pooled evidence"),
        ("ktae(loo=true,size=pooled)", "size=pooled takes weights from other prompts"),
        ("ktae(before=10)", "before takes none or outcome or 1 or"),
    ],
)
def test_parameters_that_cannot_be_are_refused(spec, fault):
    with pytest.raises(KtaeError, match=fault):
        estimate(spec, SMALL)


# The shape of the shift


def test_a_centred_shift_sums_to_zero_over_every_rollout():
    groups = [[rollout([1, 2, 2, 9], 1), rollout([2, 3, 9], 0, mask=[True, False, True]), rollout([1, 9], 1, -1)]]
    batch = batch_of(groups)
    plain, centred = (
        cut(estimate(s, batch).columns["key_weight"], groups)[0] for s in ("ktae", "ktae(center=rollout)")
    )
    for row, mask, own in zip(centred, [[1, 1, 1, 1], [1, 0, 1], [1, 1]], plain, strict=True):
        counted = torch.tensor(mask, dtype=torch.bool)
        assert row.sum().item() == pytest.approx(0, abs=1e-6)
        assert torch.allclose(row[counted], own[counted] - own[counted].mean(), atol=1e-6)
        assert (row[~counted] == 0).all()
    assert centred[0].count_nonzero() == 4
    assert (centred[2] == 0).all()


def test_a_cap_keeps_the_shift_below_a_share_of_the_base():
    spec = "ktae(base_scale=0.5,cap=0.25,shift_scale=2)"
    found, own = estimate(spec, SMALL), estimate("ktae", SMALL).columns["key_weight"].double()
    base = 0.5 * torch.repeat_interleave(rollout_advantages("grpo", SMALL), SMALL.lengths)
    shift = 2 * found.columns["key_weight"].double()
    expected = torch.sign(own) * torch.minimum(2 * own.abs(), 0.25 * base.abs())
    assert torch.allclose(shift, expected, atol=1e-6)
    assert torch.allclose(found.advantages.double(), base + shift, atol=1e-6)
    assert ((found.advantages.double() * base) >= 0).all()
    assert (shift.abs() < 2 * own.abs()).sum() > 100


def test_tenths_count_what_is_written_first_and_leave_the_rest_unshifted():
    # 7 unmasked tokens: three tenths are 2.1 of them, so the first three count; 2 tokens: 0.6, the first
    first = [1, 2, 8, 3, 4, 5, 6, 7]
    groups = [[rollout(first, 1, mask=[i != 8 for i in first]), rollout([4, 1], 0), rollout([4, 2], 0)]]
    batch = batch_of(groups)
    found = estimate("ktae(before=3)", batch)
    heads = [[rollout([1, 2, 3], 1), rollout([4], 0), rollout([4], 0)]]
    table = estimate("ktae", batch_of(heads)).tokens()
    weights = dict(zip(table["token_id"].tolist(), table["key_weight"].tolist(), strict=True))
    rows = cut(found.columns["key_weight"], groups)[0]
    assert rows[0].tolist() == pytest.approx([weights[1], weights[2], 0, weights[3], 0, 0, 0, 0])
    assert rows[1].tolist() == pytest.approx([weights[4], 0])
    assert weights[1] > 0 > weights[4]
    base = batch.spread(rollout_advantages("grpo", batch))
    assert torch.equal(found.advantages, base + found.columns["key_weight"])


def test_before_the_outcome_nothing_behind_it_counts_or_shifts():
    groups = [[rollout([1, 2, 3, 4], 1), rollout([2, 5, 4], 0), rollout([1, 4], 1)]]
    before = torch.tensor([1, 1, 1, 0, 1, 0, 0, 1, 1], dtype=torch.bool)
    batch = batch_of(groups, before_outcome=before)
    weights = estimate("ktae(before=outcome)", batch).columns["key_weight"]
    heads = [[rollout([1, 2, 3], 1), rollout([2], 0), rollout([1, 4], 1)]]
    expected = estimate("ktae", batch_of(heads)).columns["key_weight"]
    assert torch.equal(weights[before], expected)
    assert (weights[~before] == 0).all()
    assert needs(resolve_spec("ktae(before=outcome)")) == ("response_ids", "reward", "response")
    with pytest.raises(MissingColumnError, match="needs response"):
        estimate("ktae(before=outcome)", batch_of(groups))


# Planted units, and none


def within_prompt_auc(batch: GroupBatch, spec: str) -> tuple[float, float, float]:
    """Return the AUC of a rollout's mean shift for its verdict within groups, with a 95 % interval over prompts."""
    shift = estimate(spec, batch).columns["key_weight"].double()
    at = torch.repeat_interleave(torch.arange(batch.n_rollouts), batch.lengths)
    mean = (torch.zeros(batch.n_rollouts, dtype=torch.float64).index_add_(0, at, shift) / batch.lengths).numpy()
    right, group = batch.correct.numpy() == 1, batch.group_index.numpy()
    prompt = np.unique(batch.prompt.numpy(), return_inverse=True)[1]
    sums = np.zeros((prompt.max() + 1, 2))
    for p in range(len(sums)):
        rows = prompt == p
        found = compare_within_groups(mean[rows], right[rows], group[rows])
        sums[p] = found.wins, found.pairs
    random = np.random.default_rng(0)
    resampled = sums[random.integers(0, len(sums), (2000, len(sums)))].sum(1)
    low, high = np.quantile(resampled[:, 0] / resampled[:, 1], [0.025, 0.975])
    return sums[:, 0].sum() / sums[:, 1].sum(), low, high


def shuffled(batch: GroupBatch, seed: int) -> GroupBatch:
    """Return the batch with labels shuffled inside groups."""
    random, order = np.random.default_rng(seed), np.arange(batch.n_rollouts)
    group = batch.group_index.numpy()
    order = torch.from_numpy(order[np.lexsort((random.random(len(order)), group))])
    return replace(batch, correct=batch.correct[order], rewards=batch.rewards[order], memo={})


def test_planted_units_pass_and_predict_verdicts_of_prompts_that_did_not_choose_them():
    evidence = PresencePool(PLANTED).evidence(True)
    passes = evidence.q < 0.05
    planted = np.isin(evidence.unit, list(LIFTED))
    up = np.isin(evidence.unit, [unit for unit, lift in LIFTED.items() if lift > 0])
    assert passes[planted].mean() >= 0.8
    assert passes[~planted].mean() < 0.02
    assert np.array_equal(evidence.score[passes & planted] > 0, up[passes & planted])
    for spec in ("ktae(gate=0.05,size=pooled)", "ktae(gate=0.05)"):
        table = estimate(spec, PLANTED).tokens()
        shifted = set(table["token_id"][table["key_weight"] != 0].tolist())
        assert len(shifted & set(LIFTED)) >= 16
    auc, low, _ = within_prompt_auc(PLANTED, "ktae(gate=0.05,size=pooled)")
    assert low > 0.5
    assert auc > 0.6


def test_without_planted_units_nothing_predicts_held_out_verdicts():
    null = shuffled(PLANTED, 5)
    assert (PresencePool(null).evidence(True).q < 0.05).mean() < 0.01
    # without a gate every id of the family has its say, and it says nothing
    _, low, high = within_prompt_auc(null, "ktae(length=off,size=pooled)")
    assert low <= 0.5 <= high


def test_a_gate_held_fixed_lets_less_of_the_shift_survive_a_shuffle_of_the_labels():
    specs = [resolve_spec(text) for text in ("ktae", "ktae(gate=0.05)")]
    held = evidence_of(specs, {"ktae": PresencePool(PLANTED)})
    mean = {
        labels: [estimate(s, replace(batch, pooled=held, memo={})).columns["key_weight"].abs().mean() for s in specs]
        for labels, batch in (("own", PLANTED), ("shuffled", shuffled(PLANTED, 6)))
    }
    share = [after / before for before, after in zip(mean["own"], mean["shuffled"], strict=True)]
    assert share[0] > 0.9
    assert share[1] < share[0] - 0.05


# A gate from a table


def table_of(path, **columns):
    base = {
        "unit": ["a", "b", "c", "d", "e"], "token_id": pa.array([5, 1, 2, 9, None], pa.int32()),
        "q_value": [0.001, 0.9, 0.04, 0.01, 0.0], "q_given_length": [0.01, 0.9, 0.5, 0.02, 0.0],
        "odds_ratio": [2.0, 1.0, 3.0, float("inf"), 9.0], "ci_low": [1.5, 0.8, 1.1, None, 4.0],
        "ci_high": [8 / 3, 1.25, 9 / 1.1, None, 20.0], "heterogeneity": [0.1, None, 0.3, 0.0, 1.0],
    }  # fmt: skip
    pq.write_table(pa.table({k: v for k, v in (base | columns).items() if v is not None}), path)
    return path


def test_a_table_of_tokens_becomes_a_gate(tmp_path):
    gate = read_gate(table_of(tmp_path / "tokens.parquet"))
    assert gate.ids().token_id.tolist() == [5, 9]
    assert gate.ids(0.05, given_length=False).token_id.tolist() == [2, 5, 9]
    assert gate.ids().sign.tolist() == [1, 1]
    v = (2 * 1.959963985 / np.log(8 / 3 / 1.5)) ** 2
    w = (2 * 1.959963985 / np.log(1.25 / 0.8)) ** 2
    x = (2 * 1.959963985 / np.log(9 / 1.21)) ** 2
    tau2 = ((v * np.log(2) ** 2 + x * np.log(3) ** 2) - 3) / (v + w + x)
    assert gate.ids().log_odds == pytest.approx([tau2 * v * np.log(2) / (1 + tau2 * v), 0], rel=1e-6)
    groups = [[rollout([5, 9, 2], 1), rollout([1, 2], 0), rollout([5], 0)], [rollout([9], 0), rollout([2], 1)]]
    batch = batch_of(groups)
    found = gated_estimate("ktae(gate=0.05)", batch, gate)
    own = estimate("ktae", batch).columns["key_weight"]
    kept = torch.isin(batch.token_ids, torch.tensor([5, 9])) & (own > 0)
    assert torch.equal(found.columns["key_weight"], torch.where(kept, own, 0))
    assert found.counts == {"weights": 2, "against": 1}
    pooled = gated_estimate("ktae(base=reinforce_plus_plus,gate=0.05,size=pooled)", batch, gate)
    assert pooled.columns["key_weight"][:3].tolist() == pytest.approx([np.tanh(gate.ids().log_odds[0] / 2), 0, 0])


def test_a_table_that_is_no_gate_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    for columns, fault in (
        ({"ci_low": None}, "no column ci_low; a gate is read from what `ktae tokens` writes"),
        ({"token_id": pa.nulls(5, pa.int32())}, "no unit is a token"),
        ({"token_id": pa.array([5, 5, 2, 9, 1], pa.int32())}, "a token id stands in several rows"),
    ):
        with pytest.raises(InputError, match=fault):
            read_gate(table_of(path, **columns))
    path.write_text("no table")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_gate(path)
    with pytest.raises(KtaeError, match="takes no evidence"):
        gated_estimate("ktae", SMALL, read_gate(table_of(tmp_path / "u.parquet")))


# Through files


def in_rows(batch: GroupBatch) -> pa.Table:
    """Return a batch as rows of a file: groups of one prompt at several steps."""
    ends = itertools.pairwise(batch.offsets.tolist())
    group = batch.group_index.tolist()
    return pa.table(
        {
            "group_id": [f"g{g}" for g in group], "step": group,
            "prompt_ids": [[p >> 31, p & (2**31 - 1)] for p in batch.prompt.tolist()],
            "response_ids": [batch.token_ids[a:b].tolist() for a, b in ends],
            "reward": batch.rewards.tolist(), "finish_reason": ["stop"] * batch.n_rollouts,
        }
    )  # fmt: skip


def test_files_are_scored_with_evidence_of_all_their_prompts_and_the_summary_says_how_much(tmp_path, capsys):
    rows = in_rows(SMALL)
    found = score(tmp_path, rows, "-e", "ktae(gate=0.05)", "-e", "ktae(gate=0.3,size=pooled)")
    said = capsys.readouterr().err
    numbers = prompt_numbers(rows.combine_chunks().to_batches()[0], resolve_mapping(rows.schema, {}, []), str)
    counts = estimate("ktae(gate=0.05)", replace(SMALL, prompt=torch.from_numpy(numbers), memo={})).counts
    assert re.search(
        r"ktae\(gate=0\.05\): \d to \d of 8 ids tested in each of 5 folds of prompts pass, beyond length; "
        rf"{counts['weights']} \(group, id\) have weight, {counts['against']} have none because",
        said,
    )
    shuffled_rows = np.random.default_rng(0).permutation(len(rows))
    again = score(tmp_path, rows.take(shuffled_rows), "-e", "ktae(gate=0.05)", "-e", "ktae(gate=0.3,size=pooled)")
    for name in ("key_weight", "adv_ktae__gate_0p05", "adv_ktae__gate_0p3__size_pooled"):
        assert again[name].combine_chunks().equals(found[name].combine_chunks().take(pa.array(shuffled_rows)))
    assert np.count_nonzero(found["key_weight"].combine_chunks().flatten()) > 100
    assert "ktae(gate=0.05)" in tokens_of(tmp_path)["spec"].unique().to_pylist()
    assert "step" not in said


def test_text_before_the_outcome_comes_from_the_stored_tokens(tmp_path, capsys):
    right = ["so", " 1", "+1", ".", " The answer is", " 2", "."]
    wrong = ["hm", ".", " The answer is", " 3", "."]
    rows = pa.table(
        {
            "group_id": ["a"] * 2, "response_ids": [[1, 2, 3, 4, 5, 6, 4], [7, 4, 5, 8, 4]],
            "response_tokens": [right, wrong], "reward": [1.0, 0.0],
        }
    )  # fmt: skip
    found = score(tmp_path, rows, "-e", "ktae(before=outcome)")["key_weight"].to_pylist()
    assert [value != 0 for value in found[0]] == [True, True, True, False, False, False, False]
    assert [value != 0 for value in found[1]] == [True, False, False, False, False]
    bare = tmp_path / "bare.parquet"
    pq.write_table(rows.drop_columns("response_tokens"), bare)
    assert ktae("score", bare, "-e", "ktae(before=outcome)", "-o", tmp_path / "no.parquet") == 2
    assert "needs response" in capsys.readouterr().err
