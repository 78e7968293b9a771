"""KT404: importance weights that rest on few rollouts."""

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, Watch, rule
from ktae_cli.off_policy import WeightSums, log_sequence_weights
from ktae_cli.off_policy_rows import find_pairs


@rule(id="KT404", needs=("response_ids", "ratio"), severity="warning", sees="rows")
def small_effective_sample(input: Input, *, least: float = 0.1, rollouts: int = 20) -> Watch:
    """Importance weights rest on few rollouts: effective sample size below `least` of them (default 0.1).

    (sum w)^2 / (n sum w^2) with w = exp of the summed log ratios: a few rollouts carry all the weight, so averages over
    the file say little about the newer policy. Sample again sooner, or weight by token. Looked at from `rollouts`
    (default 20) on.
    """
    pairs = find_pairs(input.mapping.columns)
    sums = [WeightSums() for _ in pairs]
    while rows := (yield):
        for at, pair in enumerate(pairs):
            found = rows.compare(pair)
            weights = log_sequence_weights(found.log_ratio, found.policy_lengths)
            sums[at] = sums[at].merge(WeightSums.of(weights[found.policy_lengths > 0]))
    for pair, total in zip(pairs, sums, strict=True):
        if total.n >= rollouts and (size := total.effective_sample_size()) < least:
            yield Finding(
                f"{pair.label}: the effective sample size is {size:.2g} of {total.n:,} rollouts (exp of summed "
                f"{pair.new} - {pair.old}): a few rollouts carry all the weight",
                None,
                round(size * total.n),
                total.n,
            )
