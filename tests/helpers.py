"""Rollouts as literals, batches of them, and results cut back into rollouts."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ktae_cli.batch import TOKEN_COLUMNS, GroupBatch

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"


@dataclass(frozen=True)
class Rollout:
    """One response: `seed` draws its token columns, so that they move with it."""

    ids: tuple[int, ...]
    reward: float
    correct: int
    mask: tuple[bool, ...] = field(default=())
    seed: int = 0
    step: int = 0


def rollout(ids, reward, correct=None, mask=None, seed=0, step=0) -> Rollout:
    """Make a rollout; right where the reward is positive, and wholly unmasked, unless said."""
    mask = (True,) * len(ids) if mask is None else tuple(mask)
    return Rollout(tuple(ids), float(reward), int(reward > 0) if correct is None else correct, mask, seed, step)


def rewarded(rewards, lengths=None) -> list[Rollout]:
    """Make rollouts of which only the rewards and the lengths matter."""
    lengths = [1] * len(rewards) if lengths is None else lengths
    return [rollout(range(n), reward) for reward, n in zip(rewards, lengths, strict=True)]


def batch_of(groups, columns=(), *, device="cpu", **fields) -> GroupBatch:
    """Build the batch of groups of rollouts, with the named token columns, `rewards`, `response_tokens` and `response`.

    The parts of a reward follow from it, the marks of a token's text from its id; 7 tokens stand before the outcome.
    """
    rows = [row for group in groups for row in group]
    lengths = torch.tensor([len(row.ids) for row in rows], dtype=torch.int64)

    def drawn(name: str) -> torch.Tensor:
        at = TOKEN_COLUMNS.index(name)
        parts = [np.random.default_rng([row.seed, at]).uniform(0.05, 0.95, len(row.ids)) for row in rows]
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(np.float32)).to(device)

    columns = set(columns)
    if "rewards" in columns:
        rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64, device=device)
        fields["rewards_by_name"] = {"exact": rewards, "format": 2 * rewards - rewards.square()}
    if "response_tokens" in columns:
        marks = [i % 7 * 37 % 256 for row in rows for i in row.ids]
        fields["text_marks"] = torch.tensor(marks, dtype=torch.uint8, device=device)
    if "response" in columns:
        before = [place < 7 for row in rows for place in range(len(row.ids))]
        fields["before_outcome"] = torch.tensor(before, dtype=torch.bool, device=device)
    return GroupBatch(
        token_ids=torch.tensor([i for row in rows for i in row.ids], dtype=torch.int64, device=device),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device),
        rewards=torch.tensor([row.reward for row in rows], dtype=torch.float64, device=device),
        correct=torch.tensor([row.correct for row in rows], dtype=torch.int8, device=device),
        group_index=torch.tensor([g for g, group in enumerate(groups) for _ in group], dtype=torch.int64).to(device),
        response_mask=torch.tensor([m for row in rows for m in row.mask], dtype=torch.bool, device=device),
        step=torch.tensor([row.step for row in rows], dtype=torch.int64, device=device),
        **{name: drawn(name) for name in TOKEN_COLUMNS if name in columns},
        **fields,
    )


def cut(values: torch.Tensor, groups) -> list[list[torch.Tensor]]:
    """Cut a value per token into groups of rollouts."""
    pieces = iter(torch.split(values, [len(row.ids) for group in groups for row in group]))
    return [[next(pieces) for _ in group] for group in groups]


def draw_groups(seed: int, n_groups: int = 6) -> list[list[Rollout]]:
    """Draw groups of 1 to 9 rollouts: unknown verdicts, masks with holes, empty and wholly masked responses.

    The first group always has both verdicts, an empty and a wholly masked response, and one unknown verdict.
    """
    random = np.random.default_rng(seed)

    def draw(group: int, place: int) -> Rollout:
        n = int(random.integers(0, 12))
        correct = int(random.integers(-1, 2))
        reward = float(random.choice([0.0, 0.1, 0.7, 1.0])) if correct < 0 else correct + random.choice([0.0, 0.1])
        mask = random.random(n) < 0.8
        ids = random.integers(0, 6, n) + 50 * (random.random(n) < 0.2)
        return rollout(ids.tolist(), reward, correct, mask.tolist(), seed=1000 * group + place, step=group)

    first = [
        rollout([1, 2, 3], 1, seed=1), rollout([1, 4], 0, seed=2), rollout([], 1, seed=3),
        rollout([2, 3], 0, mask=[False, False], seed=4), rollout([2, 9, 9], 0.5, -1, seed=5),
        rollout([2, 2, 3, 5], 1.1, 1, [True, False, True, True], seed=6), rollout([1, 5], 0, seed=7),
    ]  # fmt: skip
    rest = [[draw(g, i) for i in range(int(random.integers(1, 10)))] for g in range(1, n_groups)]
    return [first, *rest]
