"""How long each rollout runs on tokens that a rollout of the other sign has at the same position."""

import torch
from torch import Tensor

from ktae_cli.estimators._prefixes import Responses, block, common_lengths

_FIRST_WIDTH, _LAST_WIDTH = 4, 256
_CELL_LIMIT = 1 << 22  # of a table of pairs by positions


def conflict_runs(responses: Responses, sign: Tensor, group_index: Tensor, wanted: Tensor | None = None) -> Tensor:
    """Return the first tokens of each rollout (n_rollouts,) int64 that are all conflict tokens.

    A token at position t of a rollout is one where a rollout of the same group and the opposite sign has the same id
    at t; sign (n_rollouts,) is 1, -1, or 0 for rollouts that take no part. wanted (n_rollouts,) bool: where the run
    is asked for, 0 elsewhere.
    Each step looks at the next positions of the runs that go on, against all rollouts of the other sign, then follows
    one that agrees on all of them for as long as it agrees.
    """
    run = torch.zeros_like(responses.begin)
    filled = responses.begin < responses.end
    wanted = filled if wanted is None else filled & wanted
    row, other = _opposite_pairs(sign, group_index, wanted)
    width = _FIRST_WIDTH
    while len(row):
        width = max(1, min(2 * width, _LAST_WIDTH, _CELL_LIMIT // len(row)))
        own = block(responses.token_ids, (responses.begin + run)[row], responses.end[row], width, -1)
        theirs = block(responses.token_ids, responses.begin[other] + run[row], responses.end[other], width, -2)
        same = own == theirs
        holders = torch.zeros((len(run), width), dtype=torch.int32, device=run.device)
        holders.index_add_(0, row, same.to(torch.int32))
        found = (holders > 0).cummin(1).values.sum(1)
        run += found
        whole = same.all(1)
        companion = torch.full_like(run, -1)
        companion[row[whole]] = other[whole]  # any of them: a run ends where nobody agrees, whoever was followed
        led = torch.nonzero(companion >= 0).squeeze(1)
        run[led] += common_lengths(responses, led, companion[led], run[led])
        going = (found == width)[row]
        row, other = row[going], other[going]
    return run


def _opposite_pairs(sign: Tensor, group_index: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """List the pairs (wanted rollout, rollout of its group with the opposite sign), each (n_pairs,) int64."""
    size = torch.bincount(group_index)
    first = torch.cumsum(size, 0) - size
    partners = torch.where(wanted & (sign != 0), size[group_index], 0)
    row = torch.repeat_interleave(partners)
    place = torch.arange(len(row), device=row.device) - (torch.cumsum(partners, 0) - partners)[row]
    other = first[group_index[row]] + place
    opposite = sign[row] * sign[other] < 0
    return row[opposite], other[opposite]
