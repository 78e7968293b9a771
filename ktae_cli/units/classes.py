"""The class of a unit by declared rules: what kind of writing it is, from its text and a few facts about it."""

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ktae_cli.units.text import looks_special

CLASSES = (
    "special", "format", "hedging", "number", "operator", "language", "repetition", "copied", "word", "whitespace",
    "other",
)  # fmt: skip
"""The classes in the order in which they are tried."""

MOSTLY_COPIED = 0.8
"""Share of the rollouts with a unit whose prompt holds it, from which it counts as copied."""

MOSTLY_REPEATED = 0.2
"""Share of the counted tokens, over the rollouts with a unit, that are its own, from which it is a repetition."""

LONGEST_FORMAT = 40
"""Characters beyond which a unit is more than format."""

HEDGES = (
    "wait", "hm+", "uh", "um", "oh", "oops", "but", "however", "although", "though", "maybe", "perhaps", "possibly",
    "probably", "might", "actually", "alternatively", "instead", "otherwise", "unless", "seems?", "unsure", "unclear",
    "confused", "confusing", "suppose", "guess", "guessing", "not sure", "i think", "on second thought", "hold on",
    "hang on", "let (?:me|us) (?:check|verify|see|try)", "let's (?:check|verify|see|try)", "double[ -]?check(?:ing)?",
    r"re-?(?:check|consider|think|examine|evaluate|calculate|read|do|start)\w*", "verify", "verifying", "mistakes?",
    "mistaken", "incorrect", "wrong", "sorry", "try again", "go back", "going back", "start over",
)  # fmt: skip
"""Words of doubt and of self-correction, as regular expressions of whole words; case does not matter."""

CHINESE_HEDGES = ("等等", "等一下", "但是", "不过", "然而", "可能", "也许", "或许", "不对", "重新", "检查", "再想")
"""The same in Chinese, where words have no borders."""

OPERATOR_COMMANDS = (
    "times", "cdot", "div", "pm", "mp", "leq?", "geq?", "neq?", "lt", "gt", "approx", "equiv", "sim", "implies", "iff",
    "leftarrow", "rightarrow", "Leftarrow", "Rightarrow", "to", "sum", "prod", "int", "cup", "cap", "bmod", "pmod",
)  # fmt: skip
"""Commands of LaTeX that are operators; every other one is format."""

_NAMES = "think|thinking|thought|answer|solution|reasoning|reason|tool_call|tool_response|code|output"
_OPERATION = rf"(?:{'|'.join(OPERATOR_COMMANDS)})(?![a-zA-Z])"
_BRACKETS = r"[\[\](){}$\\ \t]*"
FORMATS = (
    rf"(?:</?(?:{_NAMES})>\s*)+", rf"</?(?:{_NAMES})", "</", "/?think>?(?<! think)",  # tags and the pieces of them
    r"boxed\{?", "fbox", "[dt]?frac", "math(?:rm|bf|bb)|[cl]dots|displaystyle",  # commands without their backslash
    rf"{_BRACKETS}\\(?!{_OPERATION})[a-zA-Z]+{_BRACKETS}", r"\\+|\\[()\[\],;:! ]", r"[\[\]{}$]",
    rf"(?=[^.,;]*[\[\]{{}}$\\]){_BRACKETS}[.,;]?",  # brackets, where not only round
    r"\s*[.,:;)}\]$*]*\s*\n\s*",
    r"#{1,6}|\*{2,}[.:]?|_{2,}|-{3,}|={3,}|~{2}|\|[-:| ]+\||`+\w*|•",  # lines and markdown
    r"(?:\*\*)?(?i:final )?(?i:answer)(?:\*\*)?:(?:\*\*)?", "A:",
)  # fmt: skip
"""Writing that shapes a response, as regular expressions of whole units without the blanks around them."""

_FORMAT = re.compile(rf"[ \t]*(?:{'|'.join(FORMATS)})[ \t]*")
_HEDGE = re.compile(rf"(?<!\w)(?:{'|'.join(HEDGES)})(?!\w)|{'|'.join(CHINESE_HEDGES)}", re.IGNORECASE)
_OPERATOR = re.compile(rf"[-+*/=<>^%&|~!°·⋅]+|\\{_OPERATION}")

