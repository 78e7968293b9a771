"""T-SPMO: the advantage of a token after its prefix, from the rollouts that share both."""

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.estimators._prefixes import Responses, compare_with_models
from ktae_cli.estimators.base import Estimate, estimator, moments_of
from ktae_cli.stats.segments import moments_within_groups


@estimator(needs=("response_ids", "reward"), level="token", scope="group")
def t_spmo(batch: GroupBatch) -> Estimate:
    """Give a token the mean reward of the rollouts that begin with its prefix and it, less that of the prefix alone.

    A(v | p) = mean R over rollouts beginning with p, v - mean R over rollouts beginning with p, within a group;
    p is everything before the token. Non-zero only where rollouts that share a prefix part, or one of them ends: on
    the tokens behind, which a rollout shares with no other, it is 0.

    Source: Lee & Tong, arXiv 2504.20834; neither its text nor code was found. Unconfirmed: the formula itself;
    rewards taken as they are; rollouts that end at p counted in the mean of p; the loss, which as recalled takes
    each distinct (p, v) once, weighted by 1 / their number, as pi(v | p) A(v | p), less a penalty on the weights,
    and replays a few positions. A trainer that adds up tokens takes (p, v) as often as rollouts hold it: n(p, v)
    times. Where no rollout ends at p, the n(p, v) A(v | p) of its tokens sum to 0.
    Masked tokens (of tools) belong to the prefix, for the policy sees them, and get 0. A rollout ends with its last
    unmasked token, so that a wholly masked response is an empty one.
    Returns advantages (n_tokens,) float32 in units of the reward.
    Degenerate: 0 for a group of one, where all rewards are equal, and where all responses are the same; an empty
    response counts in the mean of the empty prefix.
    """
    advantages = torch.zeros(len(batch.token_ids), dtype=torch.float32, device=batch.offsets.device)
    if not len(advantages):
        return Estimate(advantages)
    responses = Responses(batch.token_ids, batch.offsets[:-1], _ends(batch))
    moments = moments_of(batch, batch.rewards)
    # a node is a prefix; its members are the rollouts that begin with it, followed as long as their rewards differ
    rollout = torch.nonzero(~moments.constant[batch.group_index]).squeeze(1)
    node = torch.unique_consecutive(batch.group_index[rollout], return_inverse=True)[1]
    model, shared, depth = torch.full_like(rollout, -1), torch.zeros_like(rollout), torch.zeros_like(rollout)
    mean = moments.mean[~moments.constant]
    while len(rollout):
        model, shared = compare_with_models(responses, rollout, node, depth, model, shared)
        parting = torch.zeros_like(mean, dtype=torch.int64).scatter_reduce_(0, node, shared, "amin", include_self=False)
        depth = parting[node]
        place = responses.begin[rollout] + depth
        going = torch.nonzero(place < responses.end[rollout]).squeeze(1)
        child = torch.unique(node[going] << 32 | batch.token_ids[place[going]], return_inverse=True)[1]
        child, order = child.sort(stable=True)
        going = going[order]
        found = moments_within_groups(batch.rewards[rollout[going]], child)
        advantages[place[going]] = (found.mean[child] - mean[node[going]]).to(torch.float32)
        live = ~found.constant
        kept = going[live[child]]
        rollout, model, shared, depth = torch.stack([rollout, model, shared, depth + 1])[:, kept]
        node = torch.unique_consecutive(child[live[child]], return_inverse=True)[1]
        mean = found.mean[live]
    return Estimate(advantages if batch.response_mask is None else torch.where(batch.response_mask, advantages, 0.0))


def _ends(batch: GroupBatch) -> Tensor:
    """Return the place behind the last unmasked token of each response (n_rollouts,) int64."""
    start, end = batch.offsets[:-1], batch.offsets[1:]
    if batch.response_mask is None:
        return end
    place = torch.arange(1, len(batch.token_ids) + 1, device=end.device)
    last = torch.cummax(torch.where(batch.response_mask, place, 0), 0).values  # of all tokens up to each
    return torch.maximum(start, torch.cat([start.new_zeros(1), last])[end])
