"""What runs inside a trainer: recorders that write its rollouts as canonical Parquet."""
