"""KT311: rollouts without a token of the policy."""

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule


@rule(id="KT311", needs=("response_ids",), severity="warning", sees="rows")
def nothing_to_train(input: Input, *, share: float = 0.0) -> Watch:
    """Responses are empty or masked throughout, more than `share` of all (default: any).

    They train nothing, but their reward still moves the mean of their group, and they count as rollouts without every
    token. An inverted mask or an aborted request is the usual cause. Drop the rows, or repair the mask.
    """
    marks = Marks()
    while rows := (yield):
        bad = rows.lengths_of("response_ids")[1] & (rows.policy_lengths == 0)
        marks.add(rows, bad, lambda row, n=rows.lengths: f"{n[row]} tokens, all masked" if n[row] else "empty")
    yield from marks.findings("rollouts have no token of the policy", "their reward still moves the group mean", share)
