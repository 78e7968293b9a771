"""How many prompts of this kind it would take: the tests simulated at other numbers of prompts and group sizes."""

from typing import Any

import numpy as np

from ktae_cli.stats.pooled_tests import normal_p

DRAWS = 200
SURE = 0.8
"""N is the number of prompts at which some unit survives in this share of the draws."""
FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
GROUP_SIZES = (2, 4, 8, 16, 32, 64)


def needed_prompts(
    score: np.ndarray, variance: np.ndarray, squares: np.ndarray, spread: np.ndarray, n_prompts: int, group_size: float,
    level: float, random: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """Simulate the family's tests with prompts added, and with other group sizes at the same number of rollouts.

    score U, variance V, and squares (the sum over prompts of the prompts' V^2), under the law of the headline, and
    spread (tau-squared between prompts), all (n_units,). Each draw takes log odds theta from N(m, s^2), the posterior
    of U / V ~ N(theta, 1 / V) under theta ~ N(0, omega^2), omega^2 by moments over the family.
    curve: what is there stays, and f - 1 times as many prompts of this kind join it, f of FACTORS:
    z = (U + (f - 1) V theta + e sqrt((f - 1) (V + spread * squares))) / sqrt(f V), e standard normal.
    group_sizes: all is drawn anew in groups of G' instead of G, G / G' times as many prompts:
    V' = V (G / G') (G' - 1) / (G - 1), since the expected variance of a cell is (G - 1) p (1 - p) x (1 - x), p and x
    the rates of right answers and of the unit, and z ~ N(theta sqrt(V'), 1 + spread * squares / V (G' - 1) / (G - 1)).
    p is normal, q is Benjamini and Hochberg's over the same family. Returns `prompts`, the smallest number of the curve
    at which some unit survives in SURE of the draws (None: not on the curve), `curve` and `group_sizes`, points with
    the share of draws with any survivor and their mean number, and `effects`, omega. One prompt says nothing of others:
    no curve. The simulation is ours; rarer units, which would join a larger family, are not in it.
    """
    known = variance > 0
    u, v, v2, tau2 = score[known], variance[known], squares[known], np.nan_to_num(spread[known])
    if not len(v) or n_prompts < 2:
        return {"prompts": None, "curve": [], "group_sizes": [], "effects": 0.0}
    omega2 = max(0.0, float(np.average((u / v) ** 2 - 1 / v, weights=v)))
    noise = random.standard_normal((2, DRAWS, len(v)))
    theta = omega2 * u / (omega2 * v + 1) + noise[0] * np.sqrt(omega2 / (omega2 * v + 1))

    def survivors(z: np.ndarray) -> dict[str, float]:
        found = _rejected(normal_p(z), level)
        return {"any": float((found > 0).mean()), "mean": float(found.mean())}

    def with_added(prompts: int) -> dict[str, float]:
        more = prompts / n_prompts - 1
        added = more * v * theta + noise[1] * np.sqrt(more * (v + tau2 * v2))
        return survivors((u + added) / np.sqrt((1 + more) * v))

    def in_groups(size: float) -> dict[str, float]:
        gain = (size - 1) / (group_size - 1)
        z = theta * np.sqrt(gain * group_size / size * v) + noise[1] * np.sqrt(1 + tau2 * gain * v2 / v)
        return survivors(z)

    curve = [{"prompts": n, **with_added(n)} for n in dict.fromkeys(round(f * n_prompts) for f in FACTORS)]
    enough = [point["prompts"] for point in curve if point["any"] >= SURE]
    sizes = [
        {"group_size": size, "prompts": round(n_prompts * group_size / size), **in_groups(size)} for size in GROUP_SIZES
    ]
    return {"prompts": enough[0] if enough else None, "curve": curve, "group_sizes": sizes, "effects": omega2**0.5}


def _rejected(p: np.ndarray, level: float) -> np.ndarray:
    """Count what Benjamini and Hochberg reject in each row of p (draws, n): the largest k with p_(k) <= level k / n."""
    n = p.shape[1]
    passes = np.sort(p, axis=1) <= level * np.arange(1, n + 1) / n
    return np.where(passes.any(1), n - np.argmax(passes[:, ::-1], axis=1), 0)
