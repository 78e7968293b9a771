"""Whether two normalised texts are the same answer, step by step from the cheapest."""

import re
from collections import Counter
from collections.abc import Callable

from ktae_cli.grading.numbers import Quantity, same_quantity
from ktae_cli.grading.rational import TooComplexError
from ktae_cli.grading.shape import (
    Sequence,
    as_intervals,
    assignment,
    is_interval,
    matrix_entries,
    membership,
    names_assigned,
    sequence,
    union,
)
from ktae_cli.grading.verdict import GradingOptions
from ktae_cli.grading.words import clock, phrase, same_letter

Ask = Callable[[str, str], tuple[bool, str]]
Found = tuple[bool | None, str]

_BASED = re.compile(r"(\w+)_(\d+)")
_RATIO = re.compile(r"\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+")
_NOT_EQUAL = re.compile(r"\\ne(?![a-z])")
_MOST_ITEMS = 24
_UNKNOWN: Found = (None, "")


def same(answer: str, gold: str, options: GradingOptions, ask: Ask | None = None) -> Found:
    """Return (verdict, deciding step) for two normalised texts; the verdict is None where only `ask` could tell.

    Steps: text, letter, word, number, items of lists and intervals one by one, then `ask`.
    """
    answer, gold = membership(answer), membership(gold)
    answer, gold = _values(_exact_side(answer), _exact_side(gold))
    if compact(answer) == compact(gold):
        return True, "text"
    if "\\ne " in answer or "\\ne " in gold:
        return _same_in_order(_NOT_EQUAL.split(answer), _NOT_EQUAL.split(gold), options, ask)
    for step in (_same_words, _same_numbers, _same_sets):
        found = step(answer, gold, options, ask)
        if found[0] is not None:
            return found
    if "\\ldots" in gold:
        return False, "text"
    return ask(Quantity(answer).whole, Quantity(gold).whole) if ask else _UNKNOWN


