"""Flink's state model for scheduled, incremental PySpark batches: the public API."""
