"""The last box of a text: `\\boxed{…}` and `\\fbox{…}` with balanced braces."""

import re
from itertools import islice
from typing import NamedTuple

LAST = 20_000
"""Characters at the end of a response in which an answer is looked for; a longer answer is followed to its mark."""

_MOST_BOXES = 40
_MOST_BRACES = 50_000
_OPENING = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BETWEEN = re.compile(r"[\s$.,;]*(?:\\\)|\\\]|\\text\s*\{)?\s*(?:,|;|and|or)?\s*(?:\}|\\\(|\\\[)?[\s$,;]*")


class Box(NamedTuple):
    """What a box holds and where it ends."""

    text: str
    start: int
    end: int


def last_boxes(text: str) -> Box | None:
    """Return the last balanced box, joined by a comma with those right before it, or None.

    Boxes are joined when nothing but a comma, a semicolon, "and", "or", dollar signs and blanks stands between them;
    equal ones count once. A box that is never closed is passed over; the last box wins even where it is empty.
    """
    offset = max(0, min(len(text) - LAST, max(text.rfind("\\boxed"), text.rfind("\\fbox"))))
    boxes = _balanced(text[offset:])
    if not boxes:
        return None
    first = len(boxes) - 1
    while first and _BETWEEN.fullmatch(text[offset + boxes[first - 1].end : offset + boxes[first].start]):
        first -= 1
    run = list(dict.fromkeys(box.text for box in boxes[first:]))
    return Box(", ".join(run), offset + boxes[first].start, offset + boxes[-1].end)


def _balanced(text: str) -> list[Box]:
    """List the closed outer boxes among the last few."""
    boxes: list[Box] = []
    for opening in list(_OPENING.finditer(text))[-_MOST_BOXES:]:
        if boxes and opening.start() < boxes[-1].end:
            continue
        box = _closed(text, opening)
        if box:
            boxes.append(box)
    return boxes


def _closed(text: str, opening: re.Match[str]) -> Box | None:
    start = opening.end()
    if not text.startswith("{", start):
        # \boxed 7 and \boxed7: LaTeX takes one token, people mean the number or the word.
        bare = re.compile(r"-?[\w.]+").match(text, start)
        return Box(bare[0].rstrip("."), opening.start(), bare.end()) if bare else None
    depth = 0
    for brace in islice(_BRACE.finditer(text, start), _MOST_BRACES):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return Box(text[start + 1 : brace.start()].strip(), opening.start(), brace.end())
    return None
