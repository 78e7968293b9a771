"""Ratio methods: published vectors, autograd of each method's own loss written plainly, and what ties them together."""

import math
import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from ktae_cli.catalogue import declaration
from ktae_cli.errors import KtaeError, MissingColumnError
from ktae_cli.estimators import cdpo
from ktae_cli.estimators.base import estimate, rollout_advantages
from ktae_cli.spans import marks_of_texts
from tests.helpers import batch_of, cut, draw_groups, rollout

OLD, NEW = [0.5, 0.25, 0.8, 0.1], [0.6, 0.2, 0.8, 0.3]
S = (1.2 * 0.8 * 3) ** 0.25
EVERYTHING = ("old_log_probs", "log_probs", "ref_log_probs", "old_entropy", "entropy", "response_tokens")
METHODS = ("gspo", "gmpo", "tepo", "sspo", "dhpo", "cispo", "sapo")


def logs(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).log().to(torch.float32)


def pair(old=OLD, new=NEW, **fields):
    """Build one group of two rollouts of the same tokens: the first has advantage 1 under dr_grpo, the second -1."""
    group = [rollout(range(len(old)), reward) for reward in (1, -1)]
    columns = {"old_log_probs": logs(old * 2), "log_probs": logs(new * 2)}
    return batch_of([group], **(columns | fields))


