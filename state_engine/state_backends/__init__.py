"""Where a subtask keeps its working state: in memory, in RocksDB, or in mappings of the user's own."""
