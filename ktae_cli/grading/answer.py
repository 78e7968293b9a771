"""The final answer of a response, and the gold answer as text."""

import re
from collections import deque
from typing import Any, NamedTuple

from ktae_cli.errors import InputError
from ktae_cli.grading.boxes import LAST, last_boxes

FORMATS = ("auto", "boxed", "gsm8k", "answer_tag", "last_line")

_THOUGHT_ENDS = ("</think>", "</thinking>", "</thought>", "<|end_of_thought|>")
_SPECIAL = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|</?s>|<(?:pad|eos|im_end|(?:end|start)_of_turn)>|\[PAD\])\Z")
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_OPEN_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)\Z", re.DOTALL | re.IGNORECASE)
_MARKED = re.compile(r"####[ \t]*([^\n]*)")
_LABELLED = re.compile(r"(?:^|\n)[ \t>*#]*(?:A|Answer|Final Answer|答案)[*_ ]*[:：][ \t]*([^\n]*)\s*\Z", re.IGNORECASE)
_CLOSING = re.compile(
    r"(?:\b(?:answers?|solutions?|results?)\b[^\n.,=:：]{0,60}?(?:\b(?:is|are|be)\b[ \t]*:?|[=:：])|答案[是为：:])"
    r"[ \t]*([^\n]+?)\s*\Z",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<![\w.])[-−]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?%?|[-−]?\.\d+%?|\d+(?:\.\d+)?"
)
_WORD = re.compile(
    r"(?<![\\a-zA-Z])(?!(?:sqrt|sin|cos|tan|log|exp|cot|and|pi|ln|or)\b)[a-zA-Z]{2,}|[^\W\d_a-zA-Z]{2,}|[\u3040-\u9fff]"
)
_LINES = 3
_MOST_SPECIALS = 200
_SENTENCE_ENDS = ".!?。*`\\]"
_EDGES = " \t\r\n*_`.。,;!"


class Answer(NamedTuple):
    """The text of a final answer and where it stood: boxed, gsm8k, answer_tag, sentence, last_line or pattern."""

    text: str
    where: str


def check_answer_format(answer_format: str) -> None:
    """Raise `InputError` where the format is neither a name nor a regular expression that compiles."""
    if answer_format in FORMATS:
        return
    try:
        re.compile(answer_format)
    except re.error as error:
        known = ", ".join(FORMATS)
        raise InputError(
            f"--answer-format {answer_format!r}: no regular expression ({error}); use {known} or one that compiles"
        ) from None


def final_answer(response: str, answer_format: str = "auto") -> Answer | None:
    """Return the final answer of a response, or None where it gives none.

    Nothing up to the end of a closed think block counts, nor do special-token strings at the end. auto: of box, `####`
    and answer tag the one that comes last; where none of them stands, `A: x` or "the answer is x" in the last line,
    the last line itself where it holds no word, its last number, its only word. An opened box that nothing closes is
    no answer, and what stands before it is none either, unless an earlier box is closed. Only the end of a long
    response is looked at: the last `LAST` characters, or for lines the last 2,000.
    """
    text = spoken(response)
    if answer_format == "auto":
        return _marked(text) or (None if "\\boxed" in text else _unmarked(text))
    if answer_format == "boxed":
        found = last_boxes(text)
        return Answer(found.text, "boxed") if found else None
    if answer_format == "gsm8k":
        return _last(_MARKED, text[-LAST:], "gsm8k")
    if answer_format == "answer_tag":
        tail = text[-LAST:]
        return _last(_TAGGED, tail, "answer_tag") or _last(_OPEN_TAG, tail, "answer_tag")
    if answer_format == "last_line":
        return _unmarked(text)
    return _last(re.compile(answer_format), text[-LAST:], "pattern")


def spoken(response: str) -> str:
    """Return a response without its closed think block and without the special-token strings at its end."""
    for mark in _THOUGHT_ENDS:
        response = response[response.rfind(mark) + len(mark) :] if mark in response else response
    for _ in range(_MOST_SPECIALS):
        text = response.rstrip(" \t\r\n\f\v\x00")
        mark = _SPECIAL.search(text, max(0, len(text) - 64))
        response = text[: mark.start()] if mark else text
        if not mark:
            break
    return response


def marked_answer(response: str) -> Answer | None:
    """Return what the last of box, `####` and answer tag holds, or None where none stands."""
    return _marked(spoken(response))