def halves(values: torch.Tensor) -> tuple[list[float], list[float]]:
    values = values.tolist()
    return values[: len(values) // 2], values[len(values) // 2 :]


def with_argument(spec: str, argument: str) -> str:
    return spec.replace("(", f"({argument},", 1) if "(" in spec else f"{spec}({argument})"


def with_base(spec: str) -> str:
    return with_argument(spec, "base=dr_grpo")


ROOT96, CUBE96 = 0.96**0.5, 0.96 ** (1 / 3)
FALL = {"old_entropy": torch.tensor([0.5, 0.2, 0.9, 0.3] * 2), "entropy": torch.tensor([0.4, 0.3, 0.9, 0.1] * 2)}


@pytest.mark.parametrize(
    ("spec", "ratios", "good", "bad"),
    [
        ("gspo", ([S] * 4, [S] * 4), [0] * 4, [-S] * 4),
        ("gspo(eps_high=0.31)", ([S] * 4, [S] * 4), [S] * 4, [-S] * 4),
        ("gmpo", ([1.093949] * 4, [1.302711] * 4), [0.273487] * 3 + [0], [-0.325678] * 4),
        ("gmpo(clip=none)", ([S] * 4, [S] * 4), [S / 4] * 4, [-S / 4] * 4),
        ("gmpo(clip=sequence)", ([math.exp(0.1)] * 4, [S] * 4), [0] * 4, [-S / 4] * 4),
        ("gmpo(eps_low=0.1)", ([1.093949] * 4, [(1.2 * math.exp(-0.1) * 3) ** 0.25] * 4), [0.273487] * 3 + [0], None),
        ("tepo", ([S] * 4, [S] * 4), [0] * 4, [-S] * 4),
        ("tepo(eps_high=0.31)", ([S] * 4, [S] * 4), [S] * 4, [-S] * 4),
        (
            "tepo(link=prefix)",
            ([1.2, 0.96, 0.96, 2.88],) * 2,
            [3.12, 1.92, 0.96, 0],
            [-6, -4.8, -3.84, -2.88],
        ),
        (
            "tepo(link=prefix_mean)",
            ([1.2, ROOT96, CUBE96, S],) * 2,
            [1.2 + ROOT96 / 2 + CUBE96 / 3, ROOT96 / 2 + CUBE96 / 3, CUBE96 / 3, 0],
            [-x - S / 4 for x in (1.2 + ROOT96 / 2 + CUBE96 / 3, ROOT96 / 2 + CUBE96 / 3, CUBE96 / 3, 0)],
        ),
        (
            "sspo(delimiters=none,ids=1)",
            ([0.979796, 0.979796, 1.732051, 1.732051],) * 2,
            [0.979796, 0.979796, 0, 0],
            [-0.979796, -0.979796, -1.732051, -1.732051],
        ),
        ("sspo(delimiters=token,eps_low=0.2001)", ([1.2, 0.8, 1, 3],) * 2, [1.2, 0.8, 1, 0], [-1.2, -0.8, -1, -3]),
        (
            "dhpo(token_low=0.2001)",
            ([1.1002, 0.9002, 1.0002, 1.1402], [(r + S) / 2 for r in (1.2, 0.8, 1, 3)]),
            [0.6, 0.4, 0.5, 0],
            [-(r + S) / 2 for r in (1.2, 0.8, 1, 3)],
        ),
        (
            "dhpo(token_low=0.2001,weight=1)",
            ([1.2, 0.8, 1, 1.28], [1.2, 0.8, 1, 3]),
            [1.2, 0.8, 1, 0],
            [-1.2, -0.8, -1, -3],
        ),
        ("dhpo(weight=0)", ([1.0004] * 4, [S] * 4), [0] * 4, [-S] * 4),
        ("cispo", ([1.2, 0.8, 1, 3],) * 2, [1.2, 0.8, 1, 1.28], [-1.2, -0.8, -1, -1.28]),
        ("cispo(eps_low=0.1)", ([1.2, 0.8, 1, 3],) * 2, [1.2, 0.9, 1, 1.28], [-1.2, -0.9, -1, -1.28]),
        ("cispo(cap=absolute)", ([1.2, 0.8, 1, 3],) * 2, [1.2, 0.8, 1, 3], [-1.2, -0.8, -1, -3]),
        ("cispo(cap=absolute,eps_max=1.1)", ([1.2, 0.8, 1, 3],) * 2, [1.1, 0.8, 1, 1.1], [-1.1, -0.8, -1, -1.1]),
        (
            "sapo",
            ([1.2, 0.8, 1, 3],) * 2,
            [1.188080, 0.792053, 1, 1.259923],
            [-1.186867, -0.791244, -1, -1.166336],
        ),
    ],
)
def test_ratios_and_gradient_weights_of_the_published_vector(spec, ratios, good, bad):
    found = estimate(with_base(spec), pair(**FALL))
    assert found.advantages.tolist() == [1] * 4 + [-1] * 4
    for values, expected in zip(halves(found.columns["ratio"]), ratios, strict=True):
        assert values == pytest.approx(expected, abs=1e-6)
    for values, expected in zip(halves(found.columns["grad_weight"]), (good, bad), strict=True):
        assert expected is None or values == pytest.approx(expected, abs=1e-6)
    assert found.columns["mask"].tolist() == (found.columns["grad_weight"] != 0).tolist()


def test_entropy_mixing_gives_uncertain_tokens_their_own_ratio():
    found = estimate(with_base("dhpo(mix=entropy)"), pair(**FALL))
    share = [3 / 7, 0, 1, 1 / 7]  # of H = .5, .2, .9, .3
    token, sequence = [1.2, 0.8, 1, 1.28], 1.0004
    expected = [w * r + (1 - w) * sequence for w, r in zip(share, token, strict=True)]
    assert halves(found.columns["ratio"])[0] == pytest.approx(expected, abs=1e-6)
    assert halves(found.columns["grad_weight"])[0] == pytest.approx([3 / 7 * 1.2, 0, 1, 0], abs=1e-6)
    assert halves(found.columns["mask"])[0] == [True, False, True, False]
    level = estimate(with_base("dhpo(mix=entropy,weight=0.25)"), pair(old_entropy=torch.full((8,), 0.4)))
    assert torch.equal(level.columns["ratio"], estimate(with_base("dhpo(weight=0.25)"), pair()).columns["ratio"])


def test_entropy_widens_and_narrows_the_bounds_of_a_span():
    # spans {0,1}, {2,3}: mean entropies .35 and .6 of .475, factors .736842 and 1.263158; ratios .979796 and 1.732051
    spec = "sspo(delimiters=none,ids=1,bounds=entropy,eps_low={},eps_high={})"
    for low, high, good, bad in (
        (0.03, 0.57, False, True),  # 1 + .57 * 1.263158 = 1.72 clips 1.732; 1 - .03 * .736842 = .9779 leaves .9798
        (0.025, 0.58, True, False),  # 1 - .025 would leave it: the span's bounds are narrower
    ):
        found = estimate(with_base(spec.format(low, high)), pair(**FALL)).columns["mask"]
        assert found.tolist() == [True, True, good, good, bad, bad, True, True]
    held = "sspo(delimiters=none,ids=1,bounds=entropy,widest=1,eps_low=0.03,eps_high=0.6)"
    fixed = estimate(with_base(held.replace(",bounds=entropy,widest=1", "")), pair(**FALL))
    assert torch.equal(estimate(with_base(held), pair(**FALL)).columns["mask"], fixed.columns["mask"])


def test_sentences_of_the_text_share_a_ratio():
    marks = torch.from_numpy(marks_of_texts(["No", ".", " Yes", "."] * 2))
    found = estimate("sspo", pair(text_marks=marks)).columns["ratio"]
    assert found.tolist() == pytest.approx([0.979796, 0.979796, 1.732051, 1.732051] * 2, abs=1e-6)


def test_tepo_masks_falling_entropy_of_good_responses():
    found = estimate(with_base("tepo"), pair(**FALL))
    assert found.columns["kl_mask"].tolist() == [True, False, False, True] + [False] * 4
    k3 = [math.exp(-d) + d - 1 for d in map(math.log, (1.2, 0.8, 1, 3))]
    assert halves(found.columns["kl"])[1] == pytest.approx(k3, abs=1e-6)


def test_tepo_adds_the_slope_of_the_masked_kl():
    plain, held = (estimate(with_base(s), pair(**FALL)) for s in ("tepo", "tepo(beta=0.5)"))
    change = held.columns["grad_weight"] - plain.columns["grad_weight"]
    # beta (pi_ref / pi - 1) at the two masked tokens
    expected = [0.5 * (1 / 1.2 - 1), 0, 0, 0.5 * (1 / 3 - 1), 0, 0, 0, 0]
    assert change.tolist() == pytest.approx(expected, abs=1e-6)
    reference = logs([0.5, 0.5, 0.5, 0.9] * 2)
    found = estimate(with_base("tepo(beta=0.5,reference=ref)"), pair(**FALL, ref_log_probs=reference))
    change = found.columns["grad_weight"] - plain.columns["grad_weight"]
    assert halves(change)[0] == pytest.approx([0.5 * (0.5 / 0.6 - 1), 0, 0, 0.5 * (0.9 / 0.3 - 1)], abs=1e-6)
    assert halves(found.columns["kl"])[0][3] == pytest.approx(3 - math.log(3) - 1, abs=1e-6)


def test_a_kl_beyond_its_bound_has_no_slope():
    # e = log pi_ref - log pi of 2, 3, -12 and 400: k3 is 4.4 and three times above 10
    errors = torch.tensor([2.0, 3.0, -12.0, 400.0] * 2)
    fields = FALL | {"ref_log_probs": logs(NEW * 2) + errors, "entropy": torch.zeros(8)}
    plain, held = (estimate(with_base(f"tepo(beta={b},reference=ref)"), pair(**fields)).columns for b in (0, 1))
    assert halves(held["kl"])[0] == pytest.approx([math.exp(2) - 3, 10, 10, 10], rel=1e-6)
    change = held["grad_weight"] - plain["grad_weight"]
    assert halves(change)[0] == pytest.approx([math.exp(2) - 1, 0, 0, 0], rel=1e-6)


# Autograd of each method's own loss, by the formula's text. A loss is terms(lp, old, advantage, row) -> (n,) tensor.


def ppo(ratio, advantage, low, high):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def sequence_terms(low, high):
    return lambda lp, old, a, row: ppo((lp - old).mean().exp().repeat(len(lp)), a, low, high)


def token_form(lp, old):
    return (lp - lp.detach() + (lp - old).mean().detach()).exp()


def prefix_terms(low, high, mean):
    def terms(lp, old, a, row):
        sums = [(lp - old)[: t + 1].sum() / (t + 1 if mean else 1) for t in range(len(lp))]
        return ppo(torch.stack(sums).exp(), a, low, high)

    return terms


def geometric_terms(clip, low=0.4, high=0.4):
    def terms(lp, old, a, row):
        d, sign = lp - old, math.copysign(1, a)
        if clip == "token":
            d = sign * torch.minimum(sign * d, sign * d.clamp(-low, high))
        if clip == "sequence":
            total = sign * torch.minimum(sign * d.sum(), sign * d.sum().clamp(-low, high))
            d = (total / len(lp)).repeat(len(lp))
        return a * d.mean().exp().reshape(1)

    return terms


def span_terms(ends, low, high, entropy=False):
    def terms(lp, old, a, row):
        found, start = [], 0
        places = ends(row)
        for end in [*places, len(lp)]:
            if end > start:
                width = 1.0
                if entropy:
                    width = float(row["old_entropy"][start:end].mean() / row["old_entropy"].mean())
                    width = min(max(width, 0.5), 2.0)
                ratio = (lp - old)[start:end].mean().exp().repeat(end - start)
                found.append(ppo(ratio, a, low * width, high * width))
            start = end
        return torch.cat(found)

    return terms


def mixed_terms(share, token=(0.2, 0.28), sequence=(3e-4, 4e-4)):
    def terms(lp, old, a, row):
        w = share(row)
        return w * ppo((lp - old).exp(), a, *token) + (1 - w) * ppo(token_form(lp, old), a, *sequence)

    return terms


def entropy_share(row):
    h = row["old_entropy"]
    return (h - h.min()) / (h.max() - h.min()) if h.max() > h.min() else torch.full_like(h, 0.5)


def cispo_terms(low, high):
    return lambda lp, old, a, row: (lp - old).exp().clamp(low, high).detach() * a * lp


def sapo_terms(positive, negative):
    def terms(lp, old, a, row):
        tau = positive if a > 0 else negative
        return a * 4 / tau * torch.sigmoid(tau * ((lp - old).exp() - 1))

    return terms


def with_kl(inner, beta, reference):
    def terms(lp, old, a, row):
        e = row[reference] - lp
        kept = (a > 0) & (row["entropy"] < row["old_entropy"])
        return inner(lp, old, a, row) - beta * kept * (e.exp() - e - 1)

    return terms


def after_id(token):
    """Return how many unmasked tokens stand up to each token of an id, masked ones included."""
    return lambda facts: [sum(facts["row"].mask[: at + 1]) for at, i in enumerate(facts["row"].ids) if i == token]


LOSSES = {
    "gspo": sequence_terms(3e-4, 4e-4),
    "gspo(eps_low=0.1,eps_high=0.1)": sequence_terms(0.1, 0.1),
    "gmpo": geometric_terms("token"),
    "gmpo(eps_high=0.1,eps_low=0.2)": geometric_terms("token", 0.2, 0.1),
    "gmpo(clip=none)": geometric_terms("none"),
    "gmpo(clip=sequence)": geometric_terms("sequence"),
    "tepo(eps_low=0.1,eps_high=0.1)": sequence_terms(0.1, 0.1),
    "tepo(link=prefix)": prefix_terms(0.2, 0.28, False),
    "tepo(link=prefix_mean)": prefix_terms(0.2, 0.28, True),
    "tepo(beta=0.3)": with_kl(sequence_terms(0.2, 0.28), 0.3, "old_log_probs"),
    "tepo(beta=2,link=prefix,reference=ref)": with_kl(prefix_terms(0.2, 0.28, False), 2, "ref_log_probs"),
    "sspo(delimiters=none)": sequence_terms(0.2, 0.28),
    "sspo(delimiters=token)": span_terms(lambda facts: range(1, sum(facts["row"].mask)), 0.2, 0.28),
    "sspo(delimiters=none,ids=3)": span_terms(after_id(3), 0.2, 0.28),
    "sspo(bounds=entropy,delimiters=none,ids=3)": span_terms(after_id(3), 0.2, 0.28, True),
    "dhpo": mixed_terms(lambda row: 0.5),
    "dhpo(weight=0.8,token_low=0.1,sequence_high=0.1)": mixed_terms(lambda row: 0.8, (0.1, 0.28), (3e-4, 0.1)),
    "dhpo(mix=entropy)": mixed_terms(entropy_share),
    "cispo": cispo_terms(0.8, 1.28),
    "cispo(cap=absolute,eps_max=1.4)": cispo_terms(0, 1.4),
    "sapo": sapo_terms(1.0, 1.05),
    "sapo(tau_neg=3,tau_pos=2)": sapo_terms(2, 3),
}
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "dr_grpo")


