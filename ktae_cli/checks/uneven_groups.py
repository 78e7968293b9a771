"""KT103: most groups have one size, some have another."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT103", needs=("group",), severity="warning", sees="table")
def uneven_groups(table: Table, *, usual: float = 0.8) -> Iterator[Finding]:
    """A few groups are of another size than most: rollouts are missing or double.

    Reported where at least `usual` (default 0.8) of the groups have one size and others have another one. Aborted or
    filtered rollouts leave gaps, merged prompts make large groups. `ktae` groups by id and is right all the same; a
    trainer that cuts the batch into rows of n takes its means over the wrong rows. Where sizes vary throughout nothing
    is reported. Groups of one are KT101's.
    """
    t = table.trajectories
    if not t.n_groups:
        return
    sizes, counts = np.unique(t.sizes, return_counts=True)
    common = int(sizes[counts.argmax()])
    odd = (t.sizes != common) & (t.sizes > 1)
    if odd.any() and counts.max() >= usual * t.n_groups:
        shown = f"{t.sizes[odd].min()} to {t.sizes[odd].max()}" if len(np.unique(t.sizes[odd])) > 1 else t.sizes[odd][0]
        yield Finding(
            f"{of(int(odd.sum()), t.n_groups)} groups hold {shown} rollouts, the others {common}: rollouts are missing "
            "or merged, and code that cuts the batch into equal rows mixes groups up",
            t.first_row(int(odd.argmax())),
            int(odd.sum()),
            t.n_groups,
        )
