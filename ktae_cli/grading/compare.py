"""One response against one gold answer: cheap exact paths first, then math-verify, then a second look."""

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ktae_cli.grading.answer import final_answer, prepare_gold, says_nothing
from ktae_cli.grading.limits import LONGEST, check_size
from ktae_cli.grading.normalise import normalise
from ktae_cli.grading.rational import TooComplexError
from ktae_cli.grading.same import same
from ktae_cli.grading.verdict import GradingOptions, Verdict

__all__ = ["GradingOptions", "Question", "Verdict", "cheap_verdict", "first_look", "grade", "settle"]


_LONG = 2_000
_LONGEST_LITERAL = 20_000
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?")


class Question(NamedTuple):
    """What only math-verify can decide: two short normalised texts, the key under which a verdict may be cached."""

    answer: str
    gold: str


def first_look(response: str, gold: Any, options: GradingOptions) -> Verdict | Question:
    """Decide without math-verify where that is possible; else return what has to be asked.

    A verdict without an answer is False under `no_answer`; without a gold it is None under `gold_unparsed`. An answer
    that is refused before anything is computed is None under `too_complex`.
    """
    written = prepare_gold(gold)
    if not _is_long(written):
        written = normalise(written)
    if not written or says_nothing(written):
        return Verdict(None, "gold_unparsed", "", "", "gold")
    found = final_answer(response, options.answer_format)
    said = found.text if found else ""
    if _is_long(said) or _is_long(written):
        return _of_long_texts(said, written)
    text, expected = normalise(said), written
    if not text:
        return Verdict(False, "no_answer", "", expected, "answer")
    return _settled_cheaply(text, expected, options) or Question(text, expected)


@lru_cache(maxsize=1 << 13)  # the rollouts of a prompt repeat their answers
def _settled_cheaply(answer: str, gold: str, options: GradingOptions) -> Verdict | None:
    return _settled(answer, gold, options)


def _is_long(text: str) -> bool:
    return len(text) > _LONG and not (len(text) <= _LONGEST_LITERAL and _LITERAL.fullmatch(text))


def _of_long_texts(answer: str, gold: str) -> Verdict:
    """Compare letter by letter what is too long to be normalised."""
    shown = answer[:1000], gold[:1000]
    return Verdict(True, "ok", *shown, "text") if answer == gold else Verdict(None, "too_complex", *shown, "limit")


def cheap_verdict(response: str, gold: Any, options: GradingOptions) -> Verdict | None:
    """Return the verdict that needs no worker, or None."""
    found = first_look(response, gold, options)
    return found if isinstance(found, Verdict) else None


def settle(question: Question, options: GradingOptions) -> Verdict:
    """Decide with math-verify; may run for ever or exhaust the memory: call it in a process that can be killed."""
    from ktae_cli.grading.symbolic import GoldUnparsedError, same_expression

    try:
        verdict = _settled(question.answer, question.gold, options, partial(same_expression, options=options))
    except GoldUnparsedError:
        return Verdict(None, "gold_unparsed", question.answer, question.gold, "math_verify")
    except (MemoryError, RecursionError) as error:
        return Verdict(None, "too_complex", question.answer, question.gold, type(error).__name__)
    except Exception as error:
        return Verdict(None, "error", question.answer, question.gold, type(error).__name__)
    return verdict or Verdict(None, "error", question.answer, question.gold, "undecided")


def grade(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Grade one response in this process."""
    found = first_look(response, gold, options)
    return found if isinstance(found, Verdict) else settle(found, options)


def _settled(
    answer: str, gold: str, options: GradingOptions, ask: Callable[[str, str], tuple[bool, str]] | None = None
) -> Verdict | None:
    if answer == gold:
        return Verdict(True, "ok", answer, gold, "text")
    if max(len(answer), len(gold)) > LONGEST and all(_LITERAL.fullmatch(text) for text in (answer, gold)):
        return Verdict(Decimal(answer) == Decimal(gold), "ok", answer[:1000], gold[:1000], "number")
    try:
        for text in (answer, gold):
            check_size(text)
        correct, path = same(answer, gold, options, ask)
    except TooComplexError:
        return Verdict(None, "too_complex", answer[:1000], gold[:1000], "limit")
    return None if correct is None else Verdict(correct, "ok", answer, gold, path)
