"""The session of the user's is his: rows do not depend on its options, and a run changes none of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from state_engine import FileSource, StateEngine, StatefulJob
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.sinks.delta import DeltaSink
from state_engine.spark.engine_session import active_session
from state_engine.spark.stores import reach_stores
from state_engine.spark.tasks import described
from state_engine.storage.stores.object_stores import PROCESS_STORES, StoreAccess
from tests.support.guides import GUIDES, code_blocks

OLD = date(1500, 1, 1)
NOON = datetime(2024, 7, 1, 12)
OTHERS = {
    "zone": {"spark.sql.session.timeZone": "America/New_York"},
    "without zones": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    "calendar of old": {
        f"spark.sql.parquet.{kind}RebaseModeIn{way}": "LEGACY"
        for kind in ("datetime", "int96")
        for way in ("Read", "Write")
    },
    "no ANSI": {"spark.sql.ansi.enabled": "false"},
    "case": {"spark.sql.caseSensitive": "true"},
    "laws of old": {
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
        "spark.sql.parquet.int96TimestampConversion": "true",
        "spark.sql.legacy.sizeOfNull": "true",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    },
}
"""Options of sessions that gave other rows, or may."""


class Newest(KeyedProcessFunction):
    """Remembers the day of each row."""

    def open(self, context: Any) -> None:
        self.day = context.get_state(ValueStateDescriptor("day", "date"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.day.update(value.day)
        yield (value.k,)


def written(directory: Path, *, files: str = "parquet", rows: int = 1) -> Path:
    """Input of some rows, by a program that knows nothing of Spark."""
    directory.mkdir(parents=True)
    if files == "parquet":
        table = pa.table(
            {
                "k": ["a"] * rows,
                "day": [OLD] * rows,
                "at": pa.array([NOON] * rows, pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, directory / "one.parquet")
    elif files == "json":
        line = '{"k": "a", "day": "1500-01-01", "at": "2024-07-01T12:00:00Z"}\n'
        (directory / "one.json").write_text(line * rows)
    else:
        (directory / "one.csv").write_text("k,day,at\n" + "a,1500-01-01,2024-07-01T12:00:00Z\n" * rows)
    return directory


def derived(rows: DataFrame) -> DataFrame:
    """Columns that go by options of a session."""
    product = "cast('1.12345678901234567' as decimal(38,18)) * cast(1 as decimal(38,18))"
    return (
        rows.withColumn("hour", F.hour("at"))
        .withColumn("text", F.col("at").cast("string"))
        .withColumn("naive", F.col("at").cast("timestamp_ntz"))
        .withColumn("json", F.to_json(F.struct("k", F.lit(None).cast("int").alias("nothing"))))
        .withColumn("size", F.size(F.lit(None).cast("array<int>")))
        .withColumn("product", F.expr(product).cast("string"))
        .withColumn("fold", F.col("AT").isNotNull())
    )  # fmt: skip


def job_of(
    place: Path,
    *,
    files: Any = "parquet",
    step: Callable[[DataFrame], DataFrame] = derived,
    name: str = "hours",
    rows: int = 1,
) -> StatefulJob:
    job = StatefulJob(name)
    options = {"header": "true"} if files == "csv" else {}
    directory = place / "in"
    if not directory.exists():
        written(directory, files=files, rows=rows)
    source = FileSource(
        str(directory), format=files, schema="k string, day date, at timestamp", options=options
    )
    rows_of = job.source("read", source).transform(step)
    rows_of.sink("out", DeltaSink(str(place / "out")))
    rows_of.key_by("k").process(Newest(), uid="newest", output_type="k string")
    return job


def test_a_time_without_a_zone_is_utc_in_code_of_a_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the zone of the process is, which PySpark takes, as it does for the user's own queries meanwhile."""
    noon, seconds = datetime(2026, 1, 5, 12), 1_767_614_400

    def step(rows: DataFrame) -> DataFrame:
        for frame in (with_times(rows.sparkSession, noon), spark.createDataFrame([Row(u=noon)])):
            rows = rows.crossJoin(frame.select(*(F.unix_seconds(name).alias(name) for name in frame.columns)))
        lit = {"lit": F.unix_seconds(F.lit(noon)), "later": F.unix_seconds(F.greatest("at", F.lit(noon)))}
        return rows.withColumns(lit).drop("at")

    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with StateEngine(tmp_path / "root", spark) as engine:
            engine.run(job_of(tmp_path, step=step))
        own = with_times(spark, noon).select(F.unix_seconds("t"), F.unix_seconds("listed")).collect()[0]
    finally:
        monkeypatch.undo()
        time.tzset()
    ((_, _, *there, later),) = outputs_of(spark, tmp_path)
    assert (set(there), set(own)) == ({seconds}, {seconds + 5 * 3600})
    assert later >= seconds


