"""One file a concept: what Dagster shows and starts of it."""
