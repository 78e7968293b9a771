"""verl: the Parquet file of `main_generation`, prompts with a list of responses, without rewards."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from ktae_cli.readers._fields import with_rest
from ktae_cli.readers._messages import text_of
from ktae_cli.readers._needed_columns import check_columns
from ktae_cli.readers.base import SOURCE_ROW, ReaderOptions, Record, is_list, reader

_NEEDED = ("prompt", "responses", "data_source", "reward_model")


@reader(
    files=(".parquet",),
    shape="parquet",
    keys=("prompt", "responses", "data_source", "reward_model"),
    supplies=("group_id", "prompt", "response", "ground_truth"),
)
def verl_generation(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read the generations that verl's `main_generation` adds to a prompt file, one rollout for each response.

    Source: verl `trainer/main_generation_server.py` (`main`). A row is a group, named `<file>:<row>`: two rows with the
    same prompt are two groups. The file holds no reward, no verdict and no token ids. ground_truth is
    `reward_model.ground_truth`, so `ktae verify` can supply the verdict.
    """
    options.notice("main_generation writes no reward; `ktae verify` grades the responses against ground_truth")
    names: dict[str, str] = {}
    for record in records:
        check_columns(_NEEDED, "verl_generation", record)
        name = _short_name(record.file, names)
        for i, rest in enumerate(record.value.to_pylist()):
            responses, prompt, reward_model = (rest.pop(key, None) for key in ("responses", "prompt", "reward_model"))
            for response in responses or ():
                row = {
                    "group_id": f"{name}:{record.line + i}",
                    "prompt": text_of(prompt),
                    "response": text_of(response),
                }
                row["ground_truth"] = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
                yield with_rest(row, rest) | {SOURCE_ROW: i}


def _fits(schema: pa.Schema) -> bool:
    return is_list(schema.field("responses").type)


verl_generation.fits = _fits


def _short_name(file: str, names: dict[str, str]) -> str:
    """Return the base name of a file, with its folder where an earlier file has the same one."""
    path = PurePath(file)
    if file not in names:
        short = path.name if path.name not in names.values() else f"{path.parent.name}/{path.name}"
        names[file] = short if short not in names.values() else file
    return names[file]
