"""Flink's concepts in pure Python: no Spark, no I/O, no ambient clock."""