def slow_gradients(loss, groups, batch, base, aggregation) -> torch.Tensor:
    """Differentiate the aggregated objective with respect to log_probs (n_tokens,) float64."""
    log_probs = batch.log_probs.double().requires_grad_()
    columns = {name: getattr(batch, name) for name in EVERYTHING[:-1]}
    rows, start = [], 0
    for advantage, row in zip(rollout_advantages(base, batch).tolist(), chain(*groups), strict=True):
        kept = start + torch.tensor(row.mask, dtype=torch.bool).nonzero()[:, 0]
        start += len(row.ids)
        if len(kept):
            facts = {name: values.double()[kept] for name, values in columns.items()}
            facts["row"] = row
            terms = loss(log_probs[kept], facts["old_log_probs"], torch.tensor(advantage, dtype=torch.float64), facts)
            rows.append((terms, len(kept)))
    longest = max(len(row.ids) for group in groups for row in group)
    weight = {
        "token_mean": lambda n: 1 / sum(n for _, n in rows),
        "seq_mean_token_mean": lambda n: 1 / (len(rows) * n),
        "seq_mean_token_sum": lambda n: 1 / len(rows),
        "dr_grpo": lambda n: 1 / (len(rows) * longest),
    }[aggregation]
    sum(weight(n) * terms.sum() for terms, n in rows).backward()
    return log_probs.grad


