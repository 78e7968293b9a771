"""KT102: one group, several right answers."""

from collections.abc import Iterator

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT102", needs=("group", "ground_truth"), severity="error", sees="table")
def mixed_ground_truths(table: Table) -> Iterator[Finding]:
    """The rollouts of a group have different ground truths.

    They answer different problems that share an id or a prompt (two data sets, a template without its slot filled), so
    right and wrong of one problem are compared with those of another. Use a key that names the problem: --group-by.
    """
    t = table.trajectories
    differ = t.differing(t.truth)
    if len(differ):
        yield Finding(
            f"{of(len(differ), t.n_groups)} groups hold several ground truths, the first {t.name(differ[0])}; name the "
            "problems with --group-by COLUMN",
            t.first_row(differ[0]),
            len(differ),
            t.n_groups,
        )
