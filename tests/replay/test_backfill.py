"""Time partitions on the real engine: order, late rows, and backfills whose results equal an undisturbed run."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSource,
    ForeachBatchSink,
    KeyedProcessFunction,
    RuntimeContext,
    SourceFunction,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.errors import (
    ConfigurationError,
    PartitionOrderError,
    SinkError,
    SourceError,
    StaleParentError,
)
from state_engine.core.time.partitions import TimePartitions
from state_engine.sources.base import FILE_COLUMN, SourceFrame
from state_engine.sources.partition_rows import FileTimes, as_frame, between, file_times, joined
from tests.faults.plane import Fault, InjectedFault, installed
from tests.support.read_rows import table_of

pytestmark = pytest.mark.spark

DAYS = [f"2013-01-0{d}" for d in range(1, 6)]
START_MS = 1_356_998_400_000
DAY_MS = 86_400_000
END_MS = START_MS + 5 * DAY_MS
Row = tuple[str, int, int]
"""Key, value, hours since the first day began."""
ROWS: list[list[Row]] = [
    [("a", 1, 1), ("b", 2, 5), ("a", 3, 30)],  # of two days in one file
    [("b", 4, 26), ("c", 5, 40), ("a", 6, 60)],
    [("a", 7, 73), ("c", 8, 90), ("b", 9, 100), ("d", 10, 119)],
]
LATE: list[Row] = [("b", 100, 6), ("d", 200, 50)]
"""Of the first and of the third day."""


class Sum(KeyedProcessFunction):
    """Sums ``v`` per key; a sum expires two days of event time after its last element."""

    def __init__(self, factor: int = 1, ttl_hours: int = 48) -> None:
        self.factor, self.ttl_hours = factor, ttl_hours

    def open(self, runtime_context: RuntimeContext) -> None:
        total = ValueStateDescriptor("total", int)
        ttl = StateTtlConfig.new_builder(Time.hours(self.ttl_hours)).set_ttl_time_characteristic(
            StateTtlConfig.TtlTimeCharacteristic.EventTime
        )
        total.enable_time_to_live(ttl.build())
        self.total = runtime_context.get_state(total)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value.v * self.factor
        self.total.update(total)
        yield str(value.k), value.v, total


class Site:
    """A directory with an input, a root and a sink."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.feed, self.sink = directory / "feed", directory / "sink"
        self.feed.mkdir(parents=True)

    def put(self, rows: Sequence[Row], name: str) -> Site:
        pq.write_table(table(rows), self.feed / f"{name}.parquet")
        return self

    def filled(self, *more: Sequence[Row]) -> Site:
        for i, rows in enumerate([*ROWS, *more]):
            self.put(rows, f"{i}")
        return self

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def job(self, factor: int = 1, *, source: Any = None, version: str = "", **options: Any) -> StatefulJob:
        partitions = TimePartitions("at", **({"start": DAYS[0], "end": "2013-01-06"} | options))
        job = StatefulJob("days", parallelism=2, partitions=partitions, code_version=version)
        stream = job.source("events", source or FileSource(str(self.feed)), order_by=["at"], event_time="at")
        out = stream.key_by("k").process(
            Sum(factor), uid="sums", output_type="k string, v bigint, total bigint"
        )
        out.sink("out", DeltaSink(str(self.sink)))
        return job

    def run(self, job: StatefulJob | None = None, **options: Any) -> list[str]:
        """The partitions that were run; every one at its own end."""
        return self.engine().run(job or self.job(), **({"clock": END_MS} | options)).partitions

    def outputs(self) -> list[tuple[Any, ...]]:
        rows = DeltaTable(str(self.sink)).to_pyarrow_table().select(["k", "v", "total"]).to_pylist()
        return sorted(tuple(row.values()) for row in rows)

    def state(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.engine().read_state("days", "sums", "total").collect()))

    def states(self) -> dict[str, str]:
        return {p.key: p.state for p in self.engine().partitions(self.job(), clock=END_MS)}

    def same(self, other: Site) -> bool:
        return self.outputs() == other.outputs() and self.state() == other.state()


