"""What a grader says of one response, and the choices under which it says so."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

DEFAULT_TOLERANCE = 1e-6

STATUSES = ("ok", "no_answer", "gold_unparsed", "timeout", "error", "too_complex")
"""Why a verdict is what it is; `correct` is known under the first two and null under the others."""


class Verdict(NamedTuple):
    """One graded response.

    correct: None where nobody can tell, never folded into False; status: one of `STATUSES`; answer, gold: as compared,
    normalised, "" where there is none; path: the step that decided.
    """

    correct: bool | None
    status: str
    answer: str
    gold: str
    path: str


@dataclass(frozen=True)
class GradingOptions:
    """The choices where strict and lax graders differ; recorded in the metadata of what is written.

    answer_format: auto, boxed, gsm8k, answer_tag, last_line, or a regular expression whose first group (else the whole
    match) is the answer, the last match counting. units: strict compares units that both sides name, ignore drops
    them. percent: lax takes `28\\%` for 28 and for 0.28, strict for 0.28 alone. tolerance: relative difference up to
    which a decimal stands for a number that it rounds; 0 asks for exact equality. argument: what a verifier
    that takes one is told (the pattern of regex, the path of json_field).
    """

    answer_format: str = "auto"
    units: Literal["strict", "ignore"] = "strict"
    percent: Literal["lax", "strict"] = "lax"
    tolerance: float = DEFAULT_TOLERANCE
    argument: str = ""
