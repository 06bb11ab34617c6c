"""Parquet files of sources, as Arrow reads them: footers, and rows that are the very ones that Spark would give."""
