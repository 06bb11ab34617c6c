"""Windows: groups of the rows of a key by their event time."""