def one_step(groups):
    return [[replace(row, step=0) for row in group] for group in groups]


@pytest.mark.parametrize(("base", "seed"), [("grpo", 0), ("rloo", 1)])
@pytest.mark.parametrize("spec", LOSSES)
def test_gradient_weight_times_loss_weight_is_autograd_of_the_loss(spec, base, seed):
    groups = one_step(draw_groups(seed, n_groups=4))
    batch = batch_of(groups, EVERYTHING)
    for aggregation in ["seq_mean_token_sum"] if spec.startswith("gmpo") else AGGREGATIONS:
        found = estimate(with_argument(with_argument(spec, f"base={base}"), f"aggregation={aggregation}"), batch)
        gradient = slow_gradients(LOSSES[spec], groups, batch, base, aggregation)
        product = found.columns["grad_weight"].double() * found.columns["loss_weight"]
        assert product.tolist() == pytest.approx(gradient.tolist(), rel=1e-6, abs=1e-7)
        assert product.count_nonzero() > 5
        assert torch.equal(found.advantages, batch.spread(rollout_advantages(base, batch)))
        if "beta" not in spec:
            flows = found.columns["mask"] & (found.advantages != 0)
            assert torch.equal(flows, gradient != 0)


# What ties the methods together


def weights(spec, batch) -> torch.Tensor:
    return estimate(spec, batch).columns["grad_weight"]


