"""Sinks with ``key=``: the last row of each key, in a Delta table and in SQLite, through restores and backfills."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    Row,
    RowKind,
    SqlSink,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
)
from state_engine.core.errors import (
    ConfigurationError,
    SinkError,
    SinkIdentityError,
    StateMigrationError,
    TableChangedError,
)
from state_engine.core.time.partitions import TimePartitions
from state_engine.state_tables.states import TablePolicy

pytestmark = pytest.mark.spark

COLUMNS = "id bigint, city string, at bigint"


@dataclass
class Place:
    """A table, as a sink writes to it and as its user reads it."""

    directory: Path
    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    def sink(self, **options: Any) -> DeltaSink | SqlSink:
        given: dict[str, Any] = {"key": ["id"]} | self.options | options
        if self.kind == "delta":
            return DeltaSink(str(self.directory / "latest"), **given)
        return SqlSink(f"sqlite:///{self.directory}/out.db", "latest", **given)

    def rows(self, columns: str = "id, city, at") -> list[tuple[Any, ...]]:
        if self.kind == "delta":
            read = pl.read_delta(str(self.directory / "latest"))
            return sorted(read.select(columns.split(", ")).rows(), key=repr)
        return sorted(self.run(f"SELECT {columns} FROM latest"), key=repr)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(f"sqlite:///{self.directory}/out.db", poolclass=sa.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []


@pytest.fixture(params=["delta", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def engine(tmp_path: Path, spark: SparkSession) -> StateEngine:
    return StateEngine(tmp_path / "root", spark=spark)


def job_of(
    rows: list[Any], sink: DeltaSink | SqlSink, *, changing: bool = False, cut: int = 2
) -> StatefulJob:
    job = StatefulJob("towns", parallelism=2)
    stream = job.from_collection(rows, COLUMNS, name="rows", changing=changing, max_rows_per_batch=cut)
    stream.sink("latest", sink)
    return job


ROWS = [(1, "Turin", 5), (2, "Rome", 6), (1, "Bari", 3), (3, "Pisa", 1), (2, "Como", 9)]


# -- streams that change --------------------------------------------------------------------------------------------


CHANGES = [
    Row.of_kind(RowKind.INSERT, id=1, city="Turin", at=1),
    Row.of_kind(RowKind.INSERT, id=2, city="Rome", at=1),
    Row.of_kind(RowKind.UPDATE_BEFORE, id=1, city="Turin", at=1),
    Row.of_kind(RowKind.UPDATE_AFTER, id=1, city="Bari", at=2),
    Row.of_kind(RowKind.UPDATE_BEFORE, id=2, city="Rome", at=1),
    Row.of_kind(RowKind.UPDATE_AFTER, id=3, city="Rome", at=2),
    Row.of_kind(RowKind.INSERT, id=4, city="Como", at=3),
    Row.of_kind(RowKind.DELETE, id=4, city="Como", at=3),
]


@pytest.mark.parametrize("sequence", [[], ["at"]], ids=["order", "sequence"])
def test_a_stream_that_changes(place: Place, engine: StateEngine, sequence: list[str]) -> None:
    sink = place.sink(sequence=sequence)
    engine.run(job_of(CHANGES, sink, changing=True), max_batches=1)
    assert place.rows() == [(1, "Turin", 1), (2, "Rome", 1)]
    engine.run(job_of(CHANGES, sink, changing=True), max_batches=1)
    assert place.rows() == [(1, "Bari", 2), (2, "Rome", 1)], "the row before is no deletion"
    engine.run(job_of(CHANGES, sink, changing=True), max_batches=1)
    assert place.rows() == [(1, "Bari", 2), (3, "Rome", 2)], "the row went to another key"
    engine.run(job_of(CHANGES, sink, changing=True))
    assert place.rows() == [(1, "Bari", 2), (3, "Rome", 2)]


# -- the head moves -------------------------------------------------------------------------------------------------


def test_a_restore_moves_the_table_back_and_forth(place: Place, engine: StateEngine) -> None:
    engine.run(job_of(ROWS, place.sink()))
    first, last = [(1, "Turin", 5), (2, "Rome", 6)], place.rows()
    head = engine.checkpoints("towns")[-1].checkpoint_id
    engine.restore(job_of(ROWS, place.sink()), checkpoint_id=1)
    assert place.rows() == first
    engine.restore("towns", checkpoint_id=head)
    assert place.rows() == last
    engine.restore("towns", checkpoint_id=1, outputs={"latest": "keep"})
    assert place.rows() == last
    engine.restore("towns", checkpoint_id=head, outputs={"latest": "rebuild"})
    engine.restore("towns", checkpoint_id=1, outputs={"latest": "follow"})
    assert place.rows() == first
    with pytest.raises(ConfigurationError, match=r"'withdraw' of 'latest'.*'follow', 'keep' or 'rebuild'"):
        engine.restore("towns", checkpoint_id=head, outputs={"latest": "withdraw"})
    engine.run(job_of(ROWS, place.sink()))
    assert place.rows() == last


def test_a_checkpoint_before_the_sink_is_no_empty_table(place: Place, engine: StateEngine) -> None:
    other = DeltaSink(str(place.directory / "all"))
    without = StatefulJob("towns", parallelism=2)
    rows = without.from_collection(ROWS, COLUMNS, name="rows", max_rows_per_batch=2)
    rows.sink("all", other)
    engine.run(without, max_batches=1)

    def job() -> StatefulJob:
        made = job_of(ROWS, place.sink())
        made.stream(made.sources["rows"]).sink("all", other)
        return made

    engine.run(job(), max_batches=1)
    assert place.rows() == [(1, "Bari", 3), (3, "Pisa", 1)]
    with pytest.raises(ConfigurationError, match=r"checkpoint 1 does not know the state 'row'.*'latest'"):
        engine.restore(job(), checkpoint_id=1)
    engine.restore(job(), checkpoint_id=1, outputs={"latest": "rebuild"})
    assert place.rows() == []
    engine.run(job())
    assert place.rows() == [(1, "Bari", 3), (2, "Como", 9), (3, "Pisa", 1)]


def test_a_replay_is_promoted(place: Place, engine: StateEngine) -> None:
    engine.run(job_of(ROWS, place.sink()))
    corrected = job_of([(i, city.upper(), at) for i, city, at in ROWS], place.sink())
    engine.replay(job_of(ROWS, place.sink()), branch="corrected", from_checkpoint=1, code=corrected)
    assert place.rows() == [(1, "Bari", 3), (2, "Como", 9), (3, "Pisa", 1)]
    engine.promote("towns", "corrected")
    assert place.rows() == [(1, "BARI", 3), (2, "COMO", 9), (3, "PISA", 1)]


def test_another_key_is_refused(place: Place, engine: StateEngine) -> None:
    engine.run(job_of(ROWS, place.sink()), max_batches=1)
    with pytest.raises(StateMigrationError, match=r"sink 'latest'.*a row for each \['id'\], and key= says"):
        engine.run(job_of(ROWS, place.sink(key=["at"])))
    assert place.rows() == [(1, "Turin", 5), (2, "Rome", 6)]


def without_sink(place: Place) -> StatefulJob:
    job = StatefulJob("towns", parallelism=2)
    rows = job.from_collection(ROWS, COLUMNS, name="rows", max_rows_per_batch=2)
    rows.sink("all", DeltaSink(str(place.directory / "all")))
    return job


def left_the_code(place: Place, engine: StateEngine) -> StatefulJob:
    """The sink was gone from the code for a micro-batch, and is back."""
    engine.run(job_of(ROWS, place.sink()), max_batches=1)
    engine.run(without_sink(place), max_batches=1)
    assert place.rows() == [(1, "Turin", 5), (2, "Rome", 6)]
    return job_of(ROWS, place.sink())


def kept_by_a_restore(place: Place, engine: StateEngine) -> StatefulJob:
    """A restore went to before the sink, and kept its table."""
    job = without_sink(place)
    engine.run(job, max_batches=1)
    job.stream(job.sources["rows"]).sink("latest", place.sink())
    engine.run(job, max_batches=1)
    assert place.rows() == [(1, "Bari", 3), (3, "Pisa", 1)]
    engine.restore(job, checkpoint_id=1, outputs={"latest": "keep"})
    return job


WAYS_TO_FORGET = pytest.mark.parametrize("forgets", [left_the_code, kept_by_a_restore])
FORGOTTEN = (
    r"sink 'latest': the head.*does not know the state.*Give the sink another table; or empty this one"
)


@WAYS_TO_FORGET
def test_rows_that_the_head_does_not_know_are_not_deleted(
    place: Place, engine: StateEngine, forgets: Callable[[Place, StateEngine], StatefulJob]
) -> None:
    job = forgets(place, engine)
    there, checkpoints = place.rows(), len(engine.checkpoints("towns"))
    with pytest.raises(ConfigurationError, match=FORGOTTEN):
        engine.run(job)
    assert (place.rows(), len(engine.checkpoints("towns"))) == (there, checkpoints)


@WAYS_TO_FORGET
def test_another_table_begins_empty_where_the_head_does_not_know_the_state(
    place: Place, engine: StateEngine, forgets: Callable[[Place, StateEngine], StatefulJob]
) -> None:
    forgets(place, engine)
    other = Place(place.directory / "other", place.kind)
    other.directory.mkdir()
    there, read = place.rows(), sum(row.rows_in for row in engine.context.history("towns").main_path)
    engine.run(job_of(ROWS, other.sink()))
    assert other.rows() == last_of(ROWS[read:], by_sequence=False)
    assert place.rows() == there


@WAYS_TO_FORGET
def test_a_table_that_is_emptied_begins_empty_where_the_head_does_not_know_the_state(
    place: Place, engine: StateEngine, forgets: Callable[[Place, StateEngine], StatefulJob]
) -> None:
    job = forgets(place, engine)
    read = sum(row.rows_in for row in engine.context.history("towns").main_path)
    engine.published(job).rebuild("latest")
    assert place.rows() == []
    engine.run(job)
    assert place.rows() == last_of(ROWS[read:], by_sequence=False)
    assert engine.published("towns").verify("latest").rows == 0


@WAYS_TO_FORGET
def test_a_job_of_another_name_begins_with_the_rows_of_the_table(
    place: Place,
    engine: StateEngine,
    spark: SparkSession,
    forgets: Callable[[Place, StateEngine], StatefulJob],
) -> None:
    forgets(place, engine)
    rows, read = place.rows(), sum(row.rows_in for row in engine.context.history("towns").main_path)
    job = StatefulJob("places", parallelism=2)
    stream = job.from_collection(ROWS, COLUMNS, name="rows", max_rows_per_batch=2)
    stream.sink("latest", place.sink(adopt=True))
    state = {"row": spark.createDataFrame(rows, COLUMNS)}
    engine.state_processor(job).bootstrap({"sink_latest": state}, positions={"rows": read})
    engine.run(job)
    assert place.rows() == last_of([*rows, *ROWS[read:]], by_sequence=False)
    assert engine.published("places").verify("latest").rows == 0


@pytest.mark.parametrize("policy", ["keep", "rebuild"])
@pytest.mark.parametrize("before", [True, False], ids=["edited before the restore", "edited after it"])
@pytest.mark.parametrize("way_out", ["rebuild", "accept"])
def test_a_table_that_somebody_changed_has_its_ways_out_where_the_head_does_not_know_the_state(
    way_out: str, before: bool, policy: TablePolicy, tmp_path: Path, engine: StateEngine, spark: SparkSession
) -> None:
    place, job = Place(tmp_path, "delta"), StatefulJob("towns", parallelism=2)
    rows = job.from_collection(ROWS, COLUMNS, name="rows", max_rows_per_batch=2)
    rows.sink("all", DeltaSink(str(tmp_path / "all")))
    engine.run(job, max_batches=1)
    rows.sink("latest", place.sink())
    engine.run(job)

    def somebody_writes() -> None:
        edit = pl.DataFrame({"id": [9], "city": ["Bonn"], "at": [9]})
        edit.write_delta(str(tmp_path / "latest"), mode="append")

    if before:
        somebody_writes()
        with pytest.raises(TableChangedError):
            engine.restore(job, checkpoint_id=1, outputs={"latest": policy})
    else:
        engine.restore(job, checkpoint_id=1, outputs={"latest": policy})
        somebody_writes()
    engine = StateEngine(tmp_path / "root", spark=spark)  # of another run, which looks at the table first
    with pytest.raises(ConfigurationError, match=FORGOTTEN + " with `statelake rebuild-table towns latest"):
        engine.run(job)
    tables = engine.published("towns")
    there = place.rows()
    assert (9, "Bonn", 9) in there
    if way_out == "rebuild":
        move = tables.rebuild("latest", dry_run=True)
        assert (move.rows, move.deleted, place.rows()) == (0, len(there), there)
        move = tables.rebuild("latest")
        assert (move.rows, move.deleted, place.rows()) == (0, 0, [])
        with pytest.raises(SinkError, match="the head does not know the state 'row' of operator"):
            tables.verify("latest")
    else:
        move = tables.accept("latest")
        assert (move.whole, place.rows()) == ("the head does not know its state", there)
        tables.rebuild("latest")
    engine.run(job)
    assert place.rows() == [(1, "Bari", 3), (2, "Como", 9), (3, "Pisa", 1)]


DAY_MS = 86_400_000
DAYS = ["1970-01-02", "1970-01-03", "1970-01-04"]


def days_job(place: Place, mark: str = "", *, keyed: bool = True) -> StatefulJob:
    feed = place.directory / "feed"
    feed.mkdir(exist_ok=True)
    hours = [("a", 25), ("b", 26), ("a", 50), ("c", 51), ("b", 75), ("d", 76)]
    times = pa.array([hour * 3_600_000_000 for _, hour in hours]).cast(pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"id": [k for k, _ in hours], "at": times}), feed / "0.parquet")

    partitions = TimePartitions("at", start=DAYS[0], end="1970-01-05")
    made = StatefulJob("days", parallelism=2, partitions=partitions, code_version=mark)
    rows = made.source("rows", FileSource(str(feed)), order_by=["at"], event_time="at")
    towns = rows.map(
        lambda row: Row(id=row.id, city=f"{row.at.day}{mark}", at=row.at.day),
        "id string, city string, at bigint",
    )
    if keyed:
        towns.sink("latest", place.sink())
    return made


def test_a_backfill_does_not_begin_beside_rows_that_the_head_does_not_know(
    place: Place, engine: StateEngine
) -> None:
    engine.run(days_job(place), clock=5 * DAY_MS, max_batches=2)
    engine.run(days_job(place, keyed=False), clock=5 * DAY_MS)
    there = place.rows("id, city")
    with pytest.raises(ConfigurationError, match=FORGOTTEN):
        engine.backfill(days_job(place), DAYS[1], DAYS[1])
    assert place.rows("id, city") == there


def test_a_backfill_that_stops_leaves_the_table_at_its_end(place: Place, engine: StateEngine) -> None:
    def job(mark: str = "") -> StatefulJob:
        return days_job(place, mark)

    engine.run(job(), clock=5 * DAY_MS)
    assert place.rows("id, city") == [("a", "3"), ("b", "4"), ("c", "3"), ("d", "4")]
    engine.backfill(job("!"), DAYS[1], DAYS[1], "stop")
    assert place.rows("id, city") == [("a", "3!"), ("b", "2"), ("c", "3!")]
    engine.run(job("?"), clock=5 * DAY_MS)
    assert place.rows("id, city") == [("a", "3!"), ("b", "4?"), ("c", "3!"), ("d", "4?")]


def test_what_expired_leaves_the_table_after_a_compaction(place: Place, engine: StateEngine) -> None:
    minute = 60_000
    sink = place.sink(ttl=StateTtlConfig.new_builder(Time.minutes(10)).build(), sequence=["at"])

    def run(at: int) -> list[tuple[Any, ...]]:
        job = job_of([(1, "Turin", 1), (2, "Rome", 2), (3, "Pisa", 3), (1, "Bari", 0)], sink, cut=1)
        engine.run(job, max_batches=1, clock=at * minute)
        return place.rows()

    run(0)
    assert run(5) == [(1, "Turin", 1), (2, "Rome", 2)]
    engine.compact("towns")
    assert run(12) == [(1, "Turin", 1), (2, "Rome", 2), (3, "Pisa", 3)], "nothing looks for what has expired"
    engine.compact("towns")
    assert run(13) == [(1, "Bari", 0), (2, "Rome", 2), (3, "Pisa", 3)], "its sequence went with the row"


# -- tables that are there already ----------------------------------------------------------------------------------


def test_a_delta_table_that_outputs_were_appended_to(engine: StateEngine, tmp_path: Path) -> None:
    place = Place(tmp_path, "delta")
    appending = DeltaSink(str(tmp_path / "latest"))
    engine.run(job_of(ROWS, appending), max_batches=2)
    assert len(place.rows()) == 4
    engine.run(job_of(ROWS, DeltaSink(str(tmp_path / "other"), key=["id"])), max_batches=1)
    assert place.rows()[0] == (1, "Bari", 3)
    rows = [*ROWS, (1, "Asti", 9)]
    with pytest.raises(SinkIdentityError, match="adopt=True"):
        engine.run(job_of(rows, place.sink()))
    engine.run(job_of(rows, place.sink(adopt=True)))
    assert place.rows() == [(1, "Asti", 9), (2, "Como", 9)]
    assert engine.published("towns").verify("latest").rows == 0
    with pytest.raises(ConfigurationError, match="does not know the state"):
        engine.restore(job_of(rows, place.sink()), checkpoint_id=2)
    engine.restore(job_of(rows, place.sink()), checkpoint_id=2, outputs={"latest": "keep"})
    assert place.rows() == [(1, "Asti", 9), (2, "Como", 9)]


def test_a_table_with_several_rows_of_a_key_gets_one(engine: StateEngine, tmp_path: Path) -> None:
    place = Place(tmp_path, "delta")
    pl.DataFrame(
        {"id": [1, 1, 2, 2, 7], "city": ["x", "Turin", "x", "y", "z"], "at": [1, 5, 2, 3, 4]}
    ).write_delta(str(tmp_path / "latest"))
    job = job_of(ROWS[:2], place.sink(adopt=True))
    engine.run(job)
    assert place.rows() == [(1, "Turin", 5), (2, "Rome", 6)]


# -- keys and columns -----------------------------------------------------------------------------------------------


def test_columns_of_files_have_their_types(place: Place, engine: StateEngine, spark: SparkSession) -> None:
    feed = place.directory / "feed"
    feed.mkdir()
    schema = pa.schema(
        [("city", pa.string()), ("day", pa.date32()), ("id", pa.int32()), ("at", pa.float32())]
    )
    rows = [
        ("Turin", date(2026, 1, 2), 1, 0.5),
        ("Rome", date(2026, 1, 2), None, 1.5),
        ("Bari", None, 1, 2.5),
    ]
    columns = [pa.array(c, k) for c, k in zip(zip(*rows, strict=True), schema.types, strict=True)]
    pq.write_table(pa.table(columns, schema), feed / "0.parquet")
    job = StatefulJob("towns", parallelism=2)
    job.source("rows", FileSource(str(feed))).sink("latest", place.sink(key=["id", "day"]))
    engine.run(job)
    shown = place.rows("id, day, city, at")
    if place.kind == "delta":
        made = pl.read_delta(str(place.directory / "latest")).schema
        assert dict(made) == {"id": pl.Int32, "day": pl.Date, "city": pl.String, "at": pl.Float32}
        assert set(shown) == {(id, day, city, at) for city, day, id, at in rows}
    else:
        assert set(shown) == {(id, day and str(day), city, at) for city, day, id, at in rows}
    engine.run(job)
    assert place.rows("id, day, city, at") == shown


def test_keys_are_those_of_the_sink_whatever_the_stream_is_keyed_by(
    place: Place, engine: StateEngine
) -> None:
    job = StatefulJob("towns", parallelism=2)
    rows = job.from_collection(ROWS, COLUMNS, name="rows", max_rows_per_batch=2)
    by_city = rows.key_by("city").sink("latest", place.sink())
    by_city.map(lambda row: row, COLUMNS, uid="same").sink("all", DeltaSink(str(place.directory / "all")))
    engine.run(job)
    assert place.rows() == [(1, "Bari", 3), (2, "Como", 9), (3, "Pisa", 1)]
    assert len(pl.read_delta(str(place.directory / "all"))) == 5


def test_the_state_is_to_be_seen_under_the_name_of_the_sink(place: Place, engine: StateEngine) -> None:
    job = job_of(ROWS, place.sink())
    engine.run(job)
    assert job.operators["sink_latest"].name == "last rows of sink latest"
    read = engine.read_state(job, "sink_latest", "row").select("id", "value.city")
    assert sorted(map(tuple, read.collect())) == [(1, "Bari"), (2, "Como"), (3, "Pisa")]


# -- accidents ------------------------------------------------------------------------------------------------------


def test_a_table_that_was_edited_while_the_sink_was_away_is_rebuilt(
    place: Place, engine: StateEngine
) -> None:
    job = StatefulJob("towns", parallelism=2)
    rows = job.from_collection(ROWS, COLUMNS, name="rows", max_rows_per_batch=2)
    rows.sink("all", DeltaSink(str(place.directory / "all")))
    engine.run(job_of(ROWS, place.sink()), max_batches=1)
    engine.run(job, max_batches=1)
    if place.kind == "delta":
        pl.DataFrame({"id": [8], "city": ["Lodi"], "at": [1]}).write_delta(
            str(place.directory / "latest"), mode="append"
        )
    else:
        place.run("INSERT INTO latest (id, city, at) VALUES (8, 'Lodi', 1)")
        place.run("DELETE FROM latest")
    refusal = ConfigurationError if place.rows() else TableChangedError
    with pytest.raises(refusal, match="rebuild-table towns latest"):
        engine.run(job_of(ROWS, place.sink()))
    engine.published(job_of(ROWS, place.sink())).rebuild("latest")
    engine.run(job_of(ROWS, place.sink()))
    assert place.rows() == [(2, "Como", 9)]


def test_a_table_that_was_appended_to_is_built_from_the_state_where_it_was_deleted(
    engine: StateEngine, tmp_path: Path
) -> None:
    """What was appended under the name of the sink before is not asked for any more."""
    place = Place(tmp_path, "delta")
    engine.run(job_of(ROWS, DeltaSink(str(tmp_path / "latest"))), max_batches=1)
    engine.run(job_of(ROWS, place.sink(adopt=True)), max_batches=1)
    assert place.rows() == [(1, "Bari", 3), (3, "Pisa", 1)]
    shutil.rmtree(tmp_path / "latest")
    engine.close()
    again = StateEngine(tmp_path / "root", spark=engine.spark)
    again.run(job_of(ROWS, place.sink(adopt=True)))
    assert place.rows() == [(1, "Bari", 3), (2, "Como", 9), (3, "Pisa", 1)]


# -- in any order ---------------------------------------------------------------------------------------------------


def last_of(rows: list[tuple[int, str, int]], *, by_sequence: bool) -> list[tuple[int, str, int]]:
    """The rows that the table shows when these were read, by a plain loop."""
    last: dict[int, tuple[int, str, int]] = {}
    for row in rows:
        if not by_sequence or row[0] not in last or last[row[0]][2] <= row[2]:
            last[row[0]] = row
    return sorted(last.values())


@pytest.mark.parametrize("by_sequence", [False, True], ids=["order", "sequence"])
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_random_histories(place: Place, spark: SparkSession, seed: int, by_sequence: bool) -> None:
    chance = random.Random(seed)
    rows = [(chance.randrange(6), chance.choice("xyz"), chance.randrange(9)) for _ in range(60)]
    sink = place.sink(sequence=["at"] if by_sequence else [])
    root = place.directory / "root"
    engine = StateEngine(root, spark=spark)
    engine.run(job_of(rows, sink, cut=3), max_batches=1)
    for _ in range(12):
        ids = [row.checkpoint_id for row in engine.checkpoints("towns")]
        what = chance.choice(["run", "run", "restore", "compact", "rescale", "reopen", "lose"])
        if what == "run":
            engine.run(job_of(rows, sink, cut=3), max_batches=chance.randint(1, 3))
        elif what == "restore" and (earlier := ids[:-1]):
            engine.restore("towns", checkpoint_id=chance.choice(earlier))
        elif what == "compact":
            engine.compact("towns", full=True)
        elif what == "rescale":
            engine.rescale(job_of(rows, sink), parallelism=chance.randint(1, 4))
        elif what == "reopen":
            engine.close()
            engine = StateEngine(root, spark=spark)
        elif what == "lose":
            shutil.rmtree(place.directory / "latest", ignore_errors=True)
            (place.directory / "out.db").unlink(missing_ok=True)
            engine.close()
            engine = StateEngine(root, spark=spark)
            engine.publish_pending(job_of(rows, sink))
        read = sum(row.rows_in for row in engine.context.history("towns").main_path)
        assert place.rows() == last_of(rows[:read], by_sequence=by_sequence), what
