"""The same text: the whole response, or the answer that it marks, against the gold."""

from typing import Any

from ktae_cli.grading.answer import final_answer, gold_text, marked_answer, spoken
from ktae_cli.grading.compare import GradingOptions, Verdict


def exact(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Tell whether the answer and the gold are the same text, blanks at both ends and line ends apart.

    With the answer format auto, the answer is what a box, `####` or an answer tag holds, else the whole response
    without its closed think block; with another format it is what that format finds.
    """
    expected = _plain(gold_text(gold))
    if not expected:
        return Verdict(None, "gold_unparsed", "", "", "gold")
    if options.answer_format == "auto":
        found = marked_answer(response)
        said = _plain(found.text if found else spoken(response))
    else:
        found = final_answer(response, options.answer_format)
        said = _plain(found.text) if found else ""
    if not said:
        return Verdict(False, "no_answer", "", expected[:1000], "answer")
    return Verdict(said == expected, "ok", said[:1000], expected[:1000], "text")


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
