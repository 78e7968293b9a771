"""How far two policies lie apart on tokens that one of them sampled: ratios, divergences, weights, sample sizes.

One convention throughout: `old` sampled the tokens, `new` is compared with it, and log r = log p_new - log p_old at
the sampled token. Averages over tokens estimate expectations under `old`. Functions take flat arrays of the policy's
tokens, rollout after rollout, with `lengths` (n_rollouts,) where rollouts matter. Between an engine and a trainer the
engine is `old`; it is `old` for later policies too only as far as the trainer's old log-probs match the engine's.
"""

from typing import NamedTuple

import numpy as np

LOG_RATIO_BOUND = 20.0
"""Log ratios are held within +-20 (r from 2e-9 to 5e8), as by SAFETY_BOUND of verl's rollout_corr_helper.py."""


def log_ratios(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return log r = new - old, held within +-`LOG_RATIO_BOUND`, in float64; both (n_tokens,) finite, nats."""
    with np.errstate(over="ignore"):  # finite float64 values may lie further apart than float64 reaches
        difference = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    return np.clip(difference, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def ratios(log_ratio: np.ndarray) -> np.ndarray:
    """Return r = p_new / p_old (n_tokens,)."""
    return np.exp(log_ratio)


def k1(log_ratio: np.ndarray) -> np.ndarray:
    """Return k1 = -log r (n_tokens,): its mean over tokens of `old` estimates KL(old || new), unbiased, of any sign.

    J. Schulman, "Approximating KL Divergence" (2020). `kl` of verl's compute_offpolicy_metrics is its mean.
    """
    return 0.0 - log_ratio  # no -0.0 where the policies agree


def k3(log_ratio: np.ndarray) -> np.ndarray:
    """Return k3 = r - 1 - log r (n_tokens,): estimates KL(old || new) as k1 does, never negative.

    J. Schulman, "Approximating KL Divergence" (2020). `k3_kl` of verl's compute_offpolicy_metrics is its mean. A loss
    that adds k3 with r = p_ref / p_new averages over tokens of p_new and estimates KL(new || ref): another pair.
    """
    return np.expm1(log_ratio) - log_ratio


def chi_square(log_ratio: np.ndarray) -> np.ndarray:
    """Return r^2 - 1 (n_tokens,): its mean over tokens of `old` is chi^2(new || old) = E_old[r^2] - 1.

    The variance of r where E_old[r] = 1; a sample can fall below 0. `chi2_token` of verl's compute_offpolicy_metrics.
    """
    return np.expm1(2 * log_ratio)


def truncated_weights(log_ratio: np.ndarray, cap: float) -> np.ndarray:
    """Return min(r, cap) (n_tokens,): truncated importance weights.

    verl's compute_rollout_correction_weights with rollout_is="token" and one number as rollout_is_threshold (2.0 there
    by default); TRL's vllm_importance_sampling_mode="token_truncate" without a lower bound.
    """
    return np.minimum(ratios(log_ratio), cap)


def masked_weights(log_ratio: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return r where low <= r <= high, else 0 (n_tokens,): masked importance weights.

    verl's compute_rollout_correction_weights with rollout_is="token" and "low_high" as rollout_is_threshold (IcePop);
    TRL's vllm_importance_sampling_mode="token_mask". verl's token_k1 rejection bounds 1/r instead, and drops the
    token from the response mask.
    """
    ratio = ratios(log_ratio)
    return np.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def log_sequence_weights(log_ratio: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the sum of log r over each rollout (n_rollouts,): the log of its importance weight; 0 without tokens."""
    return _sums(log_ratio, lengths)


def geometric_mean_ratios(log_ratio: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return exp(mean of log r) of each rollout (n_rollouts,), GSPO's ratio (arXiv 2507.18071); 1 without tokens."""
    return np.exp(_sums(log_ratio, lengths) / np.maximum(lengths, 1))


class WeightSums(NamedTuple):
    """Sums over importance weights, scaled by exp(-shift) and exp(-2 shift) so that no exponential overflows."""

    n: int = 0
    shift: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, log_weights: np.ndarray) -> "WeightSums":
        """Return the sums over weights given by their logs (n,)."""
        if not len(log_weights):
            return cls()
        shift = float(log_weights.max())
        scaled = np.exp(log_weights - shift)
        return cls(len(scaled), shift, float(scaled.sum()), float(np.square(scaled).sum()))

    def merge(self, other: "WeightSums") -> "WeightSums":
        """Return the sums over the weights of both."""
        if not self.n or not other.n:
            return self if self.n else other
        shift = max(self.shift, other.shift)
        ours, theirs = np.exp(self.shift - shift), np.exp(other.shift - shift)
        total = self.total * ours + other.total * theirs
        squares = self.squares * ours**2 + other.squares * theirs**2
        return WeightSums(self.n + other.n, shift, float(total), float(squares))

    def effective_sample_size(self) -> float:
        """Return (sum w)^2 / (n sum w^2), from 1/n to 1; NaN without weights."""
        return self.total**2 / (self.n * self.squares) if self.n else float("nan")


def effective_sample_size(log_weights: np.ndarray) -> float:
    """Return Kish's effective sample size as a share, (sum w)^2 / (n sum w^2): 1 where all weights are equal.

    With the weights of whole rollouts n counts rollouts. `rollout_is_eff_sample_size` of verl is the same share over
    truncated weights, a rollout's weight once for each of its tokens. NaN without weights.
    """
    return WeightSums.of(log_weights).effective_sample_size()


def token_effective_sample_sizes(log_ratio: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return (sum r)^2 / (T sum r^2) over the T tokens of each rollout (n_rollouts,); NaN without tokens."""
    total, squares = _sums(np.exp(log_ratio), lengths), _sums(np.exp(2 * log_ratio), lengths)
    share = total**2 / np.maximum(lengths * squares, np.finfo(np.float64).tiny)
    return np.where(lengths > 0, share, np.nan)


def position_deciles(lengths: np.ndarray) -> np.ndarray:
    """Return floor(10 t / T) for position t = 0..T-1 of each response of T tokens, end to end: 0 to 9."""
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    return 10 * place // np.repeat(np.maximum(lengths, 1), lengths)


def _sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    rollout = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rollout, values, minlength=len(lengths))
