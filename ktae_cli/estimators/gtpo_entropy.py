"""GTPO, the entropy-weighted one: a reward per token by its share of the entropy at its position."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._policy_tokens import PolicyTokens, policy_tokens
from ktae_cli.estimators._sides import EPS, sides_of, sums_in_any_order, sums_within
from ktae_cli.estimators.base import Estimate, estimator


@estimator(needs=("reward", "old_entropy"), level="token", scope="group")
def gtpo_entropy(
    batch: GroupBatch, *, alpha1: float = 1.0, alpha2: float = 0.1, normalise: bool = True, ddof: int = 1
) -> Estimate:
    """Shape a token's reward by its share of the entropy at its position, then take z-scores on either side.

    Right rollouts: r_it = alpha1 + alpha2 d_t H_it / sum_k H_kt over the d_t right rollouts of the group that reach t;
    wrong ones: r_jt = -(alpha1 + alpha2 h_t (1 / H_jt) / sum_k (1 / H_kt)) over the h_t wrong ones.
    A_it = (r_it - mean) / std over all tokens of the group's right rollouts, and apart from them over all tokens of its
    wrong ones. `normalise=false` gives r itself, for which alpha1 + alpha2 = 1 keeps the sum at t at d_t and -h_t.

    Mind: each side has mean 0, so that about half of the tokens of right rollouts get a negative advantage, and wrong
    ones a positive one; the verdict only chooses the formula. alpha1 and alpha2 cancel in the z-score. On the wrong
    side tokens of low entropy are punished most, while the paper's first figure says the opposite.

    Source: Tan et al., arXiv 2508.04349, Eq. 3, 5, 6, as noted by a re-implementation; the paper's text was not seen.
    Unconfirmed: the alphas, ddof, and whether .2 and .28 clip the ratio or entropies (here: nothing is clipped).
    Positions count unmasked tokens. 1e-8 is added to sum H and to each H before 1 / H; H below 0 counts as 0.
    Returns advantages (n_tokens,) float32.
    Degenerate: 0 where a side's r are equal up to rounding (std <= 1e-8: one token, equal entropies, alpha2=0), where
    all rewards of the group are equal, and for rollouts of unknown verdict, which stand on neither side. A side without
    rollouts is left out. On the wrong side an entropy of 0 takes the whole budget at its position: alpha2 h_t.
    """
    if alpha1 < 0 or alpha2 < 0 or ddof not in (0, 1):
        raise KtaeError(
            f"alpha1 and alpha2 must not be negative, and ddof is 0 or 1; found {alpha1:g}, {alpha2:g} and {ddof}"
        )
    tokens, side = policy_tokens(batch), sides_of(batch)
    shares = _shares(batch, tokens, side)
    right = batch.correct == 1
    sign = torch.where(side == 2 * batch.n_groups, 0.0, torch.where(right, 1.0, -1.0)).to(torch.float64)
    shaped = shares.mul_(alpha2).add_(alpha1).mul_(sign.index_select(0, tokens.rollout))
    if normalise:
        shaped = _z_scores(shaped, tokens, side, 2 * batch.n_groups + 1, ddof).mul_(sign.abs()[tokens.rollout])
    return Estimate(tokens.put(shaped.add_(0.0), len(batch.token_ids)))


def _shares(batch: GroupBatch, tokens: PolicyTokens, side: Tensor) -> Tensor:
    """Return d_t H / sum H of each unmasked token (n_unmasked,) float64, on the wrong side of 1 / H."""
    entropy = tokens.take(batch.old_entropy).clamp(min=0).to(torch.float64)
    right = (batch.correct == 1).index_select(0, tokens.rollout)
    weight = torch.where(right, entropy, 1 / (entropy + EPS))
    lengths = tokens.end - tokens.begin
    longest = torch.zeros(2 * batch.n_groups + 1, dtype=torch.int64, device=lengths.device)
    longest.scatter_reduce_(0, side, lengths, "amax")
    first = torch.cumsum(longest, 0) - longest  # the positions of a side stand together
    index = (first[side] - tokens.begin).index_select(0, tokens.rollout)
    index += torch.arange(len(index), device=index.device)
    size = int(longest.sum())
    total = sums_in_any_order(weight, index, size)
    scale = torch.bincount(index, minlength=size) / (total + EPS)
    return weight.mul_(scale.index_select(0, index))


def _z_scores(values: Tensor, tokens: PolicyTokens, side: Tensor, n_sides: int, ddof: int) -> Tensor:
    """Return (value - mean) / std over the tokens of each side (n_unmasked,), 0 where the std is at most 1e-8."""
    lengths = tokens.end - tokens.begin
    n_tokens = torch.zeros(n_sides, dtype=torch.int64, device=side.device).index_add_(0, side, lengths)
    mean = sums_within(tokens.sums(values), side, n_sides) / n_tokens.clamp(min=1)
    centred = values - mean[side].index_select(0, tokens.rollout)
    squares = sums_within(tokens.sums(centred.square()), side, n_sides)
    std = torch.sqrt(squares / (n_tokens - ddof).clamp(min=1))
    inverse = torch.where(std > EPS, 1 / std, 0.0)
    return centred.mul_(inverse[side].index_select(0, tokens.rollout))