def table(rows: Sequence[Row]) -> pa.Table:
    at = [datetime.fromtimestamp(START_MS / 1000 + h * 3600, UTC) for _, _, h in rows]
    columns = {"k": [r[0] for r in rows], "v": [r[1] for r in rows]}
    return pa.table({**columns, "at": pa.array(at, pa.timestamp("us", "UTC"))})


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Site:
    """A run that never failed."""
    site = Site(tmp_path_factory.mktemp("right"), spark).filled()
    assert site.run() == DAYS
    return site


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Site:
    """A run that never failed, with the other code."""
    site = Site(tmp_path_factory.mktemp("mended"), spark).filled()
    assert site.run(site.job(10)) == DAYS
    return site


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    return Site(tmp_path, spark).filled()


def test_partitions_run_in_order_and_late_rows_are_counted(site: Site, right: Site) -> None:
    with pytest.raises(PartitionOrderError, match="none was run yet: run 2013-01-01 first"):
        site.run(partition=DAYS[1])
    assert site.run(partition=DAYS[0]) == DAYS[:1]
    assert site.run(partition=DAYS[0]) == []
    assert site.run(clock=START_MS + 3 * DAY_MS - 1) == DAYS[1:2]
    for day, message in ((DAYS[3], "run 2013-01-03 first"), (DAYS[0], "was run already.*backfill")):
        with pytest.raises(PartitionOrderError, match=message):
            site.run(partition=day)
    site.put(LATE, "late")
    report = site.engine().run(site.job(), clock=END_MS)
    assert [(b.partition, b.late_rows) for b in report.batches] == [(DAYS[2], 1), (DAYS[3], 0), (DAYS[4], 0)]
    # that of the third day was in time
    assert [r.rows_in for r in site.engine().checkpoints("days")] == [2, 3, 2, 2, 2]
    partitions = site.engine().partitions(site.job(), clock=END_MS)
    assert [(p.key, p.state, p.rows) for p in partitions] == list(
        zip(DAYS, ["done"] * 5, [2, 3, 2, 2, 2], strict=True)
    )
    assert [p.late_rows for p in partitions] == [0, 0, 1, 0, 0]
    assert site.run() == []


def test_continuous_jobs_have_no_partitions(site: Site) -> None:
    job = StatefulJob("days")
    job.source("events", FileSource(str(site.feed))).sink("out", DeltaSink(str(site.sink)))
    for call in (
        lambda: site.engine().run(job, partition=DAYS[0]),
        lambda: site.engine().backfill(job, *DAYS[:2]),
        lambda: site.engine().partitions(job),
    ):
        with pytest.raises(ConfigurationError, match=r"is continuous.*engine\.replay"):
            call()
    site.run(partition=DAYS[0])
    with pytest.raises(ConfigurationError, match="was run in time partitions up to 2013-01-01"):
        site.engine().run(job)


@pytest.mark.long
@pytest.mark.parametrize("late", ["ignore", "next"])
def test_late_rows_are_left_or_taken(site: Site, late: str) -> None:
    job = site.job(late=late)
    site.run(job, partition=DAYS[0])
    site.run(job, partition=DAYS[1])
    site.put(LATE, "late")
    site.run(job)
    third = site.engine().checkpoints("days")[2]
    assert (third.late_rows, third.rows_in) == (1, 3 if late == "next" else 2)
    assert (("b", 100, 106) in site.outputs()) is (late == "next")


@pytest.mark.long
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 4), (1, 2), (2, 4), (4, 4)])
def test_the_same_code_gives_the_same_from_any_day_on(site: Site, right: Site, first: int, last: int) -> None:
    site.run()
    seen = site.engine().backfill(site.job(), DAYS[first], DAYS[last], dry_run=True)
    assert seen.partitions == DAYS[first:]
    assert len(site.engine().checkpoints("days")) == 5
    report = site.engine().backfill(site.job(), DAYS[first], DAYS[last], clock=None)
    assert [b.partition for b in report.batches] == DAYS[first:]
    assert report.rows_withdrawn == report.rows_added == seen.rows_withdrawn == seen.rows_added
    assert site.same(right)
    assert site.states() == dict.fromkeys(DAYS, "done")
    assert site.run() == []
    assert [r.clock_ms for r in site.engine().checkpoints("days")] == [END_MS] * (11 - first)


