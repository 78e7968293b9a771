"""Verdicts modelled by length: one conditional-logistic fit over all mixed groups."""

from dataclasses import dataclass

import numpy as np

from ktae_cli.stats.conditional import Strata, covariances, draw_probabilities, inclusion

RIDGE = 1e-4
"""Weight of a penalty on the slopes, in units of their information: keeps a fit finite where length decides all."""


@dataclass(frozen=True)
class LengthFit:
    """What length says about the verdicts.

    p: probabilities of independent draws, for `stats.conditional` (n_rollouts,); pi: probability of being right given
    length and the group's number of right rollouts (n_rollouts,); basis (n_rollouts, k); slopes (k,); information
    (k, k) = sum over groups of basis' C basis, C the covariance of the verdicts under the law.
    overlap: sum pi (1 - pi) over that of exchangeable labels, 1 where length says nothing, 0 where it decides.
    """

    p: np.ndarray
    pi: np.ndarray
    basis: np.ndarray
    slopes: np.ndarray
    information: np.ndarray
    overlap: float


def exchangeable(strata: Strata) -> LengthFit:
    """Return the fit without length: all labels of a group equally likely."""
    p = np.repeat(strata.n_right / strata.sizes, strata.sizes)
    return LengthFit(p, p.copy(), np.zeros((len(p), 0)), np.zeros(0), np.zeros((0, 0)), 1.0)


def length_basis(length: np.ndarray, truncated: np.ndarray, strata: Strata) -> np.ndarray:
    """Return columns (n_rollouts, k) of the model: x, x^2, m^2, m^3 and the truncation flag.

    x is log(1 + length) less its mean in the group, m the same less its mean over all rollouts, each in units of its
    standard deviation and cut at 4 and 3 of them: x follows what is long for the prompt, m a limit that all prompts
    share. Columns are centred in each group and made orthogonal in this order, with mean square 1; one that adds
    nothing is left out.
    """
    log_length = np.log1p(length.astype(np.float64))
    if not len(log_length):
        return np.zeros((0, 0))
    x = _standardised(log_length - _group_mean(log_length, strata), 4)
    m = _standardised(log_length - log_length.mean(), 3)
    kept: list[np.ndarray] = []
    for column in (x, x**2, m**2, m**3, truncated.astype(np.float64)):
        column = column - _group_mean(column, strata)
        size = np.sqrt(np.mean(column**2))
        for other in kept:
            column = column - np.mean(column * other) * other
        left = np.sqrt(np.mean(column**2))
        if left > max(1e-3 * size, 1e-9):
            kept.append(column / left)
    return np.stack(kept, 1) if kept else np.zeros((len(x), 0))


def _standardised(values: np.ndarray, limit: float) -> np.ndarray:
    scale = np.sqrt(np.mean(values**2))
    return np.clip(values / scale, -limit, limit) if scale > 1e-9 else np.zeros_like(values)


def _group_mean(values: np.ndarray, strata: Strata) -> np.ndarray:
    mean = np.add.reduceat(values, strata.starts) / strata.sizes if len(values) else values
    return np.repeat(mean, strata.sizes) if len(values) else values


def fit_length(right: np.ndarray, basis: np.ndarray, strata: Strata) -> LengthFit:
    """Fit the slopes b of log odds = basis b by the conditional likelihood of right (n_rollouts,) given each R.

    Newton's method with step halving on log L(b) = sum over groups of sum_{right} eta_i - log e_R(exp eta), less
    RIDGE/2 b' I_0 b with I_0 the information at b = 0: the gradient is basis' (right - pi), the Hessian minus the
    information.
    Source: Breslow and Day (1980), Statistical methods in cancer research, vol. 1, ch. 7.
    """
    start = exchangeable(strata)
    if not basis.shape[1]:
        return start
    slopes = np.zeros(basis.shape[1])
    p, pi = start.p, start.pi
    information = _information(p, pi, basis, strata)
    prior = RIDGE * information
    gradient = basis.T @ (right - pi)
    for _ in range(100):
        step = np.linalg.lstsq(information + prior, gradient, rcond=1e-10)[0]
        step *= min(1.0, 2.0 / max(np.abs(step).max(), 1e-300))
        gain = gradient @ step
        if gain < 1e-10:
            break
        for _ in range(20):
            p = draw_probabilities(basis @ (slopes + step), strata)
            pi = inclusion(p, strata)
            gradient = basis.T @ (right - pi) - prior @ (slopes + step)
            if gradient @ step > -0.9 * gain:  # else the step went too far past the maximum along it
                break
            step, gain = step / 2, gain / 2
        slopes = slopes + step
        information = _information(p, pi, basis, strata)
    free = np.repeat(strata.n_right / strata.sizes, strata.sizes)
    overlap = float((pi * (1 - pi)).sum() / (free * (1 - free)).sum())
    return LengthFit(p, pi, basis, slopes, information, overlap)


def _information(p: np.ndarray, pi: np.ndarray, basis: np.ndarray, strata: Strata) -> np.ndarray:
    total = np.zeros((basis.shape[1], basis.shape[1]))
    for _, rows, covariance in covariances(p, pi, strata):
        b = basis[rows]
        total += np.einsum("mik,mij,mjl->kl", b, covariance, b, optimize=True)
    return total
