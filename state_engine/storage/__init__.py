"""Files on local and remote storage: reading, writing, durability, and readable errors."""
