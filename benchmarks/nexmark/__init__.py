"""Nexmark: an auction house as three streams (persons, auctions, bids) and twenty-one queries over them.

``python -m benchmarks.nexmark`` runs them here and on Spark Structured Streaming, on the same files, and compares the
results with polars. The queries are those that the project Nexmark publishes for Flink; events are of our own making.
"""
