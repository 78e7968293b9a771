"""KT504: prompts that hold their answer."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT504", needs=("group", "prompt", "ground_truth"), severity="warning", sees="table")
def answer_in_prompt(table: Table, *, share: float = 0.3) -> Iterator[Finding]:
    """The ground truth stands in the prompt, in more than `share` of the groups (default 0.3).

    Compared as a whole word or number, and only where it has two digits or four letters, since shorter ones are there
    by chance. A policy can copy such an answer without solving anything, and what it copies looks like a key token.
    Look for solutions left in the prompt, or few-shot examples that repeat the question. Tasks that ask to choose from
    given words do this by nature.
    """
    t = table.trajectories
    known, there = t.count(t.truth_in_prompt >= 0) > 0, t.count(t.truth_in_prompt == 1) > 0
    if there.sum() > share * max(int(known.sum()), 1):
        rate = {}
        for name, groups in (("with", there), ("without", known & ~there)):
            rows = groups[t.group] & (t.correct >= 0)
            rate[name] = f"{100 * np.mean(t.correct[rows] == 1):.0f} %" if rows.any() else "-"
        yield Finding(
            f"{of(int(there.sum()), int(known.sum()))} groups have the ground truth in the prompt: it can be copied "
            f"(pass rate {rate['with']}, of the others {rate['without']})",
            t.first_row(int(there.argmax())),
            int(there.sum()),
            int(known.sum()),
        )
