"""A Spark session reaches S3-compatible stores as the settings describe: Hadoop in its JVM, and its workers."""

from __future__ import annotations

import logging
import os

from pyspark.sql import SparkSession

from state_engine.machine.settings import load_settings
from state_engine.storage.java_gateway import java_context
from state_engine.storage.stores.object_stores import (
    PROCESS_STORES,
)


class _Mask(logging.Filter):
    """Masks keys in the log of py4j, which at level DEBUG shows every call of Java with its arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for name in {name for one in PROCESS_STORES.by_bucket.values() for name in one.key_variables}:
            if (key := os.environ.get(name)) and key in text:
                text = text.replace(key, "***")
                record.msg, record.args = text, None
        return True


_MASK = _Mask()
_BY_OTHERS, _BY_US = "programmatically", "Statelake"
"""Who set an option, as Hadoop keeps it: a program that did not say who it is; the engine."""


def find_stores() -> None:
    """Have this process reach stores as the settings describe, unless it was said how."""
    if not PROCESS_STORES.are_described:
        PROCESS_STORES.describe(load_settings().storage)


def reach_stores(spark: SparkSession) -> None:
    """Have a session reach the stores that the settings describe. Options that others have given it stay as they are.

    Keys go where Spark's UI hides them, and to workers in the environment of tasks, which it does not show.
    """
    find_stores()
    context = spark.sparkContext
    java = java_context(spark)
    own = {pair._1() for pair in java.sc().conf().getAllWithPrefix("spark.hadoop.")}
    configuration = java.hadoopConfiguration()
    for logger in ("py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(logger).addFilter(_MASK)
    for bucket, access in PROCESS_STORES.by_bucket.items():
        for name, value in access.hadoop_options(os.environ, bucket).items():
            if name not in own and _BY_OTHERS not in (configuration.getPropertySources(name) or ()):
                configuration.set(name, value, _BY_US)
    context.environment.update(PROCESS_STORES.worker_environment())
