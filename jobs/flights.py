"""Real flights through two keyed operators: delays that aircraft carry along, and the routes that get them.

    flights (Parquet) ── clean ── by tailnum ──> plane_delays ── by (origin, dest) ──> route_ranking
                                                      │                                    │
                                                 sink plane_delays                  sink route_ranking

`plane_delays` remembers, for every aircraft, its last flight (value state), the airports it touched (map
state) and its last known arrival delays (list state). `route_ranking` keeps running totals for every route
(value state); the ranking itself is a query on that state, `worst_routes`. The input is a feed of
`jobs.flights_data`.

Both operators give one row per flight, and the same rows however the year is cut into micro-batches and
however many subtasks run. docs/guides/flights.md walks through this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jobs.flights_data import feed_path, prepare_feed
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    Settings,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.expectations import Expectation, OfSink, OfState, Suite
from state_engine.registry import JobParameters, RegisteredJob, beside, data_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEED = """
    time_hour timestamp, minute int, dep_time int, dep_delay int, arr_delay int,
    carrier string, flight int, tailnum string, origin string, dest string
"""
"""The columns of the feed that this job reads."""

PLANE_DELAYS = """
    departed_at timestamp, carrier string, flight bigint, tailnum string, origin string, dest string,
    dep_delay bigint, arr_delay bigint, carried_over bigint, minutes_since_previous_departure bigint,
    flights_so_far bigint, airports_so_far bigint, worst_of_last_5 bigint
"""

ROUTE_RANKING = """
    departed_at timestamp, carrier string, flight bigint, origin string, dest string, flights bigint,
    arrived bigint, total_arr_delay bigint, worst_arr_delay bigint, mean_arr_delay double, inherited bigint
"""

TOTAL_ORDER = ["departed_at", "carrier", "flight", "origin"]
RECENT_DELAYS = 5
DELAYED_MINUTES = 15
MINUTE = timedelta(minutes=1)


def clean(flights: DataFrame, *, keep_cancelled: bool = False) -> DataFrame:
    """Return the flights that left, with their true departure instant `departed_at` in place of the clock columns.

    A cancelled flight has no `dep_time`; where it is kept, it stands at its scheduled time. Delays are minutes,
    negative when early. Columns are dropped, not selected, so that each row still knows the file it came from.
    """
    from pyspark.sql import functions as F

    minutes = F.col("minute") + F.coalesce("dep_delay", F.lit(0))
    timed = flights.withColumn("departed_at", F.timestamp_add("MINUTE", minutes, F.col("time_hour")))
    left = timed if keep_cancelled else timed.where(F.col("dep_time").isNotNull())
    return left.drop("time_hour", "minute", "dep_time")


class LastFlight(NamedTuple):
    """What an aircraft remembers of its latest departure; `arr_delay` is None when it was diverted."""

    departed_at: datetime
    arr_delay: int | None


class PlaneDelays(KeyedProcessFunction):
    """Per aircraft: what its earlier flights brought into this one.

    Takes what `clean` returns in time order, gives `PLANE_DELAYS`. The airports map counts every flight twice,
    once per end, so it also knows how many flights there were.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last_flight = runtime_context.get_state(ValueStateDescriptor("last_flight", LastFlight))
        self.airports = runtime_context.get_map_state(MapStateDescriptor("airports", str, int))
        self.recent_delays = runtime_context.get_list_state(ListStateDescriptor("recent_delays", int))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        previous = self.last_flight.value()
        recent = list(self.recent_delays.get())
        for airport in (value.origin, value.dest):
            self.airports.put(airport, (self.airports.get(airport) or 0) + 1)
        touched = list(self.airports.values())

        yield (
            value.departed_at,
            value.carrier,
            value.flight,
            value.tailnum,
            value.origin,
            value.dest,
            value.dep_delay,
            value.arr_delay,
            previous.arr_delay if previous else None,
            (value.departed_at - previous.departed_at) // MINUTE if previous else None,
            sum(touched) // 2,
            len(touched),
            max(recent, default=None),
        )

        self.last_flight.update(LastFlight(value.departed_at, value.arr_delay))
        if value.arr_delay is not None:
            self._remember(recent, value.arr_delay)

    def _remember(self, recent: list[int], delay: int) -> None:
        if len(recent) < RECENT_DELAYS:
            self.recent_delays.add(delay)
        else:
            self.recent_delays.update([*recent[1:], delay])


class RouteTotals(NamedTuple):
    """The sums of one route; delays in minutes, `worst_arr_delay` None until a flight has arrived."""

    flights: int = 0
    arrived: int = 0
    total_arr_delay: int = 0
    worst_arr_delay: int | None = None
    inherited: int = 0

    def including(self, flight: Row) -> RouteTotals:
        """The totals after one more row of `PLANE_DELAYS`."""
        late, carried, left = flight.arr_delay, flight.carried_over, flight.dep_delay
        inherited = None not in (carried, left) and min(carried, left) >= DELAYED_MINUTES
        known = [delay for delay in (self.worst_arr_delay, late) if delay is not None]
        return RouteTotals(
            flights=self.flights + 1,
            arrived=self.arrived + (late is not None),
            total_arr_delay=self.total_arr_delay + (late or 0),
            worst_arr_delay=max(known, default=None),
            inherited=self.inherited + inherited,
        )


