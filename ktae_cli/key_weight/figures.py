"""How much of a KTAE estimator's key weights is chance: shuffle share, reliability and self share."""

from typing import Any

import numpy as np

from ktae_cli.key_weight.halves import reliability
from ktae_cli.key_weight.intervals import Estimate, resample, sums_by_prompt, with_interval
from ktae_cli.key_weight.sums import SIGNED, SQUARE, TOKENS

FREE, GIVEN_LENGTH = NULLS = ("free", "given-length")
"""Laws of the labels inside a group: all orders equally likely; that of the verdicts given the lengths."""


def passes_of_null(times: int) -> int:
    """Return how often `--null` scores the rollouts: under both nulls and in both halves of a split, each time."""
    return (len(NULLS) + 2) * times


def chance_figures(
    own: np.ndarray,
    left_out: np.ndarray | None,
    shuffled: dict[str, np.ndarray],
    halves: np.ndarray,
    prompt: np.ndarray,
    random: np.random.Generator,
) -> dict[str, Any]:
    """Return each figure of one spec as {value, low, high}, a 95 % interval over resampled prompts.

    shuffle_share, by null: mean over the shuffles of sum K^2 / observed sum K^2, over the tokens of mixed groups.
    reliability: correlation of K between halves of a group's rollouts, stepped up to the whole group.
    agreement: mean of K times the verdict, +1 right and -1 wrong, over the tokens; agreement_left_out with loo=true.
    self_share: 1 - agreement_left_out / agreement, not given where agreement is not above 0.
    own, left_out (5, n_groups): `ShiftSums` of the spec and of its loo=true form; shuffled: null -> mean of the sums of
    K^2 (n_groups,); halves (6, n_groups): `paired_moments`; prompt (n_groups,). What cannot be told is None.
    """
    nothing = np.full(own.shape[1], np.nan)
    rows = {"square": own[SQUARE], "signed": own[SIGNED], "tokens": own[TOKENS], **shuffled}
    rows["left out"] = nothing if left_out is None else left_out[SIGNED]
    at = {name: row for row, name in enumerate(rows)}
    sums = sums_by_prompt(np.stack([*rows.values(), *halves]), prompt)
    drawn = resample(sums, random)

    def ratio(top: str, bottom: str) -> Estimate:
        return with_interval(lambda s: _over(s[at[top]], s[at[bottom]]), sums, drawn)

    return {
        "shuffle_share": {null: ratio(null, "square") for null in shuffled},
        "reliability": with_interval(lambda s: reliability(s[len(rows) :]), sums, drawn),
        "self_share": with_interval(lambda s: 1 - _over(s[at["left out"]], s[at["signed"]]), sums, drawn),
        "agreement": ratio("signed", "tokens"),
        "agreement_left_out": ratio("left out", "tokens"),
    }


def _over(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Return top / bottom, NaN where bottom is not above 0."""
    top, bottom = np.asarray(top, np.float64), np.asarray(bottom, np.float64)
    return np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom > 0)
