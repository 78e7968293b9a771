"""Information gain of a token's presence about the verdict."""

import numpy as np


def information_gain(
    correct_with: np.ndarray, incorrect_with: np.ndarray, n_correct: int, n_incorrect: int
) -> np.ndarray:
    """Return H(Y) - H(Y | X) in bits, float64, Y the verdict and X the token's presence in a rollout.

    The logarithm's base is that of the released code of arXiv 2505.16826; the paper's text does not confirm it.
    Never negative; exactly 0 for a token that is in the same share of the right and of the wrong rollouts, and the
    same bits when right and wrong change places.
    """
    n = n_correct + n_incorrect
    with_token = correct_with + incorrect_with
    without = n - with_token
    conditional = _entropy(correct_with, with_token) * with_token
    conditional = conditional + _entropy(n_correct - correct_with, without) * without
    gain = _entropy(np.array([n_correct]), np.array([n])) - conditional / max(n, 1)
    independent = correct_with * n_incorrect == incorrect_with * n_correct
    return np.where(independent, 0.0, np.maximum(gain, 0.0))


def _entropy(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    p, q = part / np.maximum(total, 1), (total - part) / np.maximum(total, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -(np.where(p > 0, p * np.log2(p), 0.0) + np.where(q > 0, q * np.log2(q), 0.0))
