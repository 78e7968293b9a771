"""KT406: log-probabilities that were never computed."""

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule
from ktae_cli.checks.missing_log_probs import LOG_PROBS


@rule(
    id="KT406",
    needs=("response_ids", "rollout_log_probs|old_log_probs|log_probs|ref_log_probs"),
    severity="warning",
    sees="rows",
)
def placeholder_log_probs(input: Input, *, tokens: int = 4) -> Watch:
    """All log-probabilities of a rollout are exactly 0.

    Looked at: rollouts of at least `tokens` (default 4) tokens of the policy. A policy that is certain of every token
    is rarer than a trainer that writes zeros where it has nothing. Ratios to such a column are the probabilities
    themselves. Have the log-probabilities computed, or drop the column.
    """
    marks = {name: Marks() for name in LOG_PROBS if input.has(name)}
    while rows := (yield):
        for name, found in marks.items():
            other = rows.any_token((rows.flat(name) != 0) & rows.mask)
            found.add(rows, rows.fits(name) & ~other & (rows.policy_lengths >= tokens))
    for name, found in marks.items():
        yield from found.findings(f"rollouts have {name} 0 at every token: placeholders", "drop the column")
