"""Checkpoints: the row, its history and invariants, and what is decided from rows alone."""
