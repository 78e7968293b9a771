"""KTAE in the form of the paper's text."""

from typing import Literal

from ktae_cli.batch import GroupBatch
from ktae_cli.catalogue import Ids
from ktae_cli.estimators._ktae_family import Settings, ktae_estimate
from ktae_cli.estimators.base import Estimate, estimator
from ktae_cli.names import Spec


@estimator(needs=("response_ids", "reward"), level="token", scope="group", columns=("key_weight",))
def ktae_paper(
    batch: GroupBatch,
    *,
    base: Spec = "grpo",
    fisher: Literal["two_sided", "point"] = "point",
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 1.0,
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
    """Add to a rollout's advantage the key weight of each token, as the paper writes it.

    A_it = base_i + K(v), K(v) = top * (sigma((alpha F + beta IG) * D) - 1/2), alpha, beta, gamma its h1, h2, h3;
    F = exp(-2 P), 0 where P = 1, P the probability of the observed 2x2 table (the paper's expression; its prose calls
    it the test's p-value); IG the information gain in bits;
    D = asin sqrt(correct_with / n_correct) - asin sqrt(incorrect_with / n_incorrect)
    + gamma * (TF_T / (TF_F + tf_eps) - TF_F / (TF_T + tf_eps)). Other parameters as in `ktae`.

    Source: arXiv 2505.16826, read through third-party notes. Not confirmed by the paper's text: the values of h1, h2,
    h3, k1 and b, the logarithm's base of IG, whether TF counts or frequencies are meant, and tf_eps (the paper divides
    without it). It differs from the released code in P, in the range (-1/2, 1/2) and in not dividing by alpha + beta.
    Returns advantages and key_weight (n_tokens,) float32, |K| <= top / 2.
    Degenerate: as `ktae`, but a token present in the same share of both sides has P < 1 and keeps a weight through its
    term frequency, unless it is in every rollout.
    """
    return ktae_estimate(
        batch,
        Settings(
            base, fisher, alpha, beta, gamma, tf, top, k1, b, tf_eps, zero_ids, loo, base_scale, shift_scale, "paper"
        ),
    )