@pytest.mark.parametrize("seed", range(3))
def test_tepo_of_the_sequence_without_kl_is_gspo_at_equal_bounds(seed):
    batch = batch_of(draw_groups(seed), EVERYTHING)
    for bounds in ("eps_low=0.0003,eps_high=0.0004", "eps_low=0.2,eps_high=0.28"):
        tepo, gspo = (estimate(f"{name}({bounds},aggregation=token_mean)", batch).columns for name in ("tepo", "gspo"))
        for name in ("ratio", "mask", "grad_weight", "loss_weight"):
            assert torch.equal(tepo[name], gspo[name])
        assert gspo["grad_weight"].count_nonzero() > 0


@pytest.mark.parametrize("seed", range(3))
def test_one_span_a_rollout_is_gspo_and_one_token_a_span_is_ppo(seed):
    groups = draw_groups(seed)
    batch = batch_of(groups, EVERYTHING)
    bounds = "eps_low=0.05,eps_high=0.1"
    whole, gspo = (estimate(f"{name}{bounds})", batch).columns for name in ("sspo(delimiters=none,", "gspo("))
    wide = estimate(f"sspo(bounds=entropy,delimiters=none,{bounds})", batch).columns
    for name in ("ratio", "mask", "grad_weight"):
        assert torch.equal(whole[name], gspo[name])
        assert torch.equal(wide[name], gspo[name])
    tokens = estimate("sspo(delimiters=token)", batch).columns
    ppo_only = estimate("dhpo(weight=1)", batch).columns
    assert torch.allclose(tokens["grad_weight"], ppo_only["grad_weight"], rtol=1e-6)
    assert torch.equal(tokens["mask"], ppo_only["mask"])
    ratio = (batch.log_probs.double() - batch.old_log_probs.double()).exp()
    assert torch.allclose(tokens["ratio"], torch.where(batch.response_mask, ratio, 0).float(), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_sequence_branch_of_dhpo_alone_is_gspo(seed):
    batch = batch_of(draw_groups(seed), EVERYTHING)
    dhpo, gspo = (estimate(spec, batch).columns for spec in ("dhpo(weight=0)", "gspo"))
    assert torch.equal(dhpo["grad_weight"], gspo["grad_weight"])
    assert torch.equal(dhpo["mask"], gspo["mask"])


def test_responses_of_one_token_have_one_ratio():
    groups = [[rollout([i], i % 2, seed=i) for i in range(8)]]
    batch = batch_of(groups, EVERYTHING)
    expected = (batch.log_probs.double() - batch.old_log_probs.double()).exp().float()
    for spec in (
        "gspo",
        "gmpo(clip=none)",
        "tepo",
        "tepo(link=prefix)",
        "tepo(link=prefix_mean)",
        "sspo",
        "cispo",
        "sapo",
    ):
        assert torch.allclose(estimate(spec, batch).columns["ratio"], expected, rtol=1e-6), spec
    wide = "(eps_low=1,eps_high=100)"
    for name in ("tepo", "sspo"):
        assert torch.allclose(weights(name + wide, batch), weights("gspo" + wide, batch), rtol=1e-6)
    assert torch.allclose(weights("gmpo(clip=none)", batch), weights("gspo" + wide, batch), rtol=1e-6)


@pytest.mark.parametrize("spec", [*METHODS, *LOSSES])
@pytest.mark.parametrize("seed", range(2))
def test_equal_policies_leave_each_method_at_its_base(spec, seed):
    groups = draw_groups(seed)
    batch = batch_of(groups, EVERYTHING)
    batch = replace(batch, log_probs=batch.old_log_probs.clone())
    spec = re.sub(r",?reference=ref|beta=[\d.]+,?", "", spec).replace("()", "")
    found = estimate(spec, batch)
    advantages = batch.spread(rollout_advantages("grpo", batch))
    length = batch.spread(batch.counted_lengths)
    expected = advantages / length.clamp(min=1) if spec.startswith("gmpo") else advantages
    if "prefix" in spec:
        later = torch.cat([values for group in cut(advantages, groups) for values in _tails(spec, group, batch)])
        expected = torch.where(batch.response_mask, later, 0)
    assert torch.equal(found.advantages, advantages)
    assert torch.equal(found.columns["ratio"], batch.response_mask.float())
    assert torch.equal(found.columns["mask"], batch.response_mask)
    assert torch.allclose(found.columns["grad_weight"], expected, rtol=1e-6, atol=1e-7)
    if "kl" in found.columns:
        assert (found.columns["kl"] == 0).all()


def _tails(spec, group, batch):
    """Sum a rollout's advantage over the unmasked tokens from each on, divided by their place for prefix_mean."""
    for values in group:
        counted = values != 0  # of a rollout with advantage: elsewhere the sums are 0 as they should
        place = counted.cumsum(0).clamp(min=1) if "mean" in spec else 1
        yield (values / place).flip(0).cumsum(0).flip(0)


@pytest.mark.parametrize("spec", [*METHODS, *LOSSES])
@pytest.mark.parametrize("difference", [1000.0, -1000.0, 25.0, -25.0])
def test_extreme_ratios_stay_finite(spec, difference):
    groups = draw_groups(0)
    batch = batch_of(groups, EVERYTHING)
    batch = replace(batch, log_probs=batch.old_log_probs + difference)
    for values in estimate(spec, batch).columns.values():
        assert torch.isfinite(values).all()
    swing = torch.where(torch.arange(len(batch.token_ids)) % 2 == 0, difference, -difference)
    for values in estimate(spec, replace(batch, log_probs=batch.old_log_probs + swing)).columns.values():
        assert torch.isfinite(values).all()


def test_the_clamp_of_the_exponent_stops_the_gradient():
    # log ratios 12 and 25: bad rollouts are not clipped above, so only the clamp can stop them
    batch = pair([1e-6] * 4, [1e-6 * math.exp(12)] * 4)
    for spec, ratio, weight in (
        ("gspo", math.exp(10), 0),
        ("gmpo", math.exp(10), 0),
        ("tepo", math.exp(10), 0),
        ("sspo(delimiters=token)", math.exp(10), 0),
        ("dhpo(weight=1)", math.exp(12), -math.exp(12)),
        ("cispo", math.exp(12), -1.28),
    ):
        found = estimate(with_base(spec), batch if spec != "tepo" else replace(batch, **FALL)).columns
        assert halves(found["ratio"])[1] == pytest.approx([ratio] * 4, rel=1e-5)
        assert halves(found["grad_weight"])[1] == pytest.approx([weight] * 4, rel=1e-5)
        assert halves(found["mask"])[1] == [weight != 0] * 4
    batch = pair([1e-20] * 4, [1e-20 * math.exp(25)] * 4)
    found = estimate(with_base("sapo"), batch).columns
    assert found["ratio"].tolist() == pytest.approx([math.exp(20)] * 8, rel=1e-5)
    assert found["mask"].tolist() == [False] * 8


@pytest.mark.parametrize("spec", [*METHODS, *LOSSES])
def test_a_rollout_without_advantage_has_ratios_and_no_gradient(spec):
    batch = batch_of([[rollout([1, 3, 2], 1, seed=i) for i in range(4)]], EVERYTHING)
    found = estimate(spec, batch)
    assert (found.columns["grad_weight"] == 0).all()
    assert found.columns["mask"].all()
    assert (found.columns["ratio"] != 1).all()


def test_masked_tokens_move_nothing():
    mask = [True, False, True, True]
    rows = [rollout([1, 2, 3, 4], reward, mask=mask, seed=i) for i, reward in enumerate((1, 0, 0.5))]
    short = [rollout([1, 3, 4], row.reward, seed=i) for i, row in enumerate(rows)]
    whole = batch_of([rows], EVERYTHING)
    kept = whole.response_mask
    lean = replace(batch_of([short], ("response_tokens",)), **{n: getattr(whole, n)[kept] for n in EVERYTHING[:-1]})
    noise = {n: torch.where(kept, getattr(whole, n), 99.0) for n in EVERYTHING[:-1]}
    for spec in LOSSES:
        found, expected = estimate(spec, replace(whole, **noise)).columns, estimate(spec, lean).columns
        for name, values in expected.items():
            assert torch.allclose(found[name][kept].float(), values.float(), rtol=1e-6), (spec, name)
            assert not found[name][~kept].any()


@pytest.mark.parametrize("link", ["prefix", "prefix_mean"])
@pytest.mark.parametrize("lengths", [[1, 63, 64, 65, 0, 700, 128, 5000], [0, 129, 64], [65, 2], [3, 257]])
def test_sums_along_long_rollouts_equal_plain_sums(link, lengths):
    random = np.random.default_rng(5)
    rows = [rollout(range(n), i % 2, mask=(random.random(n) < 0.9).tolist(), seed=i) for i, n in enumerate(lengths)]
    batch = batch_of([rows], EVERYTHING)
    batch = replace(batch, log_probs=batch.old_log_probs + 0.02 * (batch.log_probs - batch.entropy))
    found = estimate(f"tepo(link={link})", batch).columns
    difference = batch.log_probs.double() - batch.old_log_probs.double()
    advantages = rollout_advantages("grpo", batch).tolist()
    pieces = [torch.split(v, lengths) for v in (difference, batch.response_mask, found["ratio"], found["grad_weight"])]
    for d, kept, ratio, weight, a in zip(*pieces, advantages, strict=True):
        n = np.arange(1, int(kept.sum()) + 1) if link == "prefix_mean" else 1
        r = np.exp(np.minimum(np.cumsum(d[kept].numpy()) / n, 10))
        opened = ~(((a > 0) & (r > 1.28)) | ((a < 0) & (r < 0.8)))
        expected = a * np.cumsum((opened * r / n)[::-1])[::-1]
        assert ratio[kept].numpy() == pytest.approx(r, rel=1e-6)
        assert weight[kept].numpy() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "gspo(eps_low=-0.1)",
            "gspo: eps_low lies between 0 and 1, and eps_high is not negative; found -0.1 and 0.0004",
        ),
        ("gspo(eps_low=1.5)", "gspo: eps_low lies"),
        ("gmpo(eps_high=-1)", "gmpo: eps_low and eps_high are not negative, found 0.4 and -1"),
        ("tepo(beta=-1)", "tepo: beta, the weight of the KL term, is not negative; found -1"),
        ("tepo(eps_high=-1)", "tepo: eps_low lies"),
        ("sspo(widest=0.5)", "sspo: widest, the largest factor of the bounds, is at least 1; found 0.5"),
        ("sspo(eps_low=2)", "sspo: eps_low lies"),
        ("dhpo(weight=1.5)", "dhpo: weight, the share of the token ratio, lies between 0 and 1; found 1.5"),
        ("dhpo(token_low=2)", "dhpo: token_low lies"),
        ("dhpo(sequence_high=-1)", "dhpo: sequence_low lies between 0 and 1, and sequence_high is not negative"),
        ("cispo(eps_max=0)", "cispo: eps_max, the largest ratio of cap=absolute, is positive; found 0"),
        ("cispo(eps_high=-1)", "cispo: eps_low lies"),
        ("sapo(tau_pos=0)", "sapo: tau_pos and tau_neg are positive, found 0 and 1.05"),
        ("cdpo(beta=-1)", "cdpo: beta, the weight of the negative model, is not negative; found -1"),
    ],
)
def test_parameters_out_of_range_are_refused(spec, message):
    columns = (*EVERYTHING, "positive_log_probs", "negative_log_probs")
    with pytest.raises(KtaeError, match=re.escape(message)):
        estimate(spec, batch_of(draw_groups(0), columns))


