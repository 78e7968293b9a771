"""One spelling for what the field writes in many: signs, fractions, roots, separators, text and blanks."""

import re
import unicodedata
from functools import lru_cache

_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ", "÷": r"\div ",
    "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "−": "-", "–": "-", "—": "-", "‐": "-", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ø": r"\emptyset ", "±": r"\pm ", "°": r"^\circ ",
    "ℝ": r"\mathbb{R}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "…": r"\ldots ", "≈": r"\approx ", "“": "", "”": "", "’": "'",
    "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "、": ",",
}  # fmt: skip
_SIGN_TABLE = str.maketrans(_SIGNS)
_CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n\r\f\v"}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"

_TEXTS = "text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|boldsymbol"

_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\s+", " "),
        (r"(\d)\s*(?:,\\!|\{,\}|\\,|\\;|\\ )\s*(?=\d{3}(?!\d))", r"\1"),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])", ""),
        (r"\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])", ""),
        (r"(?<!\\)\\(?:[,;:!> ]|quad|qquad|enspace|hspace\{[^{}]*\})|~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:mathrm|operatorname|rm)\s*\{(" + _FUNCTIONS + r")\}", r"\\\1 "),
        (r"\\(?:" + _TEXTS + r")\s*\{([^{}]*)\}", r" \1 "),
        (r"\\(?:boxed|fbox)\s*\{([^{}]*)\}", r"\1"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset "),
        (r"\\(?:dots|cdots|dotsc)(?![a-zA-Z])", r"\\ldots "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:begin|end)\{(?:equation|align)\*?\}", ""),
        (r"\\begin\{[bpvBV]?(?:small)?matrix\}", r"\\begin{matrix}"),
        (r"\\end\{[bpvBV]?(?:small)?matrix\}", r"\\end{matrix}"),
        (r"\\[\[\]()]|\\?\$", " "),
        (r"\\%", "%"),
        (r"\s*(?:\bpercent(?:age)?\b|\bpct\b)", "%"),
        (r"(?<=[\w)}])\s*\*\*\s*(?=[\w({-])", "^"),
        (r"\*{2,}|`", " "),
        (r"\^\s*\{?\s*\\circ\s*\}?", r"^\\circ "),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s+(?=[\[{])", r"\\sqrt"),
        (r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}"),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*\{([^{}]*)\}", r"\\sqrt{\1}"),
        (r"√\s*(\d+(?:\.\d+)?|[a-zA-Z])", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])sqrt\s*\{", r"\\sqrt{"),
        (r"(?<![\\a-zA-Z])sqrt\s*(\d+)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![\\a-zA-Z])(?:infinity|infty)(?![a-zA-Z])", r"\\infty "),
        (r"\\(" + _FUNCTIONS + r")(?!h)(?=[a-zA-Z](?![a-zA-Z]))", r"\\\1 "),
        (r"_\s*\{\s*(\d+)\s*\}", r"_\1"),
        (r"\+\s*-", "-"),
        (r"(?<=\d)i(?![a-zA-Z])", " i"),
        (r"(^|[,(\[{])\s*\+\s*(?=\\infty|\d)", r"\1"),
        (r"(\.\d{100})\d+", r"\1"),
        (r"(?<=\d)\s*\^?\s*\{?\s*(?:st|nd|rd|th)\b\s*\}?", ""),
        (r"^(-?)0+(?=\d)", r"\1"),
        (r"^(-?\d+) (\d+)/(\d+)$", r"\1\\frac{\2}{\3}"),
        (r"^(?:\\approx(?![a-z])|=)\s*", ""),
        (r"(?<![\d.])(\d+)\.0+(?!\d)", r"\1"),
        (r"\s+", " "),
    )
]  # fmt: skip
_GROUPED = re.compile(r"([-+]?)\s*(\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+)((?:\.\d+)?)(?![\d,.])")
_TRAILING = " .。,;:"
_LONGEST = 20_000


@lru_cache(maxsize=1 << 13)  # gold answers and the answers of a prompt repeat
def normalise(text: str) -> str:
    """Return the text in one spelling; a second call changes nothing.

    Typographic signs and full-width characters become LaTeX or ASCII; sizes, thin blanks, dollar signs, \\text and the
    trailing full stop go; fractions and roots get their braces; digits grouped by commas or blanks are joined where
    the number is the whole text. Nothing here depends on what the text is compared with.
    """
    text = text[:_LONGEST].translate(_CONTROL)
    for _ in range(8):
        before = text
        text = _rewritten(text)
        if text == before:
            break
    return text


def _rewritten(text: str) -> str:
    if not text.isascii():
        text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: f"^{{{found[0].translate(_RAISED)}}}", text)
        text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda found: f"_{found[0].translate(_LOWERED)}", text)
        text = unicodedata.normalize("NFKC", text.translate(_SIGN_TABLE))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip()
    while text and text[-1] in _TRAILING and not text.endswith("\\"):
        text = text[:-1].rstrip()
    grouped = _GROUPED.match(text)
    if grouped and not re.search(r"\d", text[grouped.end() :]) and "," not in text[grouped.end() :]:
        joined = re.sub(r"[ ,]", "", grouped[2])
        text = f"{grouped[1]}{joined}{grouped[3]}{text[grouped.end() :]}"
    return _unbraced(text)


def _unbraced(text: str) -> str:
    """Take off one pair of braces that holds the whole text."""
    if text.startswith("{") and text.endswith("}") and not text.endswith("\\}"):
        depth = 0
        for place, sign in enumerate(text):
            depth += (sign == "{") - (sign == "}")
            if depth == 0:
                return text[1:-1].strip() if place == len(text) - 1 else text
    return text
