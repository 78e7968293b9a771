"""The measures as the released KTAE code computes them in float32, its rounding faults included."""

import numpy as np
import torch
from torch import Tensor

_FISHER_CELLS = 1 << 22
"""Tables times outcomes that are held at once."""


def float32_cells(correct_with: np.ndarray, incorrect_with: np.ndarray, n_correct: int, n_incorrect: int) -> np.ndarray:
    """Return rows (two-sided p, the same p again, information gain in bits, half of Cohen's h), float32 values.

    The two-sided p sums float32 probabilities built from `lgamma`, and compares them with the observed one without a
    tolerance: ties are lost, and most p-values of 1 come out as 1.0000001. Always on the CPU, since another
    device rounds `lgamma` differently. Source: github.com/xiaolizh1/KTAE, verl/workers/actor/compute_key_tokens.py.
    """
    a, b = (torch.from_numpy(np.asarray(x)).to(torch.float32) for x in (correct_with, incorrect_with))
    c, d = n_correct - a, n_incorrect - b
    rows = max(1, _FISHER_CELLS // (1 + min(n_correct, len(a) and int((a + b).max()))))
    p = torch.cat([_fisher(*part) for part in zip(*(x.split(rows) for x in (a, b, c, d)), strict=True)])
    gain = _information_gain(a, b, c, d)
    right, wrong = ((x / (x + y + 1e-10)).clamp(0, 1) for x, y in ((a, c), (b, d)))
    h = torch.asin(torch.sqrt(right)) - torch.asin(torch.sqrt(wrong))
    return torch.stack([p, p, gain, h]).to(torch.float64).numpy()


def _log_comb(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)


def _fisher(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    with_token, n, right = a + b, a + b + c + d, a + c
    k = torch.arange(int(torch.minimum(with_token, right).max()) + 1, dtype=torch.float32).expand(len(a), -1)
    low, high = (with_token + right - n).clamp(min=0), torch.minimum(with_token, right)
    allowed = (k >= low[:, None]) & (k <= high[:, None])

    def probability(k: Tensor, with_token: Tensor, n: Tensor, right: Tensor) -> Tensor:
        return torch.exp(_log_comb(right, k) + _log_comb(n - right, with_token - k) - _log_comb(n, with_token))

    rows = (x[:, None].expand_as(k) for x in (with_token, n, right))
    each = torch.where(allowed, probability(k, *rows), 0.0)
    observed = probability(a, with_token, n, right)
    return torch.where((each <= observed[:, None]) & allowed, each, 0.0).sum(dim=1)


def _information_gain(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    n = a + b + c + d

    def term(p: Tensor) -> Tensor:
        return -p * torch.where(p > 0, torch.log2(p), 0.0)

    def conditional(x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        return torch.where(total > 0, term(x / total) + term(y / total), 0.0)

    prior = term((a + c) / n) + term((b + d) / n)
    gain = prior - ((a + b) / n * conditional(a, b) + (c + d) / n * conditional(c, d))
    return torch.where(n > 0, gain, 0.0)
