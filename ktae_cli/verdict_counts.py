"""What the verdicts of a file add up to, by themselves and beside an earlier verdict."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ktae_cli.grading.pool import NO_RESPONSE
from ktae_cli.grading.verdict import STATUSES, Verdict

KEPT_DIFFERENCES = 1000
"""So many rows that differ are kept with their texts; all are counted."""

_NAMES = {True: "true", False: "false", None: "null"}


class VerdictCounts:
    """Counts of verdicts, statuses and paths; with an earlier verdict also the confusion table and what differs."""

    def __init__(self, place: Callable[[int], str], compares: bool):
        self.place = place
        self.verdicts: Counter[bool | None] = Counter()
        self.statuses: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.confusion: Counter[tuple[str, str]] | None = Counter() if compares else None
        self.differing: list[dict[str, Any]] = []
        self.first_failure = ""

    def add(self, numbers: np.ndarray, verdicts: Sequence[Verdict], earlier: np.ndarray | None) -> None:
        """Count rows: their numbers in the input (n,), and an earlier verdict of each (n,) int8, -1 unknown."""
        for i, verdict in enumerate(verdicts):
            self.verdicts[verdict.correct] += 1
            self.statuses[verdict.status] += 1
            self.paths[verdict.path] += 1
            if verdict.status in ("timeout", "error") and not self.first_failure:
                self.first_failure = f"{self.place(int(numbers[i]))}: {verdict.status}, {verdict.path}"
            if earlier is not None:
                before = None if earlier[i] < 0 else bool(earlier[i])
                self.confusion[_NAMES[before], _NAMES[verdict.correct]] += 1
                if before != verdict.correct:
                    self._keep(int(numbers[i]), before, verdict)

    def _keep(self, number: int, before: bool | None, verdict: Verdict) -> None:
        if len(self.differing) < KEPT_DIFFERENCES:
            self.differing.append({"row": number, "place": self.place(number), "before": before, **verdict._asdict()})

    @property
    def rows(self) -> int:
        """All rows."""
        return self.verdicts.total()

    @property
    def accuracy(self) -> float | None:
        """Return right / (right + wrong), None where no verdict is known: an unknown one counts as neither."""
        known = self.verdicts[True] + self.verdicts[False]
        return self.verdicts[True] / known if known else None

    @property
    def failed(self) -> bool:
        """Tell whether every row that could have a verdict ended in a time-out or an error."""
        failures = self.statuses["timeout"] + self.statuses["error"]
        return failures > 0 and failures == self.given - self.statuses["gold_unparsed"]

    @property
    def given(self) -> int:
        """Rows that have a response."""
        return self.rows - self.paths[NO_RESPONSE]

    def summary(self) -> dict[str, Any]:
        """Return the counts as JSON has them."""
        found = {
            "rollouts": self.rows,
            "correct": self.verdicts[True],
            "wrong": self.verdicts[False],
            "unknown": self.verdicts[None],
            "accuracy": self.accuracy,
            "statuses": {name: self.statuses[name] for name in STATUSES},
            "paths": dict(sorted(self.paths.items())),
        }
        if self.confusion is not None:
            table = {b: {a: self.confusion[b, a] for a in ("true", "false", "null")} for b in ("true", "false", "null")}
            differing = self.rows - sum(table[name][name] for name in table)
            both = sum(table[b][a] for b in ("true", "false") for a in ("true", "false"))
            agreement = (table["true"]["true"] + table["false"]["false"]) / both if both else None
            found["compare"] = {
                "table": table, "agreement": agreement, "differing": differing, "rows": self.differing,
            }  # fmt: skip
        return found
