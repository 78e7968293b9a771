"""Weights that take evidence from other prompts: which ids shift anything, to which side and by how much."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ktae_cli.batch import GroupBatch
from ktae_cli.errors import KtaeError
from ktae_cli.stats.cross_fitted import UnitEvidence

_FIRST_OF_FOLD = 1 << 31
"""Token ids lie below."""


@dataclass(frozen=True)
class Gating:
    """The parameters of `ktae` that take evidence from other prompts or shape the shift."""

    gate: float = 0.0
    length: str = "verdict"
    size: str = "group"
    shrink: str = "none"
    center: str = "none"
    cap: float = 0.0
    before: str = "none"

    def __post_init__(self):
        if not 0 <= self.gate <= 1:
            raise KtaeError(f"gate is a false discovery rate between 0 (no gate) and 1, found {self.gate:g}")
        if self.cap < 0:
            raise KtaeError(f"cap is a share of the base advantage, 0 for none, found {self.cap:g}")
        if self.size == "pooled" and self.shrink == "eb":
            raise KtaeError("size=pooled and shrink=eb both say how large a weight is; choose one of them")
        if self.length == "off" and not self.pools:
            raise KtaeError("length=off is about pooled evidence; it goes with gate, size=pooled or shrink=eb")

    @property
    def pools(self) -> bool:
        """Tell whether evidence from other prompts is taken."""
        return self.gate > 0 or self.size == "pooled" or self.shrink == "eb"


NO_GATING = Gating()


class Evidence(Protocol):
    """Where evidence comes from: the pool of the whole input, or a file."""

    def evidence(self, given_length: bool) -> UnitEvidence:
        """Return what is known of the token ids in each fold."""

    def folds(self, batch: GroupBatch) -> Tensor:
        """Return the fold of each group (n_groups,) int64."""


class Tables(NamedTuple):
    """A 2x2 table for each weight: fold of its group, id, rollouts with it, rollouts of the group, all (n,) int64."""

    fold: Tensor
    token_id: Tensor
    correct_with: Tensor
    incorrect_with: Tensor
    n_correct: Tensor
    n_incorrect: Tensor


class Gated(NamedTuple):
    """Weights (n,), and which are 0 because other prompts say the opposite (n,) bool, None without a gate."""

    weight: Tensor
    against: Tensor | None = None

    def counts(self) -> dict[str, int]:
        """Count the weights."""
        if self.against is None:
            return {}
        return {"weights": int(self.weight.count_nonzero()), "against": int(self.against.sum())}


def gate_weights(weight: Tensor, tables: Tables, gating: Gating, source: Evidence, top: float) -> Gated:
    """Replace or drop key weights (n,) by what other prompts say; the formulas stand in `ktae`."""
    found = _of_units(source.evidence(gating.length == "verdict"), tables)
    mean, variance = found.shrunken()
    if gating.size == "pooled":
        weight = _squashed(mean, top)
    elif gating.shrink == "eb":
        weight = _squashed(_posterior(tables, mean, variance + found.within), top)
    if not gating.gate:
        return Gated(weight)
    passes, agreement = found.q < gating.gate, weight * found.score.sign()
    return Gated(torch.where(passes & (agreement > 0), weight, 0.0), passes & (agreement < 0))


class _Found(NamedTuple):
    """Of each weight's id in its fold (n,) float64: 0 and q = inf where nothing is known of it."""

    q: Tensor
    score: Tensor
    variance: Tensor
    between: Tensor
    within: Tensor

    def shrunken(self) -> tuple[Tensor, Tensor]:
        """Return the shrunken log odds ratio and its variance."""
        scale = 1 + self.between * self.variance
        return self.between * self.score / scale, self.between / scale


def _of_units(evidence: UnitEvidence, tables: Tables) -> _Found:
    device = tables.fold.device

    def column(values, absent) -> Tensor:
        values = torch.from_numpy(values)
        return torch.cat([values, values.new_full((1,), absent)]).to(device)

    keys = column(evidence.fold * _FIRST_OF_FOLD + evidence.unit, torch.iinfo(torch.int64).max)
    wanted = tables.fold * _FIRST_OF_FOLD + tables.token_id
    place = torch.searchsorted(keys, wanted)
    place = torch.where(keys[place] == wanted, place, len(keys) - 1)
    known = (column(values, absent)[place] for values, absent in (
        (evidence.q, torch.inf), (evidence.score, 0.0), (evidence.variance, 0.0),
    ))  # fmt: skip
    spread = (torch.from_numpy(values).to(device)[tables.fold] for values in (evidence.between, evidence.within))
    return _Found(*known, *spread)


def _posterior(tables: Tables, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the posterior mean of the log odds ratio: the group's one-step estimate under a normal prior."""
    with_it = (tables.correct_with + tables.incorrect_with).to(torch.float64)
    right, size = tables.n_correct.to(torch.float64), (tables.n_correct + tables.n_incorrect).to(torch.float64)
    share = right / size.clamp(min=1)
    own_score = tables.correct_with - with_it * share
    own_variance = with_it * (size - with_it) * share * (1 - share) / (size - 1).clamp(min=1)
    return (mean + variance * own_score) / (1 + variance * own_variance)


def _squashed(log_odds: Tensor, top: float) -> Tensor:
    return log_odds.mul(0.5).tanh_().mul_(top).add_(0.0)  # no negative zeros