class RouteRanking(KeyedProcessFunction):
    """Per route: running totals, this flight included. Takes `PLANE_DELAYS`, gives `ROUTE_RANKING`."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.totals = runtime_context.get_state(ValueStateDescriptor("totals", RouteTotals))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        totals = (self.totals.value() or RouteTotals()).including(value)
        self.totals.update(totals)
        yield (
            value.departed_at,
            value.carrier,
            value.flight,
            value.origin,
            value.dest,
            totals.flights,
            totals.arrived,
            totals.total_arr_delay,
            totals.worst_arr_delay,
            totals.total_arr_delay / totals.arrived if totals.arrived else None,
            totals.inherited,
        )


def worst_routes(totals: DataFrame, *, minimum_arrived: int = 100) -> DataFrame:
    """Rank routes by mean arrival delay, worst first.

    `totals` is what `engine.read_state(job, "route_ranking", "totals")` returns. Routes with fewer than
    `minimum_arrived` known arrivals are left out: one bad day would put them on top.
    """
    from pyspark.sql import functions as F

    mean = F.col("value.total_arr_delay") / F.col("value.arrived")
    return (
        totals.where(F.col("value.arrived") >= minimum_arrived)
        .select("origin", "dest", "value.*", mean.alias("mean_arr_delay"))
        .orderBy(F.desc("mean_arr_delay"), "origin", "dest")
    )


def build(
    feed: str | Path,
    sinks: str | Path,
    *,
    parallelism: int = 2,
    max_parallelism: int = 128,
    max_rows_per_batch: int | None = None,
    max_files_per_batch: int = 1,
    on_error: str = "fail",
    keep_cancelled: bool = False,
) -> StatefulJob:
    """Return the job `flights`: a feed of `jobs.flights_data` in, two Delta tables under `sinks` out.

    One micro-batch takes `max_files_per_batch` files of the feed, and at most `max_rows_per_batch` rows when
    given. `keep_cancelled` leaves out the filter on `dep_time`: 2,512 cancelled flights have no aircraft to
    be keyed by, so the job then fails, or sets them aside under `on_error="dead_letter"`.
    """
    job = StatefulJob("flights", parallelism=parallelism, max_parallelism=max_parallelism, on_error=on_error)
    source = FileSource(
        str(feed),
        schema=FEED,
        format="parquet",
        max_rows_per_batch=max_rows_per_batch,
        max_files_per_batch=max_files_per_batch,
    )
    flights = job.source("flights", source, order_by=TOTAL_ORDER, event_time="departed_at")
    delays = (
        flights.transform(partial(clean, keep_cancelled=keep_cancelled))
        .key_by("tailnum")
        .process(PlaneDelays(), uid="plane_delays", output_type=PLANE_DELAYS)
    )
    ranking = delays.key_by("origin", "dest").process(
        RouteRanking(), uid="route_ranking", output_type=ROUTE_RANKING
    )
    delays.sink("plane_delays", DeltaSink(f"{sinks}/plane_delays"))
    ranking.sink("route_ranking", DeltaSink(f"{sinks}/route_ranking"))
    return job


EXPECTATIONS = (
    Suite(
        name="plane_delays",
        of=OfSink("plane_delays"),
        expectations=(
            Expectation(
                name="aircraft_is_there",
                type="expect_column_values_to_not_be_null",
                arguments={"column": "tailnum"},
                about="A flight without an aircraft can carry no delay over.",
            ),
            Expectation(
                name="no_flight_twice",
                type="expect_compound_columns_to_be_unique",
                arguments={"column_list": ["departed_at", "carrier", "flight", "origin", "dest"]},
                about="Every flight is published once.",
            ),
        ),
        identified_by=("departed_at", "carrier", "flight"),
    ),
    Suite(
        name="route_totals",
        of=OfState("route_ranking", "totals"),
        expectations=(
            Expectation(
                name="route_has_flights",
                type="expect_column_values_to_be_between",
                arguments={"column": "value_flights", "min_value": 1},
            ),
            Expectation(
                name="no_more_arrivals_than_flights",
                type="expect_column_pair_values_a_to_be_greater_than_b",
                arguments={"column_A": "value_flights", "column_B": "value_arrived", "or_equal": True},
            ),
            Expectation(
                name="three_airports_of_origin",
                type="expect_column_values_to_be_in_set",
                arguments={"column": "origin", "value_set": ["EWR", "JFK", "LGA"]},
                severity="warn",
                about="The feed is about flights from New York.",
            ),
        ),
        identified_by=("origin", "dest"),
    ),
)


class Parameters(JobParameters):
    """Section `[jobs.parameters.flights]` of the settings: where feed and sinks are, and how batches are cut."""

    feeds: Path | None = None
    sinks: str | None = None
    cut: Literal["month", "day", "year"] = "month"
    months: list[str] | None = None
    max_rows_per_batch: int | None = None
    parallelism: int = 2


def jobs(settings: Settings) -> list[RegisteredJob]:
    """Return the job as the settings want it. Its feed is written before the first run."""
    given = Parameters.of(settings, "flights")
    feeds = given.feeds or data_directory(settings)
    job = build(
        feed_path(feeds, given.cut, months=given.months),
        given.sinks or beside(settings, "sinks", "flights"),
        parallelism=given.parallelism,
        max_rows_per_batch=given.max_rows_per_batch,
    )
    prepare = partial(prepare_feed, feeds, given.cut, months=given.months)
    return [RegisteredJob(job=job, prepare=prepare, description=__doc__ or "", expectations=EXPECTATIONS)]
