"""Real flights in time partitions: how often in a row an aircraft left late, one New York day after the other.

    flights (Parquet) ── by tailnum ──> daily_delays ──> sink delays

Each partition is a day of the schedule, on New York's clock; it needs the state at the end of the day before. A run
takes one day (`dg launch --job daily_delays --partition 2013-02-09`) or many, and any range of days can be run again:
docs/guides/backfills.md. The input is the feed of the job `flights`. It is there all at once, so all 365 days of 2013
are over and wait to be run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.flights_data import NEW_YORK, feed_path, prepare_feed
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    Settings,
    StatefulJob,
    StateTtlConfig,
    Time,
    TimePartitions,
    ValueStateDescriptor,
)
from state_engine.expectations import Expectation, OfSink, Suite
from state_engine.registry import JobParameters, RegisteredJob, beside, data_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEED = """
    time_hour timestamp, minute int, dep_delay int,
    carrier string, flight int, tailnum string, origin string, dest string
"""
"""The columns of the feed that this job reads; a flight that never left has no `dep_delay`."""

DELAYS = """
    time_hour timestamp, carrier string, flight bigint, tailnum string, origin string, dest string,
    dep_delay bigint, in_a_row bigint
"""

SCHEDULE_ORDER = ["time_hour", "minute", "carrier", "flight", "origin"]
LATE_MINUTES = 15
FORGOTTEN_AFTER_DAYS = 7


class DailyDelays(KeyedProcessFunction):
    """Per aircraft: every departure that was late, and how many in a row there have been, this one included.

    A punctual departure ends a row. So does a week without any departure: the state expires with event time.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(Time.days(FORGOTTEN_AFTER_DAYS)).set_ttl_time_characteristic(
            StateTtlConfig.TtlTimeCharacteristic.EventTime
        )
        in_a_row = ValueStateDescriptor("in_a_row", int)
        in_a_row.enable_time_to_live(ttl.build())
        self.in_a_row = runtime_context.get_state(in_a_row)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        if value.dep_delay < LATE_MINUTES:
            self.in_a_row.clear()
            return
        in_a_row = (self.in_a_row.value() or 0) + 1
        self.in_a_row.update(in_a_row)
        yield (
            value.time_hour,
            value.carrier,
            value.flight,
            value.tailnum,
            value.origin,
            value.dest,
            value.dep_delay,
            in_a_row,
        )


def departed(flights: DataFrame) -> DataFrame:
    """The flights that left."""
    from pyspark.sql import functions as F

    return flights.where(F.col("dep_delay").isNotNull())


def build(feed: str | Path, sinks: str | Path, *, parallelism: int = 2) -> StatefulJob:
    """Return the job `daily_delays`: a feed of `jobs.flights_data` in, a Delta table under `sinks` out."""
    days = TimePartitions("time_hour", start="2013-01-01", end="2014-01-01", timezone=NEW_YORK)
    job = StatefulJob("daily_delays", parallelism=parallelism, partitions=days)
    source = FileSource(str(feed), schema=FEED, format="parquet")
    flights = job.source("flights", source, order_by=SCHEDULE_ORDER, event_time="time_hour")
    delays = (
        flights.transform(departed)
        .key_by("tailnum")
        .process(DailyDelays(), uid="daily_delays", output_type=DELAYS)
    )
    delays.sink("delays", DeltaSink(f"{sinks}/delays"))
    return job


EXPECTATIONS = (
    Suite(
        name="daily_delays",
        of=OfSink("delays"),
        expectations=(
            Expectation(
                name="delay_is_late",
                type="expect_column_values_to_be_between",
                arguments={"column": "dep_delay", "min_value": LATE_MINUTES},
                about="Punctual departures are not published.",
            ),
        ),
        identified_by=("time_hour", "carrier", "flight"),
    ),
)


class Parameters(JobParameters):
    """Section `[jobs.parameters.daily_delays]` of the settings: where feed and sink are, and how the feed is cut."""

    feeds: Path | None = None
    sinks: str | None = None
    cut: Literal["month", "day", "year"] = "month"
    parallelism: int = 2


def jobs(settings: Settings) -> list[RegisteredJob]:
    """Return the job as the settings want it. Its feed is written before the first run."""
    given = Parameters.of(settings, "daily_delays")
    feeds = given.feeds or data_directory(settings)
    job = build(
        feed_path(feeds, given.cut),
        given.sinks or beside(settings, "sinks", "daily_delays"),
        parallelism=given.parallelism,
    )
    prepare = partial(prepare_feed, feeds, given.cut)
    return [RegisteredJob(job=job, prepare=prepare, description=__doc__ or "", expectations=EXPECTATIONS)]
