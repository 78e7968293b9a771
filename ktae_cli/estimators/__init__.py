"""Estimators: one published method, one file, `GroupBatch -> advantages`; the file name is the name users type."""
