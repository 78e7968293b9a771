"""KT401: rows without the log-probabilities that other rows have."""

import numpy as np

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Marks, Watch, rule
from ktae_cli.schema import COLUMNS

LOG_PROBS = tuple(column.name for column in COLUMNS if column.name.endswith("log_probs"))


@rule(
    id="KT401",
    needs=("response_ids", "rollout_log_probs|old_log_probs|log_probs|ref_log_probs"),
    severity="warning",
    sees="rows",
)
def missing_log_probs(input: Input) -> Watch:
    """A column of log-probabilities is null, NaN or infinite at tokens of the policy, in some rows.

    Estimators that need the column stop there; trainers that fill in 0 treat the token as certain. Columns that are
    null in every row are KT005's. Find out which rollouts lack them: aborted ones, or those of one engine.
    """
    marks = {name: Marks() for name in LOG_PROBS if input.has(name)}
    present = dict.fromkeys(marks, 0)
    while rows := (yield):
        for name in marks:
            valid = rows.lengths_of(name)[1]
            present[name] += int(valid.sum())
            fits = rows.fits(name)
            odd = ~np.isfinite(rows.flat(name, 0.0)) & rows.mask
            bad = (~valid & (rows.policy_lengths > 0)) | (fits & rows.any_token(odd))
            marks[name].add(rows, bad, lambda row, v=valid: "no number at a token" if v[row] else "null")
    for name, found in marks.items():
        if present[name]:
            yield from found.findings(f"rollouts lack {name} at tokens of the policy")
