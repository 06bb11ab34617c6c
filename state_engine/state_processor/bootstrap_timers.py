"""Timers that a job begins with, from DataFrames: rows of the keyed state that holds timers.

A timer that is given twice is one, as where a function sets it twice. Plays the part of registering timers in a
``KeyedStateBootstrapFunction`` of Flink's State Processor API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, TimestampType

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.time.timers import EVENT, PROCESSING, TimersDescriptor
from state_engine.core.types.ddl import quoted
from state_engine.queries.state_rows import MAP_KEY, VALUE

Timers = Mapping[str, DataFrame]
"""DataFrames with the key columns and the time, by ``event`` or ``processing``."""

SCHEMA = recorded_schema(TimersDescriptor())
"""How a checkpoint records the state that holds timers."""


def timer_entries(timers: Timers, keys: Sequence[str], *, what: str) -> DataFrame:
    """Timers as entries of a map state: key columns, ``map_key`` and ``value``."""
    unknown = sorted(set(timers) - {EVENT, PROCESSING})
    if unknown or not timers:
        raise ConfigurationError(f"{what}: timers are given as '{EVENT}' and '{PROCESSING}', not {unknown}")
    parts = []
    for domain, frame in timers.items():
        time = _time(frame, keys, f"{what}, {domain} timers")
        # of a null time there is no map key, which is refused
        entry = F.when(time.isNotNull(), F.struct(time.alias("time"), F.lit(domain).alias("domain")))
        columns = [F.col(quoted(k)) for k in keys]
        parts.append(frame.select(*columns, entry.alias(MAP_KEY)).distinct())
    rows = reduce(lambda a, b: a.unionByName(b), parts)
    return rows.withColumn(VALUE, F.lit(True))


def _time(frame: DataFrame, keys: Sequence[str], what: str) -> Column:
    if not isinstance(frame, DataFrame):
        raise ConfigurationError(f"{what}: give a Spark DataFrame, not {type(frame).__name__}")
    others = [f for f in frame.schema.fields if f.name not in keys]
    if len(others) != 1 or not isinstance(others[0].dataType, IntegralType | TimestampType):
        shown = [f"{f.name} {f.dataType.simpleString()}" for f in others]
        raise ConfigurationError(
            f"{what}: beside {list(keys)} give one column, with the time in milliseconds or as a timestamp; not {shown}"
        )
    column = F.col(quoted(others[0].name))
    if isinstance(others[0].dataType, TimestampType):
        return F.unix_millis(column)
    return column.cast("bigint")
