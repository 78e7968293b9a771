"""KTAE: key-token advantages, the released formula in exact arithmetic."""

from typing import Literal

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import Ids
from ktae_cli.estimators._ktae_family import Settings, ktae_estimate
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(needs=("response_ids", "reward"), level="token", scope="group", columns=("key_weight",))
def ktae(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    fisher: Literal["two_sided", "point"] = "two_sided",
    alpha: float = 1.0,
    beta: float = 1.0,
    tf: Literal["code", "bounded", "off"] = "code",
    top: float = 1.0,
    k1: float = 2.0,
    b: float = 0.5,
    tf_eps: float = 1e-5,
    zero_ids: Ids = "none",
    loo: bool = False,
    base_scale: float = 1.0,
    shift_scale: float = 1.0,
) -> Estimate:
    """Add to a rollout's advantage the key weight of each token: how its presence goes with a right answer.

    A_it = base_scale * base_i + shift_scale * K(v), v the id at position t of rollout i, and within each group
    K(v) = top * tanh(z / 2), z = (alpha F + beta IG) * D / (alpha + beta);
    F = exp(-2 p), 0 where p = 1, p of Fisher's exact test on presence against verdict (`fisher=two_sided`, or the
    probability of the observed table alone, `point`); IG the information gain in bits;
    D = asin sqrt(correct_with / n_correct) - asin sqrt(incorrect_with / n_incorrect) + tf term, radians;
    tf term: `code` TF_T / (TF_F + tf_eps) - TF_F / (TF_T + tf_eps); `bounded`
    asin sqrt(TF_T / (TF_T + TF_F)) - asin sqrt(TF_F / (TF_T + TF_F)), ours, never larger than pi/2; `off` 0.
    TF of a side is BM25-like with k1 and b on the side's rollouts taken as one sequence.
    `loo=true` computes the weights used for a rollout from the other rollouts of its group: otherwise its own
    verdict sits in the weights of its own tokens. `zero_ids` get weight 0; they still count as tokens.

    Source: the released code of arXiv 2505.16826 (github.com/xiaolizh1/KTAE), its formula in float64 with exact Fisher
    tests; `ktae_reference` emulates its float32 arithmetic, `ktae_paper` is the form of the paper's text.
    Right and wrong come from `correct`, the base from `reward`.
    Returns advantages and key_weight (n_tokens,) float32; |K| <= top, in the units of the base.
    Degenerate: K = 0 in a group without both verdicts or with equal rewards, for rollouts of unknown verdict, and off
    the mask; with two_sided also for a token present in the same share of both sides (p = 1 and IG = 0, however often
    it occurs; a point probability stays below 1). An empty response counts as absence of every token. K depends on the
    id alone, not on the position, and most of one group's K is chance: with tf=code a token seen on one side only
    comes out near +-top whatever its p.
    """
    return ktae_estimate(
        batch,
        Settings(base, fisher, alpha, beta, 1.0, tf, top, k1, b, tf_eps, zero_ids, loo, base_scale, shift_scale),
    )
