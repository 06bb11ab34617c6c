"""Schemas of Spark's catalog, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from pyspark.sql import SparkSession


@contextmanager
def new_schema(spark: SparkSession) -> Iterator[str]:
    """A schema that is there for as long as the test."""
    name = f"lake_{uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {name}")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")
