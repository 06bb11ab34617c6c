"""Aggregates of the rows before each row of a key."""