def test_text_and_entropies_are_needed_only_where_they_are_used():
    lean = batch_of(draw_groups(0), ("old_log_probs", "log_probs"))
    for spec in ("sspo(delimiters=none)", "sspo(delimiters=token)", "sspo(delimiters=none,ids=3)", "dhpo", "gspo"):
        estimate(spec, lean)
    for spec, column in (
        ("sspo", "response_tokens"),
        ("sspo(delimiters=line)", "response_tokens"),
        ("sspo(bounds=entropy,delimiters=none)", "old_entropy"),
        ("dhpo(mix=entropy)", "old_entropy"),
        ("tepo", "old_entropy, entropy"),
    ):
        with pytest.raises(MissingColumnError, match=f"needs {column}, which the input does not have"):
            estimate(spec, lean)


def test_the_engines_log_probs_stand_in_for_the_old_ones():
    groups = draw_groups(1)
    batch = batch_of(groups, EVERYTHING)
    sampled = replace(batch, old_log_probs=None, rollout_log_probs=batch.old_log_probs)
    for spec in METHODS:
        found, expected = estimate(spec, sampled).columns, estimate(spec, batch).columns
        assert all(torch.equal(found[name], values) for name, values in expected.items())


@pytest.mark.parametrize("name", METHODS)
def test_every_ratio_method_declares_its_three_columns(name):
    assert declaration("estimators", name).columns[:3] == ("ratio", "mask", "grad_weight")