def compact(text: str) -> str:
    """Return a text without blanks, those between two digits excepted."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _exact_side(text: str) -> str:
    return text.partition("\\approx")[0].strip() or text


def _values(answer: str, gold: str) -> tuple[str, str]:
    """Take `x =` off where both sides name the same or one names nothing and is no equation."""
    (name, value), (gold_name, gold_value) = assignment(answer), assignment(gold)
    if name and gold_name:
        return (value, gold_value) if name == gold_name else (answer, gold)
    if (name and "=" in gold) or (gold_name and "=" in answer):
        return answer, gold
    return value, gold_value


def _same_words(answer: str, gold: str, options: GradingOptions, ask: Ask | None) -> Found:
    letters = same_letter(answer, gold)
    if letters is not None:
        return letters, "letter"
    times = clock(answer), clock(gold)
    if all(times):
        return times[0] == times[1], "time"
    said, expected = phrase(answer), phrase(gold)
    if said is not None and expected is not None:
        return said == expected, "word"
    if expected is not None and Quantity(answer).number is not None:
        return False, "word"
    if said is not None and Quantity(gold).number is not None:
        return False, "word"
    return _UNKNOWN


def _same_numbers(answer: str, gold: str, options: GradingOptions, ask: Ask | None) -> Found:
    based, expected = _BASED.fullmatch(answer), _BASED.fullmatch(gold)
    if based and expected:
        return based.groups() == expected.groups(), "number"
    if expected and Quantity(answer).number is not None:
        return False, "number"
    if _RATIO.fullmatch(answer) and _RATIO.fullmatch(gold):
        pairs = zip(answer.split(":"), gold.split(":"), strict=False)
        equal = answer.count(":") == gold.count(":") and all(
            same_quantity(Quantity(one.strip()), Quantity(other.strip()), options) for one, other in pairs
        )
        return equal, "ratio"
    first, second = Quantity(answer), Quantity(gold)
    if first.number is None or second.number is None:
        return _UNKNOWN
    return same_quantity(first, second, options), "number"


def _same_sets(answer: str, gold: str, options: GradingOptions, ask: Ask | None) -> Found:
    if is_interval(gold) and not is_interval(answer):
        answer = as_intervals(answer) or answer
    elif is_interval(answer) and not is_interval(gold):
        gold = as_intervals(gold) or gold
    parts, expected_parts = union(answer), union(gold)
    if len(parts) > 1 and len(parts) == len(expected_parts):
        return _same_items(parts, expected_parts, options, ask)
    entries, expected_entries = matrix_entries(answer), matrix_entries(gold)
    if len(expected_entries) == 1 and len(entries) > 1:
        # Golds stripped of blanks and backslashes lose their separators: \begin{pmatrix}-18-4996\end{pmatrix}.
        return compact("".join(entries)) == compact(expected_entries[0]), "joined_entries"
    found, expected = sequence(answer), sequence(gold)
    if found is None and expected is None:
        return _UNKNOWN
    if found is None or expected is None:
        one, several = (gold, found) if expected is None else (answer, expected)
        items = _distinct(several.items, options)
        if len(items) == 1 and not several.ordered:
            return same(items[0], gold, options, ask) if expected is None else same(answer, items[0], options, ask)
        return (False, "items") if Quantity(one).number is not None or phrase(one) else _UNKNOWN
    return _same_sequences(found, expected, options, ask)


def _same_sequences(found: Sequence, expected: Sequence, options: GradingOptions, ask: Ask | None) -> Found:
    names, expected_names = names_assigned(found.items), names_assigned(expected.items)
    if names and expected_names:
        if sorted(names) != sorted(expected_names):
            return False, "items"
    elif names and expected.ordered:
        found = Sequence([assignment(item)[1] for item in found.items], "(", ")")
    elif expected_names and found.ordered:
        expected = Sequence([assignment(item)[1] for item in expected.items], "(", ")")
    if found.ordered and expected.ordered:
        if (found.opening, found.closing) != (expected.opening, expected.closing):
            return False, "brackets"
        return _same_in_order(found.items, expected.items, options, ask)
    if found.ordered or expected.ordered:
        if (found.opening or expected.opening) + (found.closing or expected.closing) != "()":
            return False, "brackets"
        return _same_in_order(found.items, expected.items, options, ask)
    return _same_items(_distinct(found.items, options), _distinct(expected.items, options), options, ask)


def _same_in_order(found: list[str], expected: list[str], options: GradingOptions, ask: Ask | None) -> Found:
    if len(found) != len(expected):
        return False, "items"
    verdicts = []
    for one, other in zip(found, expected, strict=True):
        verdicts.append(same(one, other, options, ask)[0])
        if verdicts[-1] is False:
            return False, "items"
    return (True, "items") if all(verdicts) else _UNKNOWN


def _same_items(found: list[str], expected: list[str], options: GradingOptions, ask: Ask | None) -> Found:
    """Match items regardless of order, each one once."""
    if len(found) != len(expected):
        return False, "items"
    counts = Counter(map(compact, found))
    unmatched = [item for item in expected if not _drawn(counts, compact(item))]
    rest, open_items = list(counts.elements()), False
    if len(rest) > _MOST_ITEMS:
        raise TooComplexError("too many items")
    for wanted in unmatched:
        match, possible = None, False
        for place, item in enumerate(rest):
            verdict = same(item, wanted, options, ask)[0]
            if verdict:
                match = place
                break
            possible |= verdict is None
        if match is not None:
            rest.pop(match)
        elif possible:
            open_items = True
        else:
            return False, "items"
    return _UNKNOWN if open_items else (True, "items")


def _drawn(counts: Counter[str], text: str) -> bool:
    """Take one such text out of the count, or tell that there is none."""
    if not counts[text]:
        return False
    counts[text] -= 1
    return True


def _distinct(items: list[str], options: GradingOptions) -> list[str]:
    """Drop items that equal an earlier one."""
    items = list({compact(item): item for item in reversed(items)}.values())[::-1]
    if len(items) > _MOST_ITEMS:
        return items
    kept: list[str] = []
    for item in items:
        if not any(same(item, other, options)[0] for other in kept):
            kept.append(item)
    return kept
