"""A pattern in the response: the gold itself, or one pattern for all rows whose group must be the gold."""

import re
from collections import deque
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.grading.answer import gold_text, spoken
from ktae_cli.grading.compare import GradingOptions, Verdict


def regex(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Search the response, its closed think block apart, for a regular expression.

    Without an argument the gold is the expression, and a match anywhere is right. With one, it is searched for all
    rows: the last match, its first group if it has one, must be the gold's text; no match is `no_answer`. A gold that
    does not compile is `gold_unparsed`; an argument that does not raises `InputError`.
    """
    expected, text = gold_text(gold).strip(), spoken(response)
    if not expected:
        return Verdict(None, "gold_unparsed", "", "", "gold")
    if not options.argument:
        try:
            match = re.search(expected, text)
        except re.error:
            return Verdict(None, "gold_unparsed", "", expected, "gold")
        return Verdict(match is not None, "ok", match[0][:1000] if match else "", expected, "pattern")
    try:
        pattern = re.compile(options.argument)
    except re.error as error:
        raise InputError(f"the pattern {options.argument!r} does not compile: {error}") from None
    matches = deque(pattern.finditer(text), maxlen=1)
    if not matches:
        return Verdict(False, "no_answer", "", expected, "answer")
    match = matches[0]
    said = ((match[1] or "") if pattern.groups else match[0]).strip()
    return Verdict(said == expected, "ok", said[:1000], expected, "pattern")