def test_any_rollout_level_base_is_taken():
    batch = batch_of(one_step(draw_groups(2)), EVERYTHING)
    for base in ("dapo", "rloo", "grpo(singleton=raw)", "reinforce_plus_plus"):
        found = estimate(f"cispo(base={base})", batch)
        assert torch.equal(found.advantages, batch.spread(rollout_advantages(base, batch)))


# cDPO

LOGITS = torch.tensor([[2.0, 1, 0]]), torch.tensor([[0.0, 1, 2]])
SCORES = [0.950330, 0.047314, 0.002356]


def contrasted(correct=(1, 0), **fields):
    """Build a right and a wrong rollout of the three tokens of the published logits."""
    positive, negative = (torch.log_softmax(v.double(), -1)[0] for v in LOGITS)
    log_z = torch.logsumexp(2 * positive - negative, -1)
    group = [rollout(range(3), reward, verdict) for reward, verdict in zip((1, -1), correct, strict=True)]
    columns = {
        "positive_log_probs": positive.repeat(2).float(),
        "negative_log_probs": negative.repeat(2).float(),
        "contrast_log_z": log_z.repeat(6).float(),
    }
    return batch_of([group], **(columns | fields))


def test_contrast_of_full_logits_is_the_published_vector():
    assert cdpo.contrast_probabilities(*LOGITS)[0].tolist() == pytest.approx(SCORES, abs=1e-6)
    log_z = cdpo.contrast_log_normaliser(*LOGITS)
    assert log_z.tolist() == pytest.approx([float(contrasted().contrast_log_z[0])], abs=1e-6)
    positive, negative = (torch.softmax(v.double(), -1) for v in LOGITS)
    for beta in (0.0, 0.5, 2.0):
        unscaled = positive ** (1 + beta) * negative**-beta
        assert torch.allclose(cdpo.contrast_probabilities(*LOGITS, beta), unscaled / unscaled.sum())
        assert torch.allclose(cdpo.contrast_log_normaliser(*LOGITS, beta), unscaled.sum(-1).log())