@pytest.mark.long
def test_mended_code_and_late_rows(site: Site, mended: Site, tmp_path: Path, spark: SparkSession) -> None:
    site.run(clock=END_MS - DAY_MS)
    # never run: the last day; it runs on the branch too
    report = site.engine().backfill(site.job(), DAYS[0], DAYS[4], code=site.job(10), clock=END_MS)
    assert report.branch == "backfill_1"
    assert site.same(mended)

    site.put(LATE, "late")
    report = site.engine().backfill(site.job(10), DAYS[0], DAYS[0])
    assert site.same(mended)  # as recorded
    report = site.engine().backfill(site.job(10), DAYS[0], DAYS[0], rebatch=True)
    assert [b.partition for b in report.batches] == DAYS
    whole = Site(tmp_path / "whole", spark).filled(LATE)
    whole.run(whole.job(10))
    assert site.same(whole)


@pytest.mark.long
def test_the_rest_stays_until_it_runs_again(site: Site, mended: Site) -> None:
    site.run()
    before = site.outputs()
    report = site.engine().backfill(site.job(10), DAYS[0], DAYS[1], "stop")
    assert report.stale == DAYS[2:]
    assert site.states() == dict(zip(DAYS, ["done"] * 2 + ["stale"] * 3, strict=True))
    assert len(site.outputs()) == len(before)
    mixed = set(site.outputs())
    assert mixed - set(before)
    assert mixed & set(before)
    assert site.run(site.job(10), partition=DAYS[2]) == [DAYS[2]]
    assert len(site.outputs()) == len(before)
    assert site.states()[DAYS[2]] == "done"
    # what is stale goes with a backfill that reaches over it, too
    site.engine().backfill(site.job(10), DAYS[1], DAYS[3], clock=END_MS)
    assert site.states() == dict(zip(DAYS, ["done"] * 4 + ["stale"], strict=True))
    assert site.run(site.job(10)) == DAYS[4:]
    assert site.same(mended)


