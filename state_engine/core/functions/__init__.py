"""Functions that users write, and what they are given: contexts, metrics, output tags."""
