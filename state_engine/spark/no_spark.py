"""``NO_SPARK``: stands where a Spark session is expected and there is none, as in a job that runs in memory.

Whatever would need Spark asks it for something, and so raises an error that says what to do instead of starting Java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from state_engine.core.errors import ConfigurationError
from state_engine.spark.placement import NO_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NeedsSparkError(ConfigurationError):
    """What runs without Spark asks it for something."""


class _NoSpark:
    limits = NO_LIMITS

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and pickles look for what there may be
            raise AttributeError(name)
        raise NeedsSparkError(
            f"this needs Spark ('{name}' of a session), and the job runs in memory, without it: test it with a "
            "StateEngine on a temporary root"
        )

    def __repr__(self) -> str:
        return "NO_SPARK"


NO_SPARK: SparkSession = cast("SparkSession", _NoSpark())


def has_spark(session: SparkSession) -> bool:
    """Whether there is a session.

    Example:
        >>> has_spark(NO_SPARK)
        False
    """
    return session is not NO_SPARK
