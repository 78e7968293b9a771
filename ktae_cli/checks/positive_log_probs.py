"""KT402: log-probabilities above 0."""

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule
from ktae_cli.checks.missing_log_probs import LOG_PROBS


@rule(
    id="KT402",
    needs=("response_ids", "rollout_log_probs|old_log_probs|log_probs|ref_log_probs"),
    severity="error",
    sees="rows",
)
def positive_log_probs(input: Input, *, above: float = 0.001) -> Watch:
    """A log-probability lies above `above` (default 0.001, room for rounding).

    No probability is above 1: the column holds probabilities, negated log-probabilities or logits, and every ratio made
    from it is wrong. Find out what the column is, and write natural logarithms.
    """
    marks = {name: Marks() for name in LOG_PROBS if input.has(name)}
    while rows := (yield):
        for name, found in marks.items():
            values = rows.flat(name, 0.0)
            odd = (values > above) & rows.mask
            found.add(
                rows,
                rows.any_token(odd),
                lambda row, rows=rows, values=values, odd=odd: f"{values[rows.first_token(row, odd)]:.4g}",
            )
    for name, found in marks.items():
        yield from found.findings(f"rollouts hold {name} above 0", "write natural logarithms of probabilities")
