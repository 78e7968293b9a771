"""Many tests at once: the false discovery rate of a family, and which tests can belong to it at all."""

import numpy as np


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """Return q (n,): the smallest false discovery rate at which each test is rejected.

    q of the i-th smallest p is min over j >= i of p_(j) m / j, m the number of tests. NaN is outside the family: it
    stays NaN and does not count for m.
    Source: Benjamini and Hochberg (1995), J. R. Stat. Soc. B 57; computed by scipy.
    """
    from scipy.stats import false_discovery_control

    q = np.full(len(p), np.nan)
    inside = ~np.isnan(p)
    if inside.any():
        q[inside] = false_discovery_control(p[inside], method="bh")
    return q


def smallest_p_values(p: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Return the smallest p that each unit can reach (n_units,); p and begin as `pooled_p_values` returns them."""
    return np.minimum.reduceat(p, begin[:-1]) if len(begin) > 1 else np.zeros(0)


def can_reject(smallest_p: np.ndarray, level: float = 0.05) -> np.ndarray:
    """Tell which tests can be rejected at all when the level is shared among those that can (n,) bool.

    smallest_p (n,): the smallest p that each test can reach, from what is held fixed under its law, not from what was
    observed; NaN is outside the family. k is the smallest number with at most k tests whose smallest p is at most
    level / k; those tests stay. The others would never be rejected by a Bonferroni correction over k tests, so leaving
    them out costs nothing and spares the rest. The family-wise error stays at most `level` for Bonferroni over those
    that stay; Gilbert takes Benjamini and Hochberg's q over the same tests.
    Source: Tarone (1990), Biometrics 46; Gilbert (2005), J. R. Stat. Soc. C 54.
    """
    reachable = np.sort(smallest_p[~np.isnan(smallest_p)])
    k = np.arange(1, len(reachable) + 2)
    enough = np.searchsorted(reachable, level / k, side="right") <= k
    return smallest_p <= level / k[np.argmax(enough)]
