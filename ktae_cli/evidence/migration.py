"""How the pass rates of prompts move from one input to another."""

from typing import Any

import numpy as np

from ktae_cli.evidence.incidence import Informative

KINDS = ("all wrong", "mixed", "all right")


def migration(a: Informative, b: Informative, resamples: int, seed: int) -> dict[str, Any]:
    """Return the prompts by kind in a (rows) and b (columns), the change of the pass rate, and McNemar's test.

    A prompt's pass rate is over all its rollouts of known verdict. change: mean of b - a over prompts, its interval
    (95 %) by resampling prompts. gained, lost: prompts of which at least half are right in b but not in a, and the
    other way round; p: exact, that of a fair coin (McNemar 1947).
    """
    from scipy.stats import binomtest

    rates = [_pass_rates(side) for side in (a, b)]
    kinds = [np.where(rate == 0, 0, np.where(rate == 1, 2, 1)) for rate in rates]
    table = np.zeros((3, 3), np.int64)
    np.add.at(table, tuple(kinds), 1)
    difference = rates[1] - rates[0]
    random = np.random.default_rng([seed, 3])
    n = len(difference)
    drawn = random.multinomial(n, np.full(n, 1 / n), resamples) @ difference / n
    solved = [rate >= 0.5 for rate in rates]
    gained, lost = int((solved[1] & ~solved[0]).sum()), int((solved[0] & ~solved[1]).sum())
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "kinds": list(KINDS), "table": table.tolist(), "pass_rate": [float(rate.mean()) for rate in rates],
        "change": float(difference.mean()), "low": float(low), "high": float(high), "gained": gained, "lost": lost,
        "p": float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
    }  # fmt: skip


def _pass_rates(rollouts: Informative) -> np.ndarray:
    """Return the pass rate of each prompt, in ascending order of the prompts."""
    place = np.unique(rollouts.prompt, return_inverse=True)[1][rollouts.strata.group]
    return np.bincount(place, rollouts.right) / np.bincount(place)
