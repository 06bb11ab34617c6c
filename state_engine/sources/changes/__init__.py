"""Inputs that change: the change data feed of a Delta table, and operations in the rows of any source."""
