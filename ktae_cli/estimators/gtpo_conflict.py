"""GTPO, the trajectory-based one: conflict tokens protected, entropy filtered and penalised on demand."""

from typing import Literal

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.estimators._conflicts import conflict_runs
from ktae_cli.estimators._policy_tokens import mean_entropies, policy_tokens
from ktae_cli.estimators._prefixes import Responses
from ktae_cli.estimators.base import Estimate, estimator, moments_of, rollout_advantages
from ktae_cli.names import Spec


@estimator(
    needs=("response_ids", "reward"),
    level="token",
    scope="group",
    needs_when={"filter=true": ("old_entropy",), "penalty": ("old_entropy",)},
)
def gtpo_conflict(
    batch: GroupBatch,
    *,
    base: Spec = "grpo(eps=0.0001)",
    rule: Literal["union", "product"] = "union",
    weight: float = 2.0,
    filter: bool = False,
    threshold: float = 0.6931471805599453,
    h_ini: float = 0.0,
    penalty: float = 0.0,
) -> Estimate:
    """Scale the advantage of conflict tokens: up in rollouts of positive advantage, to 0 in those of negative.

    A'_it = lambda_it delta_i (A_i - penalty <H>_i), A_i the base; lambda is `weight` on a conflict token where
    A_i > 0, 0 on one where A_i < 0, else 1. A conflict token has the same id at the same position t in a rollout of
    the other sign, and so has every token before it, counted from the first token (forward run) or from the last
    (backward run). `rule=union` takes either run; `product` multiplies the lambdas of the two, weight^2 in both.
    <H>_i is the mean entropy of the rollout in nats. `filter`: delta_i = 0 where <H>_i > threshold (ln 2), unless
    `h_ini`, the mean entropy of the initial model, is above it too. Neither is on by default.

    Source: Simoni et al., arXiv 2508.03772; formula of the authors' README, conflict runs as `build_conflict_mask` of
    github.com/winstonsmith1897/GTPO; base as TRL's GRPO. Whether the paper means union or product is not confirmed.
    The released code is filter=true,penalty=0.1,rule=product,threshold=0.7, whatever h_ini; it further divides
    a rollout's loss by a count of its conflict tokens, which is not reproduced. Its entropy is of the current policy;
    here it is old_entropy, equal for the first update. 1 / T_i and 1 / G are the aggregation's.
    Positions count unmasked tokens only. Signs are those of A_i before the entropy terms.
    Returns advantages (n_tokens,) float32 in units of the base.
    Degenerate: lambda = 1 in groups without both signs and where A_i = 0, and such a rollout makes no conflict;
    0 in groups of equal rewards, the penalty included (the README's would act there), but for a base that is not.
    """
    if weight < 0 or penalty < 0:
        raise KtaeError(f"weight and penalty must not be negative; found weight={weight:g}, penalty={penalty:g}")
    base_advantages = rollout_advantages(base, batch)
    advantages = base_advantages
    if filter or penalty:
        entropy = mean_entropies(batch)
        equal = moments_of(batch, batch.rewards).constant[batch.group_index]
        advantages = advantages - torch.where(equal, 0.0, penalty * entropy)
        if filter and h_ini <= threshold:
            advantages = torch.where(entropy > threshold, 0.0, advantages)
    factors = _factors(batch, base_advantages.sign(), weight, weight**2 if rule == "product" else weight)
    return Estimate(batch.spread(advantages).mul_(factors).add_(0.0))  # no negative zeros


def _factors(batch: GroupBatch, sign: Tensor, in_one: float, in_both: float) -> Tensor:
    """Return lambda of each token (n_tokens,) float32, 0 off the mask, for positive rollouts in one run and in both."""
    tokens = policy_tokens(batch)
    ids, size = tokens.take(batch.token_ids), len(tokens.rollout)
    forward = conflict_runs(Responses(ids, tokens.begin, tokens.end), sign, batch.group_index)
    wanted = forward < batch.counted_lengths if in_one == in_both else None  # one run over all of it is enough
    flipped = Responses(ids.flip(0), size - tokens.end, size - tokens.begin)
    backward = conflict_runs(flipped, sign, batch.group_index, wanted)
    place = torch.arange(size, dtype=torch.int32, device=ids.device)
    first, last = (tokens.begin + forward).int(), (tokens.end - backward).int()
    runs = (place < first.index_select(0, tokens.rollout)).to(torch.int32)
    runs += place >= last.index_select(0, tokens.rollout)
    table = torch.tensor([1, 0, 0, 1, 1, 1, 1, in_one, in_both], dtype=torch.float32, device=ids.device)
    row = (3 * sign + 3).to(torch.int32).index_select(0, tokens.rollout)
    return tokens.put(table.index_select(0, row.add_(runs)), len(batch.token_ids))
