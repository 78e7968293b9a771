"""Whether two rational numbers are the same answer: exact, as a rounding, or as a percentage."""

from fractions import Fraction

from ktae_cli.grading.rational import Number, read_number
from ktae_cli.grading.units import split_unit, units_conflict
from ktae_cli.grading.verdict import DEFAULT_TOLERANCE, GradingOptions


class Quantity:
    """A number with its unit and whether a percent sign stood behind it; number is None where there is none."""

    def __init__(self, text: str):
        self.text, self.unit = split_unit(text)
        self.is_percent = self.text.endswith("%")
        if self.is_percent:
            self.text = self.text[:-1].strip()
        self.number = read_number(self.text)

    @property
    def whole(self) -> str:
        """The text without its unit."""
        return f"{self.text}%" if self.is_percent else self.text


def same_quantity(answer: Quantity, gold: Quantity, options: GradingOptions) -> bool:
    """Compare two quantities that both have a number.

    Units conflict only where both are named and `units` is strict. With a percent sign on one side alone the other
    number may be the percentage or, divided by 100, the share; `percent` strict leaves the share.
    """
    if options.units == "strict" and units_conflict(answer.unit, gold.unit):
        return False
    if answer.is_percent == gold.is_percent:
        return same_number(answer.number, gold.number, options.tolerance)
    percentage, plain = (answer.number, gold.number) if answer.is_percent else (gold.number, answer.number)
    share = Number(percentage.value / 100, None if percentage.places is None else percentage.places + 2)
    if same_number(share, plain, options.tolerance):
        return True
    return options.percent == "lax" and same_number(percentage, plain, options.tolerance)


def same_number(answer: Number, gold: Number, tolerance: float) -> bool:
    """Compare two rational numbers: exactly, or with a decimal on one side within the tolerance.

    Accepted is |answer - gold| <= tolerance * |gold|; at the default tolerance or below, the difference must also be
    smaller than one unit of the last decimal place, so that 276543.25 and 276543.26 differ. Two numbers written
    without a decimal point are compared exactly, as are two integers however they are written.
    """
    difference = abs(answer.value - gold.value)
    if difference == 0:
        return True
    places = [number.places for number in (answer, gold) if number.places is not None]
    if not places or (answer.value.denominator == 1 and gold.value.denominator == 1):
        return False
    if difference > Fraction(str(tolerance)) * abs(gold.value):
        return False
    return tolerance > DEFAULT_TOLERANCE or difference < Fraction(1, 10 ** min(places))
