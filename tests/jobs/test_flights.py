"""The flights job on the real engine against the polars reference: every row, column and entry of state.

However the year is cut into micro-batches and however many subtasks run, sinks and final state have to be the
same. Sinks are read with delta-rs, so these tests also show that the tables need neither Spark nor this
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from jobs import flights
from jobs.flights_data import prepare_feed
from state_engine import StateEngine, StatefulJob, open_state
from state_engine.core.errors import UserFunctionError
from tests.jobs import reference

ROUTE = ["origin", "dest"]

CUTS: dict[str, tuple[dict[str, Any], int]] = {
    "month": ({"max_files_per_batch": 1}, 13),
    "rows": ({"max_files_per_batch": 1_000, "max_rows_per_batch": 60_000}, 6),
    "year": ({"max_files_per_batch": 1_000}, 1),
}
"""Per cut: what makes it, and the number of micro-batches that the 336,776 rows in 13 files come to."""


@dataclass(frozen=True)
class Expected:
    """Outputs and final states of both operators, recomputed from scratch."""

    plane_delays: pl.DataFrame
    route_ranking: pl.DataFrame
    states: dict[str, pl.DataFrame]

    @classmethod
    def of(cls, departures: pl.DataFrame) -> Expected:
        with_aircraft = departures.filter(pl.col("tailnum").is_not_null())
        delays = reference.plane_delays(with_aircraft)
        ranking = reference.route_ranking(delays)
        states = {
            "last_flight": reference.last_flight(with_aircraft),
            "airports": reference.airports(with_aircraft),
            "recent_delays": reference.recent_delays(with_aircraft),
            "totals": reference.route_totals(ranking),
        }
        return cls(delays, ranking, states)


@pytest.fixture(scope="module")
def raw() -> pl.DataFrame:
    return reference.raw_flights()


@pytest.fixture(scope="module")
def year(raw: pl.DataFrame) -> Expected:
    return Expected.of(reference.departures(raw))


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feeds")


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession, compiled: None) -> StateEngine:
    return StateEngine(root=str(tmp_path / "root"), spark=spark)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., StatefulJob]:
    """`flights.build` with its sinks in this test's directory."""

    def build_there(feed: Path, **options: Any) -> StatefulJob:
        return flights.build(feed, tmp_path / "sinks", **options)

    return build_there


def sink(tmp_path: Path, name: str) -> pl.DataFrame:
    table = pl.DataFrame(pl.from_arrow(DeltaTable(str(tmp_path / "sinks" / name)).to_pyarrow_table()))
    return in_utc(table).sort(reference.TOTAL_ORDER)


def state(engine: StateEngine, job: StatefulJob, name: str) -> pl.DataFrame:
    """A state as the reference holds it: a struct in a column of its own for each field."""
    operator = "route_ranking" if name == "totals" else "plane_delays"
    # as a query for one state, without Spark for the others: that is quicker, and must be the same
    table = (
        collected(engine.read_state(job, operator, name))
        if name == "totals"
        else pl.DataFrame(pl.from_arrow(open_state.read_state(engine.root, job.name, operator, name)))
    )
    table = table.unnest("value") if isinstance(table.schema["value"], pl.Struct) else table
    order = [column for column in ("tailnum", *ROUTE, "map_key") if column in table.columns]
    return in_utc(table).sort(order)


def collected(frame: DataFrame) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(frame.toArrow()))


def in_utc(table: pl.DataFrame) -> pl.DataFrame:
    instants = [name for name, kind in table.schema.items() if isinstance(kind, pl.Datetime)]
    return table.with_columns(pl.col(instants).dt.convert_time_zone("UTC").dt.cast_time_unit("us"))


def assert_same(actual: pl.DataFrame, expected: pl.DataFrame) -> None:
    assert set(actual.columns) == set(expected.columns)
    actual = actual.select(expected.columns)
    assert dict(actual.schema) == dict(expected.schema)
    assert actual.height == expected.height
    for column in expected.columns:
        differ = actual[column].ne_missing(expected[column])
        shown = f"{column}: {actual.filter(differ).head(3)} instead of {expected.filter(differ).head(3)}"
        assert not differ.any(), shown