@pytest.mark.long
def test_outputs_may_be_kept_where_a_sink_cannot_let_go(
    site: Site, mended: Site, spark: SparkSession
) -> None:
    site.run()
    before = site.outputs()
    spark.sql(f"ALTER TABLE delta.`{site.sink}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(SinkError, match=r'outputs="keep" \(--outputs keep\)'):
        site.engine().backfill(site.job(10), DAYS[0], DAYS[0], clock=END_MS)
    assert site.outputs() == before
    seen = site.engine().backfill(site.job(10), DAYS[0], DAYS[0], outputs="keep", clock=END_MS)
    assert seen.batches == []  # all had run before the swap was refused
    assert (seen.rows_withdrawn, seen.rows_added) == ({"out": 0}, {"out": len(before)})
    assert site.outputs() == sorted(before + mended.outputs())
    assert site.state() == mended.state()


def test_each_sink_has_its_policy(site: Site, mended: Site) -> None:
    """One sink keeps its old outputs beside the new ones, the other one lets go of them."""

    def job(factor: int) -> StatefulJob:
        job = site.job(factor)
        sums = job.stream(job.operators["sums"])
        sums.sink("mail", DeltaSink(str(site.directory / "mail")))
        return job

    site.run(job(1))
    before = site.outputs()
    report = site.engine().backfill(job(10), DAYS[0], DAYS[0], outputs={"mail": "keep"}, clock=END_MS)
    assert report.rows_withdrawn == {"out": len(before), "mail": 0}
    assert site.outputs() == mended.outputs()
    mail = DeltaTable(str(site.directory / "mail")).to_pyarrow_table().select(["k", "v", "total"]).to_pylist()
    assert sorted(tuple(row.values()) for row in mail) == sorted(before + mended.outputs())


def test_a_sink_that_kept_its_outputs_gets_them_again_when_the_partition_runs_again(site: Site) -> None:
    """It can let go of none, so a restore that it kept its outputs in must not keep the job from running on."""
    sent = Counter[str]()

    def send(rows: pa.Table, checkpoint_id: int) -> None:
        sent.update(rows["k"].to_pylist())

    job = site.job()
    job.stream(job.operators["sums"]).sink("mail", ForeachBatchSink(send, name="mail_of_days"))
    site.run(job)
    before, first = site.outputs(), sent.copy()
    with pytest.raises(SinkError, match=r"sink 'mail'.*cannot be withdrawn.*outputs=\"keep\""):
        site.engine().restore(job, checkpoint_id=1)
    report = site.engine().restore(job, checkpoint_id=1, outputs={"mail": "keep"})
    assert site.run(job) == DAYS[1:]
    assert site.outputs() == before
    again = sent - first
    assert again.total() == report.rows_withdrawn["out"] == first.total() - 2, "the first day had two rows"


@pytest.mark.parametrize(
    ("mode", "outputs", "message"),
    [("stop", "keep", "outputs of later partitions leave the sinks when these run again"),
     ("branch", "keep", "a branch changes no sink; say it to promote"),
     ("branch", {"out": "keep"}, "a branch changes no sink; say it to promote"),
     ("roll_forward", "leave", "outputs must be 'withdraw' or 'keep'.*not 'leave'"),
     ("roll_forward", {"out": "leave"}, "outputs must be 'withdraw' or 'keep'.*not 'leave'")],
)  # fmt: skip
def test_outputs_that_cannot_be_kept(tmp_path: Path, mode: str, outputs: Any, message: str) -> None:
    job = Site(tmp_path, cast(Any, None)).job()
    with pytest.raises(ConfigurationError, match=message):
        StateEngine(tmp_path / "root").backfill(job, DAYS[0], DAYS[0], mode, outputs=outputs)
    assert not (tmp_path / "root").exists()


@pytest.mark.long
def test_a_branch_is_compared_and_promoted(site: Site, mended: Site, right: Site) -> None:
    site.run()
    report = site.engine().backfill(site.job(), DAYS[0], DAYS[2], "branch", code=site.job(10))
    assert site.same(right)
    assert not site.engine().compare("days", report.branch).is_equal
    site.engine().promote("days", report.branch)
    assert site.same(mended)
    assert site.run(site.job(10)) == []


@pytest.mark.long
def test_a_promoted_branch_takes_what_a_stop_left_behind(site: Site, mended: Site, right: Site) -> None:
    site.run()
    site.engine().backfill(site.job(10), DAYS[0], DAYS[1], "stop")
    report = site.engine().backfill(site.job(10), DAYS[0], DAYS[3], "branch", clock=END_MS)
    site.engine().promote("days", report.branch)
    assert site.states() == dict(zip(DAYS, ["done"] * 4 + ["stale"], strict=True))
    assert len(site.outputs()) == len(right.outputs())
    # and back to where all began, whose outputs are in the sinks as they were
    site.engine().restore(site.job(10), checkpoint_id=5)
    assert site.same(right)
    site.engine().backfill(site.job(10), DAYS[0], DAYS[4], clock=END_MS)
    assert site.same(mended)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["roll_forward", "stop"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("before commit", nth=1),
        Fault("after commit", nth=1),
        Fault("after commit_files", nth=2),
        Fault("before row committed"),
        Fault("after row appended", nth=1),
        Fault("after row committed"),
    ],
    ids=str,
)
def test_a_killed_backfill_goes_on(site: Site, mended: Site, fault: Fault, mode: str) -> None:
    def backfill() -> Any:
        return site.engine().backfill(site.job(10, version="2"), DAYS[0], DAYS[1], mode)

    site.run()
    with installed([fault]), pytest.raises(InjectedFault):
        backfill()
    swapped = sum(r.kind.moves_head for r in site.engine().checkpoints("days"))
    site.engine().publish_pending(site.job(10))
    if not swapped:
        ran = len(site.engine().checkpoints("days")) - 5
        report = backfill()
        assert report.branch == "backfill_1"
        assert [b.partition for b in report.batches] == report.partitions[ran:]
    site.run(site.job(10, version="2"))
    assert site.same(mended)