def _last(pattern: re.Pattern[str], text: str, where: str) -> Answer | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    if not matches:
        return None
    match = matches[0]
    return Answer((match[1] if match.re.groups and match[1] is not None else match[0]).strip(), where)


def _marked(text: str) -> Answer | None:
    """Return what the last of box, `####` and answer tag says; a box inside another mark is unpacked."""
    marks = max(text.rfind(mark) for mark in ("\\boxed", "\\fbox", "<answer>", "####"))
    tail = text[max(0, min(len(text) - LAST, marks)) :] if marks >= 0 else ""
    found = []
    box = last_boxes(tail)
    if box:
        found.append((box.end, Answer(box.text, "boxed")))
    for pattern, where in ((_MARKED, "gsm8k"), (_TAGGED, "answer_tag"), (_OPEN_TAG, "answer_tag")):
        answer = _last(pattern, tail, where)
        if answer and answer.text:
            found.append((tail.rfind(answer.text) + len(answer.text), answer))
    if not found:
        return None
    answer = max(found, key=lambda item: item[0])[1]
    inner = last_boxes(answer.text) if answer.where != "boxed" else None
    return Answer(inner.text, "boxed") if inner else answer


def _unmarked(text: str) -> Answer | None:
    """Return the answer that the last line gives; a last line without one is passed over, two of them at most."""
    lines = [line.strip(" \t\r") for line in text[-2000:].split("\n")]
    for line in [line for line in lines if line.strip(_EDGES)][: -1 - _LINES : -1]:
        found = _of_line(line.strip(_EDGES))
        if found or not _closed(line) or line[-1] not in _SENTENCE_ENDS:
            return found
    return None


def _of_line(line: str) -> Answer | None:
    if not _closed(line):
        return None
    for pattern in (_LABELLED, _CLOSING):
        match = pattern.search(line)
        said = match[1].strip(_EDGES) if match else ""
        if said:
            said = said if _is_bare(said) else _number(said) or said
            if _is_bare(said) or len(said.split()) <= 2:
                return Answer(said, "sentence")
    if _is_bare(line):
        return Answer(line, "last_line")
    number = _number(line) or (line if re.fullmatch(r"\w+", line) else None)
    return Answer(number, "last_line") if number else None


def _is_bare(line: str) -> bool:
    """Tell whether a line is an expression alone: short, without words."""
    return len(line) <= 200 and not _WORD.search(line)


def _closed(line: str) -> bool:
    """Tell whether a line has as many closing as opening brackets; one that was cut off has fewer."""
    brackets = re.sub(r"\A\w{1,2}\)", "", line)  # the numbering of a list: 1) and a)
    round_or_square = sum(brackets.count(sign) for sign in "([") == sum(brackets.count(sign) for sign in ")]")
    return round_or_square and line.count("{") == line.count("}")


def _number(line: str) -> str | None:
    numbers = _NUMBER.findall(line)
    return numbers[-1] if numbers else None


def gold_text(gold: Any) -> str:
    """Return the gold as it is written, "" for null and NaN.

    Numbers become their shortest text; a list of one is its item, a list of several is joined by commas.
    """
    if hasattr(gold, "tolist"):
        gold = gold.tolist()
    if isinstance(gold, bytes):
        gold = gold.decode("utf-8", "replace")
    if isinstance(gold, list | tuple):
        return ", ".join(map(gold_text, gold))
    if gold is None or gold != gold or isinstance(gold, dict):
        return ""
    return str(gold)


def prepare_gold(gold: Any) -> str:
    """Return the gold answer as text, "" where there is none.

    Of a solution with a box or `####` it is what stands there; texts that say that there is no answer here ("see
    solution", "n/a") give "".
    """
    text = gold_text(gold).strip()
    if "\\boxed" in text or "\\fbox" in text or "####" in text:
        found = _marked(text)
        text = found.text if found else text
    return "" if says_nothing(text) else text


def says_nothing(gold: str) -> bool:
    """Tell whether a gold answer says that the answer is elsewhere or none is known."""
    return gold.lower().strip(" .") in _NO_GOLD


_NO_GOLD = {
    "",
    "null",
    "nan",
    "n/a",
    "na",
    "see solution",
    "see the solution",
    "see explanation",
    "see answer",
    "proof",
}