def test_contrast_without_the_normaliser_ranks_and_leaves_the_base():
    batch = contrasted(contrast_log_z=None)
    found = estimate(with_base("cdpo"), batch)
    expected = (2 * batch.positive_log_probs - batch.negative_log_probs).tolist()
    assert found.columns["contrast"].tolist() == pytest.approx(expected, abs=1e-6)
    assert halves(found.columns["contrast"])[0] == sorted(halves(found.columns["contrast"])[0], reverse=True)
    assert found.advantages.tolist() == [1] * 3 + [-1] * 3
    half = estimate(with_base("cdpo(beta=0.5)"), batch).columns["contrast"]
    assert torch.allclose(half, 1.5 * batch.positive_log_probs - 0.5 * batch.negative_log_probs, atol=1e-6)


def test_exact_scores_weigh_the_advantages_by_verdict():
    found = estimate(with_base("cdpo(normaliser=column)"), contrasted())
    assert found.columns["contrast"].tolist() == pytest.approx(SCORES * 2, abs=1e-6)
    rejected = [0.049670, 0.952686, 0.997644]
    assert halves(found.advantages)[0] == pytest.approx(SCORES, abs=1e-6)
    assert halves(found.advantages)[1] == pytest.approx([-w for w in rejected], abs=1e-6)
    found = estimate(with_base("cdpo(normaliser=column,only_negative=true)"), contrasted())
    assert halves(found.advantages)[0] == [1] * 3
    assert halves(found.advantages)[1] == pytest.approx([-w for w in rejected], abs=1e-6)
    found = estimate(with_base("cdpo(normaliser=column)"), contrasted((-1, 1)))
    assert halves(found.advantages)[0] == [1] * 3
    assert halves(found.advantages)[1] == pytest.approx([-s for s in SCORES], abs=1e-6)


def test_a_normaliser_that_does_not_fit_is_refused():
    with pytest.raises(KtaeError, match=re.escape("cdpo: contrast_log_z gives a token the score exp(")):
        estimate("cdpo(normaliser=column)", contrasted(contrast_log_z=torch.full((6,), -3.0)))
    with pytest.raises(KtaeError, match="logits are finite and over one vocabulary"):
        cdpo.contrast_probabilities(LOGITS[0], LOGITS[1][:, :2])
    with pytest.raises(KtaeError, match="logits are finite and over one vocabulary"):
        cdpo.contrast_log_normaliser(LOGITS[0], LOGITS[1] * math.inf)


def test_a_normaliser_off_the_mask_is_not_read():
    batch = contrasted(contrast_log_z=contrasted().contrast_log_z.clone())
    batch.contrast_log_z[1] = -99.0
    batch = replace(batch, response_mask=torch.tensor([True, False, True, True, True, True]))
    found = estimate(with_base("cdpo(normaliser=column)"), batch)
    assert found.columns["contrast"].tolist() == pytest.approx([SCORES[0], 0, SCORES[2], *SCORES], abs=1e-6)
    assert found.advantages[1] == 0
