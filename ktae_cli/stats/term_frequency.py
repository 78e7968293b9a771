"""BM25-like term frequencies of a token in the right and in the wrong rollouts of a group, and their direction."""

import torch
from torch import Tensor


def length_norm(class_tokens: Tensor, other_tokens: Tensor, k1: float, b: float) -> Tensor:
    """Return k1 (1 - b + b len_c / len_avg) float64, len_avg the mean of the two classes' numbers of tokens."""
    mean_tokens = (class_tokens + other_tokens).to(torch.float64) / 2
    return k1 * (1 - b + b * class_tokens / mean_tokens.clamp(min=0.5))


def term_frequency(count: Tensor, class_tokens: Tensor, norm: Tensor, k1: float) -> Tensor:
    """Return TF_c = (k1 + 1) f / (norm + f), f = count / len_c, in norm's dtype; all inputs (n_entries,).

    The rollouts of a class are taken as one sequence of len_c = class_tokens tokens. f is a relative frequency in
    [0, 1], as in the released code of arXiv 2505.16826, so that BM25's saturation hardly acts; the paper's text does
    not say whether counts were meant. A class without tokens gives 0.
    """
    frequency = count.to(norm.dtype).div_(class_tokens.clamp(min=1))
    saturated = norm.add(frequency).clamp_(min=torch.finfo(norm.dtype).tiny)
    return frequency.mul_(k1 + 1).div_(saturated)


def ratio_direction(tf_correct: Tensor, tf_incorrect: Tensor, eps: float) -> Tensor:
    """Return TF_T / (TF_F + eps) - TF_F / (TF_T + eps), the released form.

    Unbounded: up to TF / eps, some 1e4, for a token seen on one side only, which then saturates the key weight.
    """
    return (tf_correct / (tf_incorrect + eps)).sub_(tf_incorrect / (tf_correct + eps))


def bounded_direction(tf_correct: Tensor, tf_incorrect: Tensor) -> Tensor:
    """Return asin sqrt(s) - asin sqrt(1 - s), s = TF_T / (TF_T + TF_F), radians in [-pi/2, pi/2].

    The share s of a token's frequency that falls on the right rollouts, on the scale of half of Cohen's h: 0 at
    equal frequencies, +-pi/2 for a token seen on one side only, and antisymmetric in the two sides. It has the size
    of the presence effect that it is added to, where the released ratio is larger by four orders of magnitude.
    Ours; no paper defines it. 0 where the token is on neither side.
    """
    total = (tf_correct + tf_incorrect).clamp(min=torch.finfo(tf_correct.dtype).tiny)
    return torch.asin(torch.sqrt(tf_correct / total)) - torch.asin(torch.sqrt(tf_incorrect / total))
