"""The same number: integers, decimals, fractions and powers, without algebra."""

from typing import Any

from ktae_cli.grading.answer import final_answer, prepare_gold
from ktae_cli.grading.compare import GradingOptions, Verdict
from ktae_cli.grading.limits import LONGEST
from ktae_cli.grading.normalise import normalise
from ktae_cli.grading.numbers import Quantity, same_quantity
from ktae_cli.grading.rational import TooComplexError
from ktae_cli.grading.shape import assignment


def numeric(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Compare two numbers as `ktae_cli.grading.numbers.same_quantity` does; an answer that is none is `no_answer`."""
    written = prepare_gold(gold)
    found = final_answer(response, options.answer_format)
    said = found.text if found else ""
    if max(len(written), len(said)) > LONGEST:
        return Verdict(None, "too_complex", said[:1000], written[:1000], "limit")
    expected, text = normalise(written), normalise(said)
    try:
        wanted, number = Quantity(assignment(expected)[1]), Quantity(assignment(text)[1])
    except TooComplexError:
        return Verdict(None, "too_complex", text, expected, "limit")
    if wanted.number is None:
        return Verdict(None, "gold_unparsed", text, expected, "gold")
    if number.number is None:
        return Verdict(False, "no_answer", text, expected, "answer")
    return Verdict(same_quantity(number, wanted, options), "ok", text, expected, "number")
