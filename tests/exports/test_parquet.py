"""`--to parquet`: full sequences, as any reader of Parquet sees them."""

import polars


def recover(path):
    table = polars.read_parquet(path)
    return {row["rollout_id"]: (row["input_ids"], row["advantages"]) for row in table.iter_rows(named=True)}
