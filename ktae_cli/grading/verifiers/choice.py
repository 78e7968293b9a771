"""Multiple choice: the letter that the response chooses."""

import re
from typing import Any

from ktae_cli.grading.answer import final_answer, prepare_gold, spoken
from ktae_cli.grading.compare import GradingOptions, Verdict
from ktae_cli.grading.normalise import normalise
from ktae_cli.grading.words import choice_letter

_SAID = re.compile(
    r"\b(?:answer|choice|option)\b(?:\s+(?:is|are|would be|should be))?\s*[:=]?\s*[*_(\[]*([A-Z])(?![\w'’])",
    re.IGNORECASE,
)
_LONGEST = 2_000


def choice(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Compare the chosen letter with the gold's, in either case.

    The letter is the final answer where that is `C`, `(C)`, `C.`, `C: text` or `(C) text`; else the last one named
    after "answer", "choice" or "option". A capital inside a formula or a sentence is no choice.
    """
    expected = choice_letter(normalise(prepare_gold(gold)[:_LONGEST]))
    if expected is None:
        return Verdict(None, "gold_unparsed", "", prepare_gold(gold)[:1000], "gold")
    found = final_answer(response, options.answer_format)
    letter = choice_letter(normalise(found.text[:_LONGEST])) if found else None
    path = "letter"
    if (
        letter is None
        and options.answer_format == "auto"
        and (found is None or found.where in ("sentence", "last_line"))
    ):
        named = _SAID.findall(spoken(response)[-_LONGEST:])
        letter, path = (named[-1], "sentence") if named else (None, path)
    if letter is None:
        return Verdict(False, "no_answer", found.text[:1000] if found else "", expected.upper(), "answer")
    return Verdict(letter.upper() == expected.upper(), "ok", letter.upper(), expected.upper(), path)
