"""`--to jsonl`: full sequences, one object a line."""

from tests.exports.cases import read_lines


def recover(path):
    return {row["rollout_id"]: (row["input_ids"], row["advantages"]) for row in read_lines(path)}
