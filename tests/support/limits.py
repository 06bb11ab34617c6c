"""Other limits than the usual ones, by which few rows count as many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from state_engine.spark.placement import limits_of

NOTHING_BY_DRIVER = {"rows": -1}
"""Limits by which the driver reads and routes no rows."""
SetLimits = Callable[..., None]
"""Gives the session of a test other limits, by name."""


@contextmanager
def limits_of_session(spark: SparkSession) -> Iterator[SetLimits]:
    """What gives a session, and engines that have it, other limits; in the end those of before."""
    before = limits_of(spark)

    def set_limits(**limits: Any) -> None:
        vars(spark)["limits"] = replace(before, **limits)

    try:
        yield set_limits
    finally:
        vars(spark)["limits"] = before
