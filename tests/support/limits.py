"""Other limits than the usual ones, by which few rows count as many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from state_engine.spark.placement import USUAL

SetLimits = Callable[..., None]
"""Gives the session of a test other limits, by name."""


@contextmanager
def limits_of_session(spark: SparkSession) -> Iterator[SetLimits]:
    """What gives a session other limits, for sources and for engines that are made afterwards; in the end the usual."""

    def set_limits(**limits: int) -> None:
        vars(spark)["limits"] = replace(USUAL, **limits)

    try:
        yield set_limits
    finally:
        vars(spark).pop("limits", None)
