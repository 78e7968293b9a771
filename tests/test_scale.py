"""The diverging scale: literal colours, limits, contrast and lightness."""

import math
from itertools import pairwise

import pytest

from ktae_cli import scale

STOPS = [step / 40 for step in range(41)]


def test_color_of_zero_and_of_both_limits_are_the_named_ones():
    assert scale.color(0.0, 2.0) == "#f7f7f5"
    assert scale.color(2.0, 2.0) == "#a54a00"
    assert scale.color(-2.0, 2.0) == "#1f64ab"
    assert scale.color(0.5, 2.0) == "#fbdcae"
    assert scale.color(-1.0, 2.0) == "#94c3e0"


def test_color_between_two_stops_is_their_mean():
    assert scale.color(0.125, 1.0) == "#f9ead2"


def test_color_beyond_the_limit_stays_at_the_end():
    assert scale.color(99.0, 1.0) == scale.color(1.0, 1.0)
    assert scale.color(-math.inf, 1.0) == scale.color(-1.0, 1.0)


@pytest.mark.parametrize(("value", "limit"), [(math.nan, 1.0), (1.0, 0.0), (1.0, math.nan), (1.0, -1.0)])
def test_color_without_a_usable_value_or_limit_is_neutral(value, limit):
    assert scale.color(value, limit) == scale.NEUTRAL


@pytest.mark.parametrize("sign", [1, -1])
def test_lightness_falls_along_both_arms(sign):
    lightness = [scale.lightness(scale.color_at(sign * place)) for place in STOPS]
    assert all(after < before for before, after in pairwise(lightness))


def test_lightness_of_equal_sizes_agrees_on_both_arms():
    for place in STOPS:
        orange, blue = scale.lightness(scale.color_at(place)), scale.lightness(scale.color_at(-place))
        assert abs(orange - blue) < 3.0


def test_lightness_of_white_grey_and_black():
    assert scale.lightness("#ffffff") == pytest.approx(100.0, abs=1e-6)
    assert scale.lightness("#777777") == pytest.approx(50.034, abs=1e-3)
    assert scale.lightness("#000000") == 0.0


def test_foreground_is_readable_on_every_shade():
    for place in STOPS:
        for background in (scale.color_at(place), scale.color_at(-place)):
            assert scale.contrast(background, scale.foreground(background)) >= 4.5
    assert scale.contrast(scale.NEUTRAL, scale.FADED_TEXT) >= 4.0


def test_foreground_is_dark_on_light_and_light_on_dark():
    assert scale.foreground("#f7f7f5") == "#000000"
    assert scale.foreground("#1f64ab") == "#ffffff"


def test_limit_is_the_rounded_quantile_of_the_nonzero_sizes():
    assert scale.limit_of([0.0, 0.123, -0.341, math.nan, math.inf]) == 0.35
    assert scale.limit_of([0.1] * 99 + [50.0]) == 0.1
    assert scale.limit_of([0.1] * 98 + [50.0] * 2) == 50.0


def test_limit_of_nothing_is_one():
    assert scale.limit_of([]) == 1.0
    assert scale.limit_of([0.0, 0.0]) == 1.0


def test_round_up_keeps_two_digits_and_exact_values():
    assert [scale.round_up(v) for v in (0.7, 0.701, 123.4, 1e-9)] == [0.7, 0.71, 130.0, 1e-9]


def test_step_color_has_few_shades_and_a_neutral_middle():
    shades = {scale.step_color(value / 1000, 1.0) for value in range(-1000, 1001)}
    assert len(shades) == 2 * scale.STEPS + 1
    assert scale.step_color(0.06, 1.0) == scale.NEUTRAL
    assert scale.step_color(0.07, 1.0) != scale.NEUTRAL
