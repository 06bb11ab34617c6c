"""A small job for each operator, on rows of its own: ``python -m examples.operators.sessions`` draws its result.

They run in memory, without Spark and Java; the jobs are those that an engine would run.
"""
