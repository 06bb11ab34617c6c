"""Keys in canonical form, their hashes, and the key groups that they fall into."""
