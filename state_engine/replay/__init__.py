"""Micro-batches run again: replays, backfills of time partitions, and comparisons of what they give."""
