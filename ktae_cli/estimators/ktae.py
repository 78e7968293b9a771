"""KTAE: key-token advantages, the released formula in exact arithmetic."""

from typing import Literal

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import Ids
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._gate import Evidence, Gating
from ktae_cli.estimators._ktae_family import Settings, ktae_estimate
from ktae_cli.estimators._presence_pool import PresencePool
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(
    needs=("response_ids", "reward"),
    level="token",
    scope="group",
    columns=("key_weight",),
    needs_when={"before=outcome": ("response",)},
    pools_when=("gate", "size=pooled", "shrink=eb"),
)
def ktae(
    batch: GroupBatch,
    pooled: Evidence | None = None,
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
    gate: float = 0.0,
    length: Literal["verdict", "off"] = "verdict",
    size: Literal["group", "pooled"] = "group",
    shrink: Literal["none", "eb"] = "none",
    center: Literal["none", "rollout"] = "none",
    cap: float = 0.0,
    before: Literal["none", "outcome", "1", "2", "3", "4", "5", "6", "7", "8", "9"] = "none",
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

    Evidence from other prompts, ours, not the paper's. Prompts of the whole input, whatever their step, are in 5 folds;
    what is said of a group comes from the four folds that its prompt is not in. There every id that varies in at least
    5 mixed groups is tested on T, the right rollouts that hold it, against U = T - E T and its variance V under the law
    of the labels given length (`length=verdict`) or exchangeable (`length=off`), with Benjamini and Hochberg's q.
    `gate=0.05`: K = 0 but for ids with q below it, and where the sign of K is not that of U.
    `size=pooled`: K = top * tanh(m / 2), m = tau2 U / (1 + tau2 V) the pooled log odds ratio U / V shrunken to 0, tau2
    its variance between the tested ids. `shrink=eb`: K = top * tanh(M / 2), M = (m + s U_g) / (1 + s V_g), the group's
    own U_g and V_g (hypergeometric) under the normal prior of mean m and variance s = tau2 / (1 + tau2 V) + w, w the
    variance of the log odds between the groups of an id. Of the parameters above only top, zero_ids and loo act there.
    `before=outcome`: only positions before the response settles its outcome count and shift; `before=3`: only the first
    three tenths. `center=rollout` takes the mean of K over these positions off K; `cap=c`, last, cuts the shift to
    c * |base_scale * base_i|.

    Source: the released code of arXiv 2505.16826 (github.com/xiaolizh1/KTAE), its formula in float64 with exact Fisher
    tests; `ktae_reference` emulates its float32 arithmetic, `ktae_paper` is the form of the paper's text.
    Right and wrong come from `correct`, the base from `reward`.
    Returns advantages and key_weight (n_tokens,) float32; |K| <= top, in the units of the base.
    Degenerate: K = 0 in a group without both verdicts or with equal rewards, for rollouts of unknown verdict, and off
    the mask; with two_sided also for a token present in the same share of both sides (p = 1 and IG = 0, however often
    it occurs; a point probability stays below 1). An empty response counts as absence of every token. K depends on the
    id alone, not on the position, and most of one group's K is chance: with tf=code a token seen on one side only
    comes out near +-top whatever its p. Of an id that was not tested U = V = 0. With `size=pooled` all ids of the
    family shift where there is no gate. No evidence, no shift: a single prompt, or tau2 = 0, gives pooled weights of 0.
    Raises `KtaeError` for parameters that contradict each other, `MissingColumnError` for before=outcome without text.
    """
    gating = Gating(gate, length, size, shrink, center, cap, before)
    if loo and size == "pooled":
        raise KtaeError("size=pooled takes weights from other prompts, which leaves every rollout out; drop loo=true")
    settings = Settings(
        base, fisher, alpha, beta, 1.0, tf, top, k1, b, tf_eps, zero_ids, loo, base_scale, shift_scale, gating=gating
    )
    return ktae_estimate(batch, settings, pooled)


def _pool(batch: GroupBatch, known: PresencePool | None, *, before: str = "none") -> PresencePool:
    """Gather which rollouts hold which ids."""
    return PresencePool(batch, before)


def _notice(pooled: Evidence, counts: dict[str, int], *, gate: float = 0.0, length: str = "verdict", **others) -> str:
    """Say how many ids pass, and how often a group says the opposite."""
    evidence = pooled.evidence(length == "verdict")
    folds = range(evidence.n_folds)
    tested = [int((evidence.fold == fold).sum()) for fold in folds]
    family = f"{_span(tested)} ids tested in each of {len(tested)} folds of prompts"
    law = "beyond length" if length == "verdict" else "at all"
    if not gate:
        return f"{family}, {law}"
    passed = [int((evidence.q[evidence.fold == fold] < gate).sum()) for fold in folds]
    return (
        f"{_span(passed)} of {family} pass, {law}; {counts.get('weights', 0)} (group, id) have weight, "
        f"{counts.get('against', 0)} have none because their sign is not the pooled one"
    )


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


ktae.pool = _pool
ktae.pool_takes = ("before",)
ktae.notice = _notice
