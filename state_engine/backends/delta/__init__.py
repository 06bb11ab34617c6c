"""Checkpoint storage in Delta tables: files written by subtasks, lists of files committed through Delta Kernel."""