@dataclass(frozen=True)
class Outcome:
    """The results of the job, read once: the tables of its sinks, and all its states."""

    plane_delays: pl.DataFrame
    route_ranking: pl.DataFrame
    states: dict[str, pl.DataFrame]

    @classmethod
    def of(cls, tmp_path: Path, engine: StateEngine, job: StatefulJob) -> Outcome:
        names = ("last_flight", "airports", "recent_delays", "totals")
        states = {name: state(engine, job, name) for name in names}
        return cls(sink(tmp_path, "plane_delays"), sink(tmp_path, "route_ranking"), states)

    def assert_equal(self, expected: Expected) -> None:
        assert_same(self.plane_delays, expected.plane_delays)
        assert_same(self.route_ranking, expected.route_ranking)
        assert set(self.states) == set(expected.states)
        for name, table in expected.states.items():
            assert_same(self.states[name], table)

    def assert_golden_numbers(self) -> None:
        """The known numbers of the year once more, without the reference in between."""
        delays, states = self.plane_delays, self.states
        assert (delays.height, self.route_ranking.height) == (328_521, 328_521)
        assert (delays["carried_over"].sum(), delays["carried_over"].count()) == (2_219_159, 323_321)
        minutes = delays["minutes_since_previous_departure"]
        assert (minutes.sum(), minutes.null_count()) == (1_730_672_586, 4_037)
        sizes = {name: states[name].height for name in ("last_flight", "airports", "totals")}
        assert sizes == {"last_flight": 4_037, "airports": 52_144, "totals": 223}
        assert states["recent_delays"]["value"].list.len().sum() == 19_032
        totals = states["totals"].select(pl.col("total_arr_delay", "arrived", "inherited").sum())
        assert totals.row(0) == (2_257_174, 327_346, 24_258)


OFTEN = {("year", 5)}
"""What ``make test-all`` runs on the whole year; ``make test-long`` runs all pairs."""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("cut", "parallelism"),
    [
        pytest.param(cut, parallelism, marks=() if (cut, parallelism) in OFTEN else pytest.mark.long)
        for cut in CUTS
        for parallelism in (1, 2, 5)
    ],
)
def test_the_year_equals_the_reference(
    tmp_path: Path,
    engine: StateEngine,
    build: Callable[..., StatefulJob],
    feeds: Path,
    year: Expected,
    cut: str,
    parallelism: int,
) -> None:
    options, batches = CUTS[cut]
    job = build(prepare_feed(feeds), parallelism=parallelism, **options)
    engine.run(job)
    assert len(engine.checkpoints(job)) == batches
    outcome = Outcome.of(tmp_path, engine, job)
    outcome.assert_equal(year)
    outcome.assert_golden_numbers()
    if (cut, parallelism) in OFTEN:
        worst = collected(flights.worst_routes(engine.read_state(job, "route_ranking", "totals")))
        assert worst.select(*ROUTE, "total_arr_delay", "arrived").row(0) == ("EWR", "TYS", 12_880, 313)
        assert worst.filter(pl.col("arrived") < 100).is_empty()
        assert worst["mean_arr_delay"].is_sorted(descending=True)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("months", "refused"),
    [(["2013-01", "2013-02"], None), pytest.param(None, 2_512, marks=pytest.mark.long)],
)
def test_cancelled_flights_without_an_aircraft_become_dead_letters(
    tmp_path: Path,
    engine: StateEngine,
    build: Callable[..., StatefulJob],
    feeds: Path,
    raw: pl.DataFrame,
    months: list[str] | None,
    refused: int | None,
) -> None:
    feed = prepare_feed(feeds) if months is None else prepare_feed(feeds, months=months)
    job = build(feed, on_error="dead_letter", keep_cancelled=True, max_files_per_batch=1)
    report = engine.run(job)
    departures = reference.departures(raw, keep_cancelled=True)
    if months is not None:
        departures = departures.filter(reference.new_york_month(pl.col("departed_at")).is_in(months))
        refused = departures["tailnum"].null_count()
    letters = DeltaTable(str(tmp_path / "root" / "flights" / "dead_letters")).to_pyarrow_table()
    assert letters.num_rows == refused == sum(b.rows_refused for b in report.batches)
    assert refused
    expected = Expected.of(departures)
    Outcome.of(tmp_path, engine, job).assert_equal(expected)


@pytest.mark.spark
def test_without_dead_letters_the_first_of_them_fails_the_job(
    tmp_path: Path, engine: StateEngine, build: Callable[..., StatefulJob], feeds: Path
) -> None:
    job = build(prepare_feed(feeds, months=["2013-01"]), keep_cancelled=True)
    with pytest.raises(UserFunctionError) as failure:
        engine.run(job)
    assert (failure.value.job, failure.value.operator) == ("flights", "plane_delays")
    assert engine.checkpoints(job) == []
    published = tmp_path / "sinks" / "plane_delays"
    assert not DeltaTable.is_deltatable(str(published)) or DeltaTable(str(published)).file_uris() == []
