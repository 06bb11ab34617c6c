"""What is done to a job between its micro-batches: restore, rescale, savepoints, compaction, collection."""
