"""The first pass of an export: every row is checked, and what the options decide on is kept, one line for each row."""

from dataclasses import dataclass
from itertools import repeat
from math import fsum

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.exports._batch import LOG_PROBS, Batch, read_batches, split
from ktae_cli.readers.scored import ScoredFile, verdicts
from ktae_cli.rollouts import was_truncated

_FACTS = ("correct", "finish_reason")


@dataclass(frozen=True)
class ExportOptions:
    """Options of every target, in the order in which they act."""

    advantages: str | None = None
    null_advantages: str = "drop"
    max_length: int | None = None
    mask_truncated: bool = False
    drop_dead_groups: bool = False
    normalize: str = "none"
    clip: float | None = None
    loss: str | None = None
    allow_retokenized: bool = False


@dataclass(frozen=True)
class Facts:
    """One line for each row of the scored file, exported or not.

    group: number of its group in `groups`, in order of appearance. verdict: 1 right, 0 wrong, -1 unknown. steps: the
    training step or None. prompt, response: lengths. policy_tokens: tokens on the mask; total, squares: sum and sum of
    squares of the exported column over them, before any option changes it. unscored, truncated, has_prompt, kept: bool.
    too_long, dead: rows that left for that reason. log_probs: by column, true where a row has them.
    """

    groups: list[str]
    rollout_ids: list[str]
    group: np.ndarray
    verdict: np.ndarray
    steps: list[int | None]
    prompt: np.ndarray
    response: np.ndarray
    policy_tokens: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    unscored: np.ndarray
    truncated: np.ndarray
    has_prompt: np.ndarray
    too_long: np.ndarray
    dead: np.ndarray
    kept: np.ndarray
    log_probs: dict[str, np.ndarray]

    @property
    def mean(self) -> np.ndarray:
        """Mean of the exported column over the policy tokens of each row; 0 without any."""
        return self.total / np.maximum(self.policy_tokens, 1)


def survey(scored: ScoredFile, column: str, names: tuple[str, ...], options: ExportOptions) -> Facts:
    """Read all rows once and decide which of them are exported."""
    codes: dict[str, int] = {}
    rollouts: list[str] = []
    steps: list[int | None] = []
    parts: list[dict[str, np.ndarray]] = []
    for batch in read_batches(scored, column, (*_FACTS, *names), options.mask_truncated):
        parts.append(_lines(batch, scored, codes))
        rollouts += batch.rollout_ids
        steps += repeat(None, len(batch)) if batch.steps is None else batch.steps.to_pylist()
    if not parts:
        raise InputError(f"{scored.path.name} holds no rows")
    facts = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    log_probs = {name: facts.pop(name) for name in LOG_PROBS if name in facts}
    left = ~facts["unscored"] if options.null_advantages == "drop" else np.ones(len(rollouts), bool)
    limit = np.inf if options.max_length is None else options.max_length
    too_long = left & (facts["prompt"] + facts["response"] > limit)
    dead = np.zeros(len(rollouts), bool)
    if options.drop_dead_groups:
        alive = np.bincount(facts["group"], (left & ~too_long) * facts["squares"], len(codes)) > 0
        dead = left & ~too_long & ~alive[facts["group"]]
    kept = left & ~too_long & ~dead
    return Facts(
        list(codes), rollouts, steps=steps, too_long=too_long, dead=dead, kept=kept, log_probs=log_probs, **facts
    )


def _lines(batch: Batch, scored: ScoredFile, codes: dict[str, int]) -> dict[str, np.ndarray]:
    columns = batch.columns | ({} if batch.rewards is None else {"reward": batch.rewards})
    cut = (split(flat, batch.response) for flat in (batch.values.astype(np.float64), batch.mask))
    on_mask = [values[mask] for values, mask in zip(*cut, strict=True)]
    return {
        "group": np.asarray([codes.setdefault(name, len(codes)) for name in batch.group_ids], np.int64),
        "verdict": verdicts(columns, scored.metadata) if columns else np.full(len(batch), -1, np.int8),
        "prompt": batch.prompt,
        "response": batch.response,
        "policy_tokens": np.asarray([len(values) for values in on_mask], np.int64),
        "total": np.asarray([fsum(values.tolist()) for values in on_mask]),
        "squares": np.asarray([fsum((values * values).tolist()) for values in on_mask]),
        "unscored": batch.unscored,
        "truncated": was_truncated(batch.columns.get("finish_reason"), len(batch)),
        "has_prompt": batch.has_prompt,
        **{name: present for name, (_, present) in batch.log_probs.items()},
    }
