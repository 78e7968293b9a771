"""Half of Cohen's h between the right and the wrong rollouts of a group."""

import numpy as np


def half_cohens_h(correct_with: np.ndarray, incorrect_with: np.ndarray, n_correct: int, n_incorrect: int) -> np.ndarray:
    """Return asin sqrt(correct_with / n_correct) - asin sqrt(incorrect_with / n_incorrect), radians in [-pi/2, pi/2].

    Positive: the token is present in a larger share of the right rollouts. Cohen's h itself is twice this value;
    arXiv 2505.16826 and its code leave the factor 2 out. A class without rollouts contributes 0.
    """
    right = np.arcsin(np.sqrt(correct_with / max(n_correct, 1)))
    wrong = np.arcsin(np.sqrt(incorrect_with / max(n_incorrect, 1)))
    return right - wrong
