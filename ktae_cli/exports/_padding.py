"""Ragged rows into rectangular arrays."""

import numpy as np


def right_padded(flat: np.ndarray, lengths: np.ndarray, width: int, fill: float = 0) -> np.ndarray:
    """Return (n, width): row i holds its values first, then `fill`."""
    return _padded(flat, lengths, width, fill, np.arange(width) < lengths[:, None])


def left_padded(flat: np.ndarray, lengths: np.ndarray, width: int, fill: float = 0) -> np.ndarray:
    """Return (n, width): row i holds `fill` first, then its values, the last one at the end."""
    return _padded(flat, lengths, width, fill, np.arange(width) >= width - lengths[:, None])


def _padded(flat: np.ndarray, lengths: np.ndarray, width: int, fill: float, inside: np.ndarray) -> np.ndarray:
    out = np.full((len(lengths), width), fill, flat.dtype)
    out[inside] = flat
    return out