def with_times(session: SparkSession, at: datetime) -> DataFrame:
    """A row with a time, by itself, in a list and in a record, as ``createDataFrame`` takes it."""
    kinds = "t timestamp, l array<timestamp>, s struct<inner: timestamp>"
    frame = session.createDataFrame([(at, [at], (at,))], kinds)
    return frame.select("t", F.col("l")[0].alias("listed"), "s.inner")


@contextmanager
def a_session(spark: SparkSession, options: dict[str, str]) -> Iterator[SparkSession]:
    """Of a user who likes these options; no other one sees them."""
    session = spark.newSession()
    for name, value in options.items():
        session.conf.set(name, value)
    session.range(1).collect()  # Delta sets options of its own at the first query
    yield session


def outputs_of(spark: SparkSession, place: Path) -> list[Any]:
    rows = spark.newSession().read.format("delta").load(str(place / "out"))
    names = [name for name in rows.columns if not name.startswith("_")]
    return [tuple(row) for row in rows.select(*names).collect()]


@pytest.fixture(scope="module")
def usual(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the job puts out in a session that has Spark's own options."""
    place = tmp_path_factory.mktemp("usual")
    StateEngine(place / "root", spark.newSession()).run(job_of(place))
    (row,) = outputs_of(spark, place)
    assert row[1] == OLD
    assert row[3] == 12
    return [row]


@pytest.mark.parametrize("files", ["parquet", "json", "csv"])
@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_rows_do_not_depend_on_the_session(
    spark: SparkSession, tmp_path: Path, usual: list[Any], options: dict[str, str], files: str
) -> None:
    with a_session(spark, options) as session:
        before = session.conf.getAll
        engine = StateEngine(tmp_path / "root", session)
        job = job_of(tmp_path, files=files)
        engine.run(job)
        assert outputs_of(spark, tmp_path) == usual
        (state,) = engine.read_state(job, "newest", "day").collect()
        assert state["value"] == OLD
        (answer,) = engine.sql(job, "SELECT value FROM day").collect()
        assert answer["value"] == OLD
        assert session.conf.getAll == before


def test_a_watcher_sees_no_option_change(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        "spark.sql.session.timeZone",
        "spark.sql.adaptive.enabled",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.codegen.wholeStage",
        "spark.sql.codegen.factoryMode",
    ]
    with a_session(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"}) as session:
        hours = session.sql("SELECT hour(timestamp_seconds(id * 0)) AS h FROM range(1)")
        seen, active, ended = set[tuple[Any, ...]](), set[Any](), threading.Event()

        def watch() -> None:
            first = SparkSession._activeSession
            while not ended.is_set():
                seen.add((*(session.conf.get(name) for name in names), hours.collect()[0]["h"]))
                active.add(SparkSession._activeSession is first)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            engine = StateEngine(tmp_path / "root", session)
            job = job_of(tmp_path)
            for _ in range(3):
                engine.run(job)
                engine.read_state(job, "newest", "day").collect()
                engine.sql(job, "SELECT * FROM checkpoints").collect()
        finally:
            ended.set()
            watcher.join()
        assert len(seen) == 1
        assert next(iter(seen))[-1] == 9
        assert active == {True}


@pytest.mark.spark_tasks
def test_two_engines_in_two_threads(spark: SparkSession, tmp_path: Path) -> None:
    zones = ["America/New_York", "Asia/Tokyo"]
    with a_session(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}) as shared:
        failed: list[BaseException] = []

        def run(name: str, session: SparkSession) -> None:
            try:
                place = tmp_path / name
                engine = StateEngine(place / "root", session)
                job = job_of(place, name=name, rows=50)
                for more in range(3):
                    written(place / "in" / f"more_{more}", rows=20)
                    engine.run(job)
            except BaseException as error:
                failed.append(error)

        sessions = {"one": shared, "two": shared}
        for zone in zones:
            own = spark.newSession()
            own.conf.set("spark.sql.session.timeZone", zone)
            sessions[zone[:2].lower()] = own
        threads = [threading.Thread(target=run, args=one) for one in sessions.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        for name in sessions:
            assert {row[3] for row in outputs_of(spark, tmp_path / name)} == {12}


def test_what_a_session_knows_is_known_to_a_run(spark: SparkSession, tmp_path: Path) -> None:
    with a_session(spark, {}) as session:
        engine = StateEngine(tmp_path / "root", session)

        guide: dict[str, Any] = {}
        (block,) = (b for b in code_blocks(GUIDES / "clusters.md", "python") if "with_names" in b)
        exec(block, guide)

        def named(rows: DataFrame) -> DataFrame:
            with_names: DataFrame = guide["with_names"](rows)
            return with_names.withColumn("loud", F.expr("louder(name)"))

        job = job_of(tmp_path, step=named)
        assert (
            engine.checkpoints(job) == []
        )  # the engine has its session; views and functions come afterwards
        assert engine.kernel is not None
        session.createDataFrame([("a", "Anna")], "k string, name string").createOrReplaceTempView("names")
        session.udf.register("louder", lambda name: name.upper(), "string")
        engine.run(job)
        assert [row[-3:] for row in outputs_of(spark, tmp_path)] == [("Anna", 12, "ANNA")]

        session.createDataFrame([("a", "Ada")], "k string, name string").createOrReplaceTempView("names")
        written(tmp_path / "in" / "more")
        engine.run(job)
        assert sorted(row[-3] for row in outputs_of(spark, tmp_path)) == ["Ada", "Anna"]


def test_current_database_is_the_sessions(spark: SparkSession, tmp_path: Path) -> None:
    with a_session(spark, {}) as session:
        session.sql("CREATE DATABASE IF NOT EXISTS of_a_user")
        session.sql("USE of_a_user")
        session.sql("CREATE OR REPLACE TABLE names USING delta AS SELECT 'a' AS k, 'Anna' AS name")
        try:
            job = job_of(tmp_path, step=lambda rows: rows.join(rows.sparkSession.table("names"), "k"))
            StateEngine(tmp_path / "root", session).run(job)
            assert [row[-1] for row in outputs_of(spark, tmp_path)] == ["Anna"]
            assert session.catalog.currentDatabase() == "of_a_user"
        finally:
            session.sql("DROP DATABASE of_a_user CASCADE")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_step_that_begins_with_a_frame_of_the_session(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    with a_session(spark, {"spark.sql.session.timeZone": zone}) as session:
        names = session.createDataFrame([("a", "Anna")], "k string, name string")

        def joined(rows: DataFrame) -> DataFrame:
            return names.join(rows, "k").withColumn("hour", F.hour("at"))

        engine, job = StateEngine(tmp_path / "root", session), job_of(tmp_path, step=joined)
        if zone == "UTC":
            engine.run(job)
            assert [row[-1] for row in outputs_of(spark, tmp_path)] == [12]
            return
        with pytest.raises(ConfigurationError, match=r"session\.timeZone=America/New_York.*rows\.join"):
            engine.run(job)
        turned = job_of(tmp_path, step=lambda rows: rows.join(names, "k").withColumn("hour", F.hour("at")))
        engine.run(turned)
        assert [row[-1] for row in outputs_of(spark, tmp_path)] == [12]


def test_frames_that_are_handed_out_are_the_sessions(spark: SparkSession, tmp_path: Path) -> None:
    with a_session(spark, {"spark.sql.session.timeZone": "America/New_York"}) as session:
        engine, job = StateEngine(tmp_path / "root", session), job_of(tmp_path)
        engine.run(job)
        written(tmp_path / "in" / "more")
        engine.run(job)
        frames = [
            engine.read_state(job, "newest", "day", metadata=True),
            engine.sql(job, "SELECT hour(timestamp_seconds(0)) AS h"),
            engine.dead_letters(job),
            *(one.changes for one in engine.diff(job, 1, 2)),
        ]
        for frame in frames:
            assert frame.sparkSession is session
            assert frame._jdf.sparkSession().equals(session._jsparkSession)
        assert frames[1].collect()[0]["h"] == 19
        frames[0].createOrReplaceTempView("days")
        assert session.sql("SELECT count(*) FROM days").collect()[0][0] == 1


def test_the_active_session_stays(spark: SparkSession, tmp_path: Path) -> None:
    with a_session(spark, {}) as session:
        session.createDataFrame([(1,)], "a int")  # makes it the active one, as PySpark does
        jobs = spark.sparkContext
        jobs.setJobDescription("mine")
        engine, job = StateEngine(tmp_path / "root", session), job_of(tmp_path)
        try:
            engine.run(job)
            engine.sql(job, "SELECT * FROM day").collect()
            assert SparkSession.getActiveSession() is session
            assert active_session().equals(session._jsparkSession)
            assert jobs.getLocalProperty("spark.job.description") == "mine"
            assert spark.sparkContext.parallelize([(1,)]).toDF(["a"]).sparkSession is not engine.context.spark
        finally:
            jobs.setJobDescription("")
            spark.createDataFrame([(1,)], "a int")


def test_options_of_stores_that_a_program_has_set_stay(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hadoop configuration belongs to the context, whose every session it serves."""
    monkeypatch.setattr(PROCESS_STORES, "_described", {"": StoreAccess(region="eu-west-1", path_style=True)})
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set("fs.s3a.endpoint.region", "mine")
    try:
        for _ in range(2):
            reach_stores(spark)
            assert configuration.get("fs.s3a.endpoint.region") == "mine"
            assert configuration.get("fs.s3a.path.style.access") == "true"
        monkeypatch.setattr(PROCESS_STORES, "_described", {"": StoreAccess(profile="new")})
        reach_stores(spark)
        assert configuration.get("fs.s3a.auth.profile.name") == "new"
    finally:
        for name in ("endpoint.region", "path.style.access", "auth.profile.name", "aws.credentials.provider"):
            configuration.unset(f"fs.s3a.{name}")


@pytest.mark.parametrize("before", [None, "mine"])
def test_a_thread_has_the_description_afterwards_that_it_had_before(
    spark: SparkSession, before: str | None
) -> None:
    jobs: Any = spark.sparkContext
    jobs.setLocalProperty("spark.job.description", before)
    with described(spark, "the engine's"):
        assert jobs.getLocalProperty("spark.job.description") == "the engine's"
    assert jobs.getLocalProperty("spark.job.description") == before
    jobs.setLocalProperty("spark.job.description", None)


def test_a_session_that_is_made_within_a_call_is_active_there(spark: SparkSession, tmp_path: Path) -> None:
    engine, beside = StateEngine(tmp_path / "a", spark), StateEngine(tmp_path / "b", spark)
    with engine.context.call():
        with engine.context.call():
            pass
        own: Any = engine.context.spark
        assert active_session().equals(own._jsparkSession)
    other: Any = beside.context.spark
    assert not own._jsparkSession.equals(active_session())
    assert not other._jsparkSession.equals(active_session())
