"""PrimeIntellect/SYNTHETIC-1: Parquet of one verified response a row."""

from collections.abc import Iterator

import pyarrow as pa

from ktae_cli.readers.base import ReaderOptions, Record, reader

_NAMES = {
    "response_id": "rollout_id",
    "problem_id": "group_id",
    "llm_response": "response",
    "gold_standard_solution": "ground_truth",
    "score": "reward",
}


@reader(
    files=(".parquet",),
    shape="parquet",
    keys=("response_id", "problem_id", "llm_response", "score"),
    supplies=("group_id", "rollout_id", "prompt", "response", "reward", "ground_truth"),
    threshold=0.5,
)
def synthetic1(records: Iterator[Record], options: ReaderOptions) -> Iterator[pa.RecordBatch]:
    """Read SYNTHETIC-1 and data sets of its layout, one response a row; a group is a problem.

    `score` lies between 0 and 1 and is the reward; above 0.5 it counts as right.
    """
    for record in records:
        batch = record.value
        yield batch.rename_columns([_name(name) for name in batch.schema.names])


def _name(found: str) -> str:
    """Return the canonical name of a column; another column of that name gets `input_` before it."""
    return _NAMES.get(found, f"input_{found}" if found in _NAMES.values() else found)
