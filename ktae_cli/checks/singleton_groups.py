"""KT101: groups of one rollout."""

from collections.abc import Iterator

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT101", needs=("group",), severity="warning", sees="table")
def singleton_groups(table: Table, *, share: float = 0.0) -> Iterator[Finding]:
    """Groups of one rollout, more than `share` of all groups (default: any).

    A group of one has nothing to be compared with: its advantage is 0 (some trainers use the raw reward instead), and
    it has no key token. When most groups are alone, the column names rollouts, not prompts: use --group-by.
    """
    t = table.trajectories
    alone = t.sizes == 1
    if alone.sum() > share * t.n_groups:
        key = " + ".join(t.input.mapping.group_key)
        way = f"does {key} name prompts? else use --group-by" if alone.mean() > 0.5 else "their siblings are missing"
        count = int(alone.sum())
        what = f"{of(count, t.n_groups)} groups hold one rollout: its advantage is 0; {way}"
        yield Finding(what, t.first_row(int(alone.argmax())), count, t.n_groups)
