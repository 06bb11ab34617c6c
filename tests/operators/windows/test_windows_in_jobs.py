"""Windows in whole jobs: in memory at any cut, one behind the other, and on Spark, whoever knows the columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    ChangeFormat,
    Cumulating,
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSink,
    FileSource,
    OutputTag,
    Session,
    Sliding,
    StatefulJob,
    TimePartitions,
    Tumbling,
    count,
    max_,
    sum_,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink, MemoryRun, run_in_memory
from tests.operators.windows import models
from tests.operators.windows.models import Event
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW = "k string, v bigint, at timestamp"
NOWHERE = FileSource("/nowhere", schema=ROW)
LATE = OutputTag("late", ROW)
BOUND = 4
AGGREGATES: dict[str, Any] = {"n": count(), "s": sum_("v"), "hi": max_("v")}


def source_of(job: StatefulJob, source: Any = NOWHERE, **time: Any) -> DataStream:
    options = {"event_time": "at", "max_out_of_orderness": f"{BOUND} ms"} | time
    return job.source("rows", source, **options)


def events(seed: int, count: int = 60) -> list[Event]:
    rng, newest, made = random.Random(seed), 0, []
    for _ in range(count):
        newest += rng.choice([0, 1, 2, 5, 9])
        behind = rng.choice([0, 0, 1, BOUND, BOUND + 1, 15])
        made.append(Event(rng.choice("abc"), rng.randint(-9, 9), 0.0, newest - behind))
    return made


def rows_of(given: list[Event]) -> list[tuple[str, int, datetime]]:
    return [(one.k, one.v, EPOCH + timedelta(milliseconds=one.at)) for one in given]


def ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def table_of(results: list[Any]) -> dict[Any, Any]:
    table = {(k, ms(start), ms(end)): tuple(values) for k, start, end, *values in results}
    assert len(table) == len(results), "a window came twice"
    return table


def expected_of(windowed: models.Windowed) -> dict[Any, Any]:
    """count, sum and greatest value of each window."""
    return {window: (n, s, hi) for window, (n, s, _, _, hi, _) in windowed.table.items()}


def windows_job(
    windows: Any, *, lateness: int = 0, emit: Any = "final", parallelism: int = 1, **time: Any
) -> StatefulJob:
    job = StatefulJob("windows", parallelism=parallelism)
    keyed = source_of(job, **time).key_by("k")
    windowed = keyed.window(windows, lateness=lateness, late_to=LATE, emit=emit)
    made = windowed.aggregate(uid="windows", **AGGREGATES)
    made.sink("windows", CollectSink())
    made.get_side_output(LATE).sink("late", CollectSink())
    return job


def fed(run: MemoryRun, rows: list[Any], seed: int) -> None:
    rng, at = random.Random(seed), 0
    while at < len(rows):
        size = rng.choice([1, 7, 60])
        run.process({"rows": rows[at : at + size]})
        at += size


def session_model(given: list[Event], lateness: int) -> models.Windowed:
    return models.sessions(given, lambda row: 6, bound=BOUND, lateness=lateness)


def sliding_model(given: list[Event], lateness: int) -> models.Windowed:
    return models.aligned(given, models.sliding(8, 4), bound=BOUND, lateness=lateness)


@pytest.mark.parametrize("lateness", [0, 12])
@pytest.mark.parametrize(
    ("windows", "model"),
    [(Session(6), session_model), (Sliding(8, every=4), sliding_model)],
    ids=["session", "sliding"],
)
def test_a_job_has_the_windows_of_the_model_at_any_cut(
    windows: Any, model: Callable[[list[Event], int], models.Windowed], lateness: int
) -> None:
    for seed in range(3):
        given = events(seed)
        expected = model(given, lateness)
        with run_in_memory(windows_job(windows, lateness=lateness, parallelism=1 + seed)) as run:
            fed(run, rows_of(given), seed)
            run.process(drain=True)
            assert table_of(run.sink("windows")) == expected_of(expected)
            assert len(run.sink("late")) == len(expected.late)
            assert sum(row.metrics["windows.too_late"] for row in run.checkpoints()) == len(expected.late)


@pytest.mark.parametrize("lateness", [0, 12])
def test_windows_of_windows_take_each_result_in_time(lateness: int) -> None:
    """The sums of sessions by day: none of them is late, though each comes a lateness behind its event time."""
    job = StatefulJob("chain", parallelism=2)
    sessions = (
        source_of(job).key_by("k").window(Session(6), lateness=lateness).aggregate(uid="first", **AGGREGATES)
    )
    totals = sessions.key_by("k").window(Tumbling(50), late_to=OutputTag("late", "k string, window_start timestamp, "
        "window_end timestamp, n bigint, s bigint, hi bigint"))  # fmt: skip
    second = totals.aggregate(uid="second", sessions=count(), n=sum_("n"))
    second.sink("second", CollectSink())
    given = events(5)
    expected: dict[Any, tuple[int, int]] = {}
    for (k, _, end), (n, *_) in session_model(given, lateness).table.items():
        start = (end - 1) // 50 * 50
        sessions_before, rows_before = expected.get((k, start, start + 50), (0, 0))
        expected[k, start, start + 50] = sessions_before + 1, rows_before + n
    for seed in range(3):
        with run_in_memory(job) as run:
            fed(run, rows_of(given), seed)
            run.process(drain=True)
            assert table_of(run.sink("second")) == expected
            assert sum(row.metrics["second.too_late"] for row in run.checkpoints()) == 0


def test_the_clock_ends_the_last_session_of_a_quiet_stream() -> None:
    with run_in_memory(windows_job(Session("30 min"), watermark="clock", clock_delay="1 min")) as run:
        run.process({"rows": [("a", 1, EPOCH)]}, clock=0)
        assert run.process(clock=20 * 60_000) == {}
        assert table_of(run.process(clock=40 * 60_000)["windows"]) == {("a", 0, 1_800_000): (1, 1, 1)}


def test_late_rows_are_inserts_where_results_change() -> None:
    job = StatefulJob("late_rows")
    windows = source_of(job).key_by("k").window(Tumbling(10), lateness=5, late_to=LATE, emit="changes")
    late = windows.aggregate(uid="windows", n=count()).get_side_output(LATE)
    late.sink("late", FileSink("/late"))
    late.key_by("k").aggregate(uid="late_rows", n=count()).sink("counts", CollectSink())
    with run_in_memory(job) as run:
        rows = rows_of([Event("a", v, 0.0, at) for v, at in ((1, 1), (2, 40), (3, 2), (4, 3))])
        outputs = run.process({"rows": rows})
        assert outputs == {"late": rows[2:], "counts": [("a", 1), ("a", 2)]}


def test_open_windows_are_a_table() -> None:
    job = StatefulJob("published")
    keyed = source_of(job).key_by("k")
    keyed.window(Session(6)).aggregate(uid="sessions", n=count()).publish(DeltaStateTable("/sessions"))
    keyed.window(Tumbling(10)).aggregate(uid="windows", n=count()).publish(DeltaStateTable("/windows"))
    keyed.window(Tumbling(10)).top_n(1, by="v", uid="best").publish(DeltaStateTable("/best"), name="best")
    sessions_of = keyed.window(Session(6)).top_n(1, by="v", ascending=True, uid="least")
    sessions_of.publish(DeltaStateTable("/least"), name="least")
    with run_in_memory(job) as run:
        run.process({"rows": rows_of([Event("a", 1, 0.0, 1), Event("a", 1, 0.0, 3), Event("b", 1, 0.0, 12)])})
        sessions = [(row.k, row.window_start, row.end, row.rows) for row in run.table("sessions")]
        assert sorted(sessions) == [("a", 1, 9, 2), ("b", 12, 18, 1)]
        assert sorted((row.k, row.window_start, row.rows) for row in run.table("windows")) == [
            ("a", 0, 2),
            ("b", 10, 1),
        ]
        for table in ("best", "least"):
            names = ("k", "window_start", "rank", "v", "at", "row_time")
            assert [one.__class__._fields for one in run.table(table)] == [names, names]
        assert sorted(row[:4] + row[5:] for row in run.table("best")) == [
            ("a", 0, 1, 1, 1),
            ("b", 10, 1, 1, 12),
        ]
        assert sorted(row[:4] + row[5:] for row in run.table("least")) == [
            ("a", 1, 1, 1, 1),
            ("b", 12, 1, 1, 12),
        ]
        run.process(drain=True)
        for table in ("sessions", "windows", "best", "least"):
            assert run.table(table) == []


def test_slices_are_no_table_of_windows() -> None:
    slides = (
        source_of(StatefulJob("published"))
        .key_by("k")
        .window(Sliding(8, every=4))
        .aggregate(n=count(), uid="s")
    )
    with pytest.raises(
        ConfigurationError, match=r"does not say which of its states.*publish_state\(state, table\)"
    ):
        slides.publish(DeltaStateTable("/slides"))


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [pytest.param(True, id="declared"), pytest.param(False, id="shown by files", marks=pytest.mark.more)],
)
def test_the_same_on_spark_also_where_timers_fire_without_a_row(
    spark: SparkSession, tmp_path: Path, limits: SetLimits, declared: bool
) -> None:
    limits(**NOTHING_BY_DRIVER)
    given = [*events(8), Event("a", 1, 0.0, 0)]
    (tmp_path / "in").mkdir()
    source = FileSource(str(tmp_path / "in"), format="parquet", schema=ROW if declared else None)

    def build(job: StatefulJob) -> dict[str, DataStream]:
        keyed = source_of(job, source).key_by("k")
        of_sessions = keyed.window(Session(6), lateness=12).aggregate(uid="sessions", **AGGREGATES)
        of_slides = keyed.window(Sliding(8, every=4), lateness=12, late_to=LATE, emit="changes").aggregate(
            uid="slides", **AGGREGATES
        )
        late = of_slides.get_side_output(LATE)
        again = late.key_by("k").aggregate(uid="late_rows", n=count())
        of_slides.sink("table", DeltaSink(str(tmp_path / "slides"), key=["k", "window_start"]))
        running = keyed.window(Tumbling(10), lateness=12, emit="running").aggregate(uid="run", **AGGREGATES)
        running.sink("running", DeltaSink(str(tmp_path / "running"), key=["k", "window_start"]))
        return {"sessions": of_sessions, "late": late, "late_rows": again}

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    for number, part in enumerate((given[:25], given[25:])):
        rows = rows_of(part)
        columns = {name: [row[at] for row in rows] for at, name in enumerate(("k", "v", "at"))}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{number}.parquet")
        pipeline.run()
    pipeline.run(drain=True)
    outputs = pipeline.outputs()
    assert table_of(outputs["sessions"]) == expected_of(session_model(given, 12))
    slides = sliding_model(given, 12)
    tumbling = models.aligned(given, models.sliding(10, 10), bound=BOUND, lateness=12)
    for name, expected in (("slides", slides), ("running", tumbling)):
        table = spark.read.load(str(tmp_path / name), format="delta").toArrow().to_pylist()
        assert table_of([tuple(row.values()) for row in table]) == expected_of(expected)
    assert sorted(outputs["late"]) == sorted(rows_of(slides.late)) != []
    assert len(outputs["late_rows"]) == len(slides.late)
    assert pipeline.state("sessions", "sessions") == []


@pytest.mark.parametrize("lateness", ["0 h", "2 h"])
def test_the_end_of_a_partition_ends_windows_and_those_behind_them(
    spark: SparkSession, tmp_path: Path, lateness: str
) -> None:
    """Hours, and the quarters of a day behind them: with a lateness those that end with the day come a day later."""
    (tmp_path / "in").mkdir()
    hours = [(0, "a"), (5, "a"), (6, "b"), (23, "a"), (23, "b"), (24, "a"), (40, "b"), (47, "a")]
    columns = {
        "k": [k for _, k in hours],
        "v": [1] * len(hours),
        "at": [EPOCH + timedelta(hours=hour, minutes=30) for hour, _ in hours],
    }
    pq.write_table(pa.table(columns), tmp_path / "in" / "hours.parquet")

    def build(job: StatefulJob) -> dict[str, DataStream]:
        source = FileSource(str(tmp_path / "in"), format="parquet", schema=ROW)
        rows = job.source("rows", source, order_by=["at"], event_time="at")
        first = rows.key_by("k").window(Tumbling("1 h"), lateness=lateness).aggregate(uid="hours", n=count())
        return {"quarters": first.key_by("k").window(Tumbling("6 h")).aggregate(uid="quarters", n=sum_("n"))}

    days = TimePartitions("at", start="1970-01-01", end="1970-01-10")
    pipeline = Pipeline(tmp_path, spark, build, partitions=days)
    expected: dict[tuple[str, int], int] = {}
    for hour, k in hours:
        expected[k, hour // 6 * 6] = expected.get((k, hour // 6 * 6), 0) + 1
    shown: dict[tuple[str, int], int] = {}
    for day, ends in enumerate((24, 48, 72)):
        pipeline.run(partition=f"1970-01-0{day + 1}")
        results = pipeline.outputs().get("quarters", [])
        shown = {(k, ms(start) // 3_600_000): n for k, start, _, n in results}
        assert len(shown) == len(results)
        until = ends if lateness == "0 h" else ends - 2
        assert shown == {one: n for one, n in expected.items() if one[1] + 6 <= until}
    assert shown == expected


# -- what is refused ---------------------------------------------------------------------------------------------------


def keyed_of(source: Any = NOWHERE, **time: Any) -> Any:
    return source_of(StatefulJob("refused"), source, **time).key_by("k")


def changing() -> Any:
    feed = FileSource("/nowhere", schema="k string, v bigint, at timestamp, op string")
    kinds = ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"])
    return StatefulJob("refused").source("feed", feed, format=kinds, event_time="at").key_by("k")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: keyed_of(event_time=None, max_out_of_orderness=0).window(Session(5)), "needs event time.*give source"),
        (lambda: keyed_of(late_to=LATE).window(Session(5), lateness=1), "diverts late rows before.*move late_to"),
        (lambda: keyed_of().window("1 h"), "window takes Tumbling"),
        (
            lambda: keyed_of().window(Tumbling(5), emit="once"),
            "emit must be 'final', 'changes' or 'running', not 'once'",
        ),
        (lambda: keyed_of().window(Tumbling(5), emit="changes"), "use emit='final', or give a lateness"),
        (lambda: keyed_of().window(Tumbling(5), lateness=-1), "lateness must be 0 or more"),
        (lambda: keyed_of().window(Tumbling(5), late_to="late"), "late_to must be an OutputTag"),
        (lambda: keyed_of().window(Tumbling(5)).aggregate(), "needs aggregates by the name"),
        (lambda: keyed_of().window(Tumbling(5)).aggregate(n=7), "an aggregate is count"),
        (lambda: keyed_of().window(Tumbling(5)).aggregate(k=count()), "give the aggregate another name"),
        (lambda: keyed_of().window(Tumbling(5)).aggregate(window_end=count()), "give the aggregate another name"),
        (lambda: keyed_of().window(Tumbling(5)).aggregate(s=sum_("w")), "no such field"),
        (lambda: changing().window(Session(5)), "a deleted row may split a session"),
        (
            lambda: source_of(StatefulJob("key"), FileSource("/nowhere", schema="window_start int, at timestamp"))
            .key_by("window_start").window(Cumulating(4, every=2)).aggregate(n=count()),
            "rename it in a transform before key_by",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_window_is_refused_while_the_job_is_built(
    build: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
