"""What one job may use of the process that grades it, unless said otherwise."""

SECONDS = 5.0
"""Of processor time, or asleep: the slowest of the comparisons that MATH500's responses need takes 0.6 s."""

MEMORY = 1 << 30
"""Bytes beyond what the process has when it is ready."""
