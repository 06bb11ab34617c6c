"""Aggregates of the rows of a key: what is declared, what is kept, and what runs them by rows and by columns."""
