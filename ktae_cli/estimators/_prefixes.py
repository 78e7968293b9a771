"""How far responses go on alike: pairs, and the members of sets each with one model, compared block by block."""

from typing import NamedTuple

import torch
from torch import Tensor

_FIRST_WIDTH = 16


class Responses(NamedTuple):
    """Token ids of all rollouts, and where each begins and ends in them (n_rollouts,)."""

    token_ids: Tensor
    begin: Tensor
    end: Tensor


def compare_with_models(
    responses: Responses, rollout: Tensor, node: Tensor, depth: Tensor, model: Tensor, shared: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the model of each member's set and the number of first tokens that the member shares with it, (n,) int64.

    node (n,) int64, dense and sorted, is the set of each member, whose rollouts share their first `depth` (n,) tokens.
    model (n,), a rollout or -1 for none yet, and shared (n,) are those known before: they stay where the set holds its
    model; elsewhere the first member becomes it. A model shares its whole length with itself.
    """
    n_nodes = int(node[-1]) + 1
    holds = torch.zeros(n_nodes, dtype=torch.bool, device=node.device)
    holds[node[model == rollout]] = True
    lost = ~holds[node]
    if not bool(lost.any()):
        return model, shared
    first = torch.searchsorted(node, torch.arange(n_nodes, device=node.device))
    model = torch.where(lost, rollout[first[node]], model)
    shared = torch.where(lost, (responses.end - responses.begin)[rollout], shared)
    other = torch.nonzero(lost & (model != rollout)).squeeze(1)
    shared[other] = depth[other] + common_lengths(responses, rollout[other], model[other], depth[other])
    return model, shared


def common_lengths(responses: Responses, one: Tensor, other: Tensor, depth: Tensor) -> Tensor:
    """Return how many tokens from `depth` (n_pairs,) on the rollouts `one` and `other` have in common (n_pairs,) int64.

    Blocks double in width while a pair stays alike: the tokens read are at most twice those in common and a few more.
    """
    token_ids, begin, end = responses
    here, there, stop, far = begin[one] + depth, begin[other] + depth, end[one], end[other]
    common = torch.zeros_like(here)
    alike, done, width = torch.arange(len(here), device=here.device), 0, _FIRST_WIDTH
    while len(alike):
        own = block(token_ids, here[alike] + done, stop[alike], width, -1)
        # past the ends stand different numbers, so that no pair stays alike beyond them
        differs = own != block(token_ids, there[alike] + done, far[alike], width, -2)
        same = torch.where(differs.any(1), differs.to(torch.uint8).argmax(1), width)
        common[alike] += same
        alike = alike[same == width]
        done, width = done + width, 2 * width
    return common


def block(token_ids: Tensor, here: Tensor, end: Tensor, width: int, filler: int) -> Tensor:
    """Return the next `width` tokens from each place (n, width), `filler` from its end on."""
    place = here[:, None] + torch.arange(width, device=here.device)
    inside = place < end[:, None]
    return torch.where(inside, token_ids[place.clamp_(max=len(token_ids) - 1)], filler)
