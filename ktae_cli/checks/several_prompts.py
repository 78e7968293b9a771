"""KT104: one group, several prompts."""

from collections.abc import Iterator

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT104", needs=("group", "prompt|prompt_ids"), severity="error", sees="table")
def several_prompts(table: Table) -> Iterator[Finding]:
    """The rollouts of a group answer different prompts.

    A baseline over different prompts rewards the easier one, and tokens of one prompt's answers look like keys. An id
    that counts anew in every file or worker is the usual cause. Use a key that tells them apart: --group-by A,B.
    """
    t = table.trajectories
    differ = t.differing(t.prompt)
    if len(differ):
        key = " + ".join(t.input.mapping.group_key)
        yield Finding(
            f"{of(len(differ), t.n_groups)} groups hold several prompts, the first {t.name(differ[0])}: {key} does not "
            "name prompts alone; use --group-by with the prompt or one more column",
            t.first_row(differ[0]),
            len(differ),
            t.n_groups,
        )
