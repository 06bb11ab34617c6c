"""Micro-batches in a process that a Pipes client launches."""
