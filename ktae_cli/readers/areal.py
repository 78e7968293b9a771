"""AReaL: the trajectories that `dump_to_file` writes, one JSON line for each sample of a task."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from ktae_cli.readers._fields import as_label, with_rest
from ktae_cli.readers.base import ReaderOptions, Record, reader


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=("task_id", "sample_idx", "tail_version", "completion"),
    supplies=("group_id", "prompt", "response", "reward", "step"),
    threshold=0.0,
)
def areal(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read `rollout/<version>/<task_id>.jsonl`, and the same under `eval-rollout`.

    Source: AReaL `infra/workflow_executor.py` (`_dump_trajectory`). A task is a group, whatever versions of the policy
    its samples have; tasks under `eval-rollout` are counted apart and are named `eval/<task_id>`. step is
    `tail_version`, the policy's version when the sample ended. reward is the raw one, right above 0. The text keeps
    special tokens, so end-of-text can be seen. `prompt_len` is the length less the trained tokens: with tools or
    several turns the prompt's text reaches into the response.
    """
    for record in records:
        rest = dict(record.value)
        task = as_label(rest.pop("task_id", None), "task_id", record)
        evaluated = "eval-rollout" in PurePath(record.file).parts
        row = {
            "group_id": f"eval/{task}" if evaluated and task is not None else task,
            "prompt": rest.pop("prompt", None),
            "response": rest.pop("completion", None),
            "reward": rest.pop("reward", None),
            "step": rest.pop("tail_version", None),
        }
        yield with_rest(row, rest)