@pytest.mark.long
def test_two_runners_of_one_partition(site: Site, right: Site) -> None:
    site.run(partition=DAYS[0])
    done, errors = list[str](), list[Exception]()
    together = threading.Barrier(2)

    def run() -> None:
        engine, job = site.engine(), site.job()
        together.wait()
        try:
            done.extend(engine.run(job, partition=DAYS[1], clock=END_MS).partitions)
        except (StaleParentError, PartitionOrderError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [DAYS[1]]
    assert len(errors) <= 1  # one that comes when all is over has nothing to do
    assert [r.partition for r in site.engine().checkpoints("days")] == DAYS[:2]
    site.run()
    assert site.same(right)


@pytest.mark.long
def test_a_runner_that_is_overtaken_loses_nothing(
    site: Site, right: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_engine.microbatch.coordinator import CheckpointCoordinator

    stage, calls = CheckpointCoordinator.stage, []

    def late(self: Any, attempt: Any) -> Any:
        calls.append(attempt)
        if len(calls) == 1:
            site.run(partition=DAYS[0])
        return stage(self, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "stage", late)
        with pytest.raises(StaleParentError):
            site.run(partition=DAYS[0])
    assert site.run() == DAYS[1:]
    assert site.same(right)


@pytest.mark.long
def test_delta_tables_empty_days_and_hours(
    site: Site, right: Site, tmp_path: Path, spark: SparkSession
) -> None:
    feed = str(tmp_path / "table")
    for rows in ROWS:
        write_deltalake(feed, table(rows), mode="append")
    other = Site(tmp_path / "other", spark)
    job = other.job(source=DeltaSource(feed, max_rows_per_batch=2))
    assert other.run(job) == DAYS
    assert other.same(right)
    assert other.engine().backfill(job, DAYS[2], DAYS[3]).partitions == DAYS[2:]
    assert other.same(right)

    hours = Site(tmp_path / "hours", spark).filled()
    job = hours.job(every="hour", end="2013-01-01-07:00")
    assert hours.run(job) == [f"2013-01-01-0{h}:00" for h in range(7)]
    assert hours.outputs() == [("a", 1, 1), ("b", 2, 2)]
    history = hours.engine().checkpoints("days")
    assert [r.rows_in for r in history] == [0, 1, 0, 0, 0, 1, 0]


@pytest.mark.long
def test_what_a_backfill_refuses(site: Site) -> None:
    engine = site.engine()
    with pytest.raises(PartitionOrderError, match="the last one that was run is none: begin with 2013-01-01"):
        engine.backfill(site.job(), DAYS[1], DAYS[2])
    # for the first time, and gone on with
    with installed([Fault("before commit", nth=2)]), pytest.raises(InjectedFault):
        engine.backfill(site.job(), DAYS[0], DAYS[2])
    report = site.engine().backfill(site.job(), DAYS[0], DAYS[2])
    assert (report.branch, [b.partition for b in report.batches]) == ("main", DAYS[1:3])
    with pytest.raises(ConfigurationError, match="sliced differently"):
        site.engine().run(site.job(timezone="Asia/Tokyo"))
    empty = table([("a", 1, 100)]).set_column(2, "at", pa.array([None], pa.timestamp("us", "UTC")))
    pq.write_table(empty, site.feed / "null.parquet")
    with pytest.raises(SourceError, match=r"1 row has no 'at' in .*null\.parquet"):
        site.run()
    assert site.run(site.job(nulls="ignore")) == DAYS[3:]


@pytest.mark.long
def test_from_the_command_line(site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from state_engine.cli.main import app

    (site.directory / "days_job.py").write_text(
        f"""
from types import SimpleNamespace
from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.core.time.partitions import TimePartitions
def jobs(settings):
    job = StatefulJob("days", partitions=TimePartitions("at", start="2013-01-01", end="2013-01-04"))
    rows = job.source("events", FileSource("{site.feed}"), order_by=["at"])
    sums = rows.key_by("k").map_with_state(
        lambda row, total: ((row.k, (total or 0) + row.v), (total or 0) + row.v), int, "k string, v bigint"
    )
    sums.uid("totals").sink("out", DeltaSink("{site.sink}"))
    return [SimpleNamespace(job=job, prepare=lambda: None)]
"""
    )
    monkeypatch.chdir(site.directory)
    monkeypatch.setenv("STATELAKE__ROOT", str(site.directory / "root"))
    monkeypatch.setenv("STATELAKE__JOBS__MODULES", "days_job")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def output_of(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        return " ".join(done.output.split())

    assert "2013-01-01, checkpoint 1: 2 rows in" in output_of("run", "days", "--partition", DAYS[0])
    assert "7 rows in" not in output_of("run", "days")
    seen = output_of("backfill", "days", "--from", DAYS[1], "--to", DAYS[1], "--dry-run")
    assert "would run on branch backfill_1 from checkpoint 1 2013-01-02: 3 rows were read before" in seen
    done = output_of("backfill", "days", "--from", DAYS[1], "--to", DAYS[1], "--mode", "stop")
    assert "2013-01-02, checkpoint 4: 3 rows in" in done
    assert "sink out: 3 rows withdrawn, 3 published stale until they run again: 2013-01-03" in done
    assert "stale" in output_of("partitions", "days")


@pytest.mark.long
def test_rows_that_cannot_be_read_are_set_aside_once(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)

    def job() -> StatefulJob:
        partitions = TimePartitions("at", start=DAYS[0], end=DAYS[2])
        job = StatefulJob("days", on_error="dead_letter", partitions=partitions)
        source = FileSource(str(site.feed), schema="k string, v bigint, at timestamp", format="csv")
        keyed = job.source("events", source, event_time="at").key_by("k")
        out = keyed.process(Sum(), uid="sums", output_type="k string, v bigint, total bigint")
        out.sink("out", DeltaSink(str(site.sink)))
        return job

    def refused() -> list[str]:
        letters = DeltaTable(str(site.directory / "root" / "days" / "dead_letters")).to_pyarrow_table()
        return sorted(row["position"].split("/")[-1] for row in letters.to_pylist())

    (site.feed / "0.csv").write_text("a,1,2013-01-01T01:00:00Z\nb,x,2013-01-01T02:00:00Z\n")
    site.run(job(), partition=DAYS[0])
    (site.feed / "1.csv").write_text("a,2,2013-01-02T01:00:00Z\nb,y,2013-01-02T02:00:00Z\n")
    report = site.engine().run(job(), clock=END_MS)
    assert [b.rows_refused for b in report.batches] == [1]
    was, outputs = refused(), site.outputs()
    assert len(was) == 2
    assert outputs == [("a", 1, 1), ("a", 2, 3)]
    # the second day is stale, and the micro-batch that replaces it takes its letters out and puts new ones in
    assert site.engine().backfill(job(), DAYS[0], DAYS[0], "stop").stale == DAYS[1:2]
    assert (refused(), site.outputs()) == (was, outputs)
    site.run(job())
    assert (refused(), site.outputs()) == (was, outputs)


def test_sources_that_cannot_be_cut() -> None:
    class Counter(SourceFunction):
        def run(self, ctx: Any) -> None:
            ctx.collect(1)

    job = StatefulJob("days", partitions=TimePartitions("at", start=DAYS[0]))
    with pytest.raises(ConfigurationError, match="cannot be read by time partitions"):
        job.source("numbers", Counter(), output_type="at timestamp", max_rows_per_batch=1)
    with pytest.raises(ConfigurationError, match="on_change='restart' delivers rows of closed partitions"):
        job.source("table", DeltaSource("/none", on_change="restart"))
    with pytest.raises(ConfigurationError, match="must be TimePartitions"):
        StatefulJob("days", partitions="daily")  # type: ignore[arg-type]


@pytest.mark.long
def test_times_of_all_kinds_in_tables_and_frames(spark: SparkSession) -> None:
    at = [datetime(2013, 1, 1, 23, 59, 59, 999999), datetime(2013, 1, 2), None, datetime(1969, 12, 31, 23)]
    late = (START_MS, START_MS + DAY_MS)
    for kind, least_ms in (
        (pa.timestamp("us", "UTC"), -3_600_000),
        (pa.timestamp("us"), -3_600_000),
        (pa.date32(), -DAY_MS),
    ):
        times = pa.array([t and (t.date() if kind == pa.date32() else t) for t in at], kind)
        places = pa.array([0, 0, 1, 2], pa.int32())
        rows = pa.table({"At": times, FILE_COLUMN: places, "n": pa.array(range(4))})
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        try:
            for one in (rows, as_frame(spark, rows)):
                times_of_files, count, without = file_times(
                    spark, SourceFrame(one), "at", job="j", source="s", files=4, late=late
                )
                assert (count, without) == (1, 1)
                assert times_of_files[2] == FileTimes(least_ms, least_ms)
                assert (times_of_files[0].max_ms, times_of_files[1], times_of_files[3]) == (
                    late[1],
                    FileTimes(),
                    FileTimes(),
                )
                kept = between(spark, one, "at", late[1], late[1] + DAY_MS)
                assert table_of(spark, kept)["n"].to_pylist() == [1]
            both = table_of(spark, joined(spark, [(rows, 0), (as_frame(spark, rows), 3)]))
            assert sorted(both[FILE_COLUMN].to_pylist()) == [0, 0, 1, 2, 3, 3, 4, 5]
            assert len(both["At"].unique()) == 4
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
