"""BM25-like term frequencies of a token in the right and in the wrong rollouts of a group, and their direction."""

import torch
from torch import Tensor


def length_scale(class_tokens: Tensor, other_tokens: Tensor, k1: float, b: float) -> Tensor:
    """Return len_c k1 (1 - b + b len_c / len_avg) float64, len_avg the mean of the two classes' numbers of tokens.

    A class without tokens gives the smallest number above 0.
    """
    mean_tokens = (class_tokens + other_tokens).to(torch.float64) / 2
    norm = k1 * (1 - b + b * class_tokens / mean_tokens.clamp(min=0.5))
    return (class_tokens * norm).clamp(min=torch.finfo(torch.float32).tiny)


def term_frequency(count: Tensor, scale: Tensor, k1: float) -> Tensor:
    """Return TF_c = (k1 + 1) f / (k1 (1 - b + b len_c / len_avg) + f), f = count / len_c, float.

    Computed as (k1 + 1) count / (scale + count).

    The rollouts of a class are taken as one sequence of len_c tokens; scale (n_entries,) is their `length_scale`, in
    the dtype of the result. f is a relative frequency in [0, 1], as in the released code of arXiv 2505.16826, so that
    BM25's saturation hardly acts; the paper's text does not say whether counts were meant. A class without tokens
    gives 0.
    """
    count = count.to(scale.dtype)
    return (count * (k1 + 1)).div_(count.add_(scale))


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
