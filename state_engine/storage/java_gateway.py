"""The one place that touches PySpark's private ways into Java: what a session and a DataFrame are there.

Besides, what is slow about calls of Java from Python, done once and kept: classes by name, and threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARED = ("_sc", "_jsc", "_jvm", "_profiler_collector")
"""Attributes of PySpark's that sessions of one context have in common."""


def jvm_of(spark: Any) -> Any:
    """The JVM of a session or a context, for ``java_class``."""
    return spark._jvm


def java_context(spark: Any) -> Any:
    return spark._jsc


def java_session(spark: Any) -> Any:
    return spark._jsparkSession


def java_gateway(spark: Any) -> Any:
    """What py4j calls the JVM of a session with."""
    return spark.sparkContext._gateway


def has_gateway() -> bool:
    """Whether PySpark of this process knows a JVM."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def session_attributes(of: SparkSession, java: Any) -> dict[str, Any]:
    """What PySpark keeps in a session of the same context as another one, and of a session as Java has it."""
    return {**{name: vars(of)[name] for name in _SHARED}, "_jsparkSession": java}


def analyzed_plan(frame: DataFrame) -> Any:
    """The plan of a DataFrame, with names and types resolved."""
    return frame._jdf.queryExecution().analyzed()


def frame_of(plan: Any, spark: SparkSession) -> DataFrame:
    from pyspark.sql import DataFrame

    dataset = java_class(jvm_of(spark), "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(java_session(spark), plan), spark)


def java_class(jvm: Any, name: str) -> Any:
    """A class of a session's JVM, to call; a ``JavaPackage`` where it has none of that name.

    ``jvm.org.apache.…`` would look for a class ``org``, then ``org.apache``, and so on, in every jar.
    """
    return getattr(jvm, name)


@lru_cache(maxsize=1)
def java_threads() -> ThreadPoolExecutor:
    """Threads of this process for what calls Java; as many as are busy at a time.

    They are kept, because py4j opens a connection for every new one, and Java starts a thread for that: milliseconds.
    What runs in them must not wait for another one of them.
    """
    return ThreadPoolExecutor(256, thread_name_prefix="statelake-java")


@lru_cache(maxsize=1)
def background_thread() -> ThreadPoolExecutor:
    """One thread of this process for what may wait, in the order in which it was asked for."""
    return ThreadPoolExecutor(1, thread_name_prefix="statelake-background")
