"""Weight to colour: one diverging scale for terminal, HTML and figures, safe for colour-blind readers.

Blue is negative (wrong), orange is positive (right), near-white is zero. Lightness falls by the same steps on both
arms, so that strength is readable in grey too.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

NEUTRAL = "#f7f7f5"
NEGATIVE = ("#d3e4f1", "#94c3e0", "#4a94c8", "#1f64ab")
POSITIVE = ("#fbdcae", "#f9b25c", "#d9771d", "#a54a00")
DARK_TEXT, LIGHT_TEXT = "#000000", "#ffffff"
FADED_TEXT = "#767676"
STEPS = 8


def limit_of(values: Sequence[float], quantile: float = 0.99) -> float:
    """Return the symmetric limit of the scale: the quantile of the non-zero |values|, rounded up to two digits.

    A few extreme tokens do not bleach the others; 1.0 where nothing is non-zero.
    """
    sizes = np.abs(np.asarray(values, np.float64))
    sizes = np.sort(sizes[np.isfinite(sizes) & (sizes > 0)])
    return round_up(float(sizes[math.ceil(quantile * len(sizes)) - 1])) if len(sizes) else 1.0


def round_up(value: float) -> float:
    """Return the value rounded up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(round(value / unit, 4)) * unit:.2g}")


def position(value: float, limit: float) -> float:
    """Return where a value lies on the scale: -1 to 1, values beyond the limit at its ends, NaN at 0."""
    if not math.isfinite(limit) or limit <= 0 or math.isnan(value):
        return 0.0
    return max(-1.0, min(1.0, value / limit))


def color(value: float, limit: float) -> str:
    """Return the background of a value as #rrggbb."""
    return color_at(position(value, limit))


def step_color(value: float, limit: float, steps: int = STEPS) -> str:
    """Return the background in one of `steps` shades for each arm; below half a step it is neutral."""
    return color_at(round(position(value, limit) * steps) / steps)


@lru_cache(maxsize=4096)
def color_at(place: float) -> str:
    """Return the colour at -1..1, interpolated between the stops of an arm."""
    arm = (NEUTRAL, *(NEGATIVE if place < 0 else POSITIVE))
    exact = abs(place) * (len(arm) - 1)
    low = min(int(exact), len(arm) - 2)
    share = exact - low
    mixed = (round(a + (b - a) * share) for a, b in zip(channels(arm[low]), channels(arm[low + 1]), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


@lru_cache(maxsize=4096)
def foreground(background: str) -> str:
    """Return the text colour with the higher contrast (WCAG) on a background."""
    light = luminance(background)
    dark = luminance(DARK_TEXT)
    return DARK_TEXT if (light + 0.05) / (dark + 0.05) >= 1.05 / (light + 0.05) else LIGHT_TEXT


def contrast(one: str, other: str) -> float:
    """Return the WCAG contrast ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(background: str) -> float:
    """Return the relative luminance (WCAG) of a colour, 0 to 1."""
    red, green, blue = (_linear(channel / 255) for channel in channels(background))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(background: str) -> float:
    """Return the perceived lightness L* (CIE 1976), 0 to 100."""
    y = luminance(background)
    return 116 * y ** (1 / 3) - 16 if y > 216 / 24389 else y * 24389 / 27


def channels(background: str) -> tuple[int, int, int]:
    """Return red, green and blue of #rrggbb."""
    return int(background[1:3], 16), int(background[3:5], 16), int(background[5:7], 16)


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