_ONE_SCRIPT = {"CJK": "han", "HIRAGANA": "han", "KATAKANA": "han", "BOPOMOFO": "han", "FULLWIDTH": "latin"}


class Unit(NamedTuple):
    """What the rules look at; see `class_of`."""

    text: str
    special: bool
    script: str | None
    repetition: float
    copied: float


def _is_format(unit: Unit) -> bool:
    return len(unit.text) <= LONGEST_FORMAT and _FORMAT.fullmatch(unit.text) is not None


def _is_number(unit: Unit) -> bool:
    text = unit.text.strip()
    return any(map(str.isnumeric, text)) and all(c.isnumeric() or c in "+-−.,/%$€£" for c in text)


def _is_operator(unit: Unit) -> bool:
    text = unit.text.strip()
    signs = bool(text) and all(unicodedata.category(c) == "Sm" for c in text)
    return signs or _OPERATOR.fullmatch(text) is not None


def _is_foreign(unit: Unit) -> bool:
    return unit.script is not None and script_of(unit.text) not in (None, unit.script)


RULES: tuple[Callable[[Unit], bool], ...] = (
    lambda unit: unit.special or looks_special(unit.text.strip()),
    _is_format,
    lambda unit: _HEDGE.search(unit.text) is not None,
    _is_number,
    _is_operator,
    _is_foreign,
    lambda unit: unit.repetition >= MOSTLY_REPEATED,
    lambda unit: unit.copied >= MOSTLY_COPIED,
    lambda unit: any(map(str.isalpha, unit.text)),
    lambda unit: unit.text.isspace(),
    lambda unit: True,
)


def class_of(
    text: str, *, special: bool = False, script: str | None = None, repetition: float = 0.0, copied: float = 0.0
) -> str:
    """Return the class of a unit: the first of `CLASSES` whose rule fits.

    text: the unit as it stands in responses, its blanks included. special: it is a special token, such as end of text.
    format: tags, boxes, Markdown, commands and brackets of LaTeX, ends of lines (`FORMATS`). hedging: a word of doubt
    or self-correction stands in it (`HEDGES`). number: digits and their signs. operator: signs and commands of
    arithmetic. language: most letters are of another script than `script`, the one of most of the file's text
    (`majority_script`); None judges no script. repetition: the unit makes up at least a fifth of the counted tokens of
    the rollouts that hold it; `repetition` is tokens in its occurrences / counted tokens, both summed over these
    rollouts, a word or match taken as one token. copied: in at least four fifths of the rollouts that hold it the
    prompt holds it too; `copied` is that share.
    word: any letter. whitespace: blanks alone. other: the rest, such as punctuation.
    """
    unit = Unit(text, special, script, repetition, copied)
    return next(name for name, fits in zip(CLASSES, RULES, strict=True) if fits(unit))


def script_of(text: str) -> str | None:
    """Return the script of most letters of a text, as "latin" or "han" (with kana); None where there are none.

    A single Greek letter and the letters of mathematical alphabets are signs of a formula, not of a language.
    """
    counts: dict[str, int] = {}
    for letter in filter(str.isalpha, text):
        first = unicodedata.name(letter, "").partition(" ")[0]
        if first and first not in ("MATHEMATICAL", "DOUBLE-STRUCK", "SCRIPT", "MODIFIER", "MICRO"):
            name = _ONE_SCRIPT.get(first, first.lower())
            counts[name] = counts.get(name, 0) + 1
    if counts == {"greek": 1}:
        return None
    return max(sorted(counts), key=counts.__getitem__, default=None)


def majority_script(texts: Iterable[str], weights: Iterable[float]) -> str | None:
    """Return the script that most of the weighted texts are written in; None where no text has letters."""
    totals: dict[str, float] = {}
    for text, weight in zip(texts, weights, strict=True):
        script = script_of(text)
        if script is not None:
            totals[script] = totals.get(script, 0.0) + weight
    return max(sorted(totals), key=totals.__getitem__, default=None)
