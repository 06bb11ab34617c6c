"""Files on local and remote storage: reading, writing, durability, and errors of the storage in words."""
