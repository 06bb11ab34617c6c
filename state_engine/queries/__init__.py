"""State and history as DataFrames and SQL views, now and in the past."""
