"""What runs inside a trainer: its rollouts recorded as canonical Parquet, and its advantages from any estimator."""
