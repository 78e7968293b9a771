"""Mathematics: the final answer against the gold answer, by value."""

from typing import Any

from ktae_cli.grading.compare import GradingOptions, Verdict, grade


def math(response: str, gold: Any, options: GradingOptions) -> Verdict:
    """Grade as `ktae_cli.grading.compare.grade` does."""
    return grade(response, gold, options)
