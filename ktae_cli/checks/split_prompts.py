"""KT105: one prompt, several groups of one step."""

from collections.abc import Iterator

import numpy as np

from ktae_cli.checks._table import Table
from ktae_cli.checks.base import Finding, of, rule


@rule(id="KT105", needs=("group", "prompt|prompt_ids", "step"), severity="warning", sees="table")
def split_prompts(table: Table) -> Iterator[Finding]:
    """The same prompt stands in two groups of one step.

    Either the data set holds the prompt twice, or the rollouts of one prompt were given several ids (one a worker), and
    every baseline rests on a part of them. The same prompt in two steps is two groups, as it should be. If the ids are
    at fault, group by the prompt: --group-by step,prompt.
    """
    t = table.trajectories
    known = t.prompt != 0
    places = np.unique(np.stack([t.step[known], t.prompt[known], t.group[known]]), axis=1)
    if not places.shape[1]:
        return
    prompts, index, groups_of = np.unique(places[:2], axis=1, return_inverse=True, return_counts=True)
    split = groups_of > 1
    if split.any():
        group = int(places[2][split[index.ravel()]].min())
        yield Finding(
            f"{of(int(split.sum()), prompts.shape[1])} prompts stand in several groups of one step, the first in "
            f"{t.name(group)}: a prompt that the data hold twice, or ids that cut its rollouts apart "
            "(--group-by step,prompt)",
            t.first_row(group),
            int(split.sum()),
            prompts.shape[1],
        )
