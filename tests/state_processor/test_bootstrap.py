"""A job that begins with state from DataFrames: what a run would have left, and sources that stand after it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, InvalidKeyError, StatelakeError, ValueTypeError
from tests.support.small_job import CLOCK_MS, Totals, build, folded, results, write_feed
from tests.support.tiny import Site, Sum


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
    return spark.createDataFrame(rows, schema)


def test_a_job_goes_on_from_given_state(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b", "d"], "v": [1, 2, 3]})
    given = frame(spark, [("a", 10), ("c", 30)], "k string, value int")
    engine, job = site.engine(), site.job()

    planned = engine.state_processor(job).bootstrap({"sums": {"total": given}}, dry_run=True)
    assert planned.entries == {"sums": {"total": 2}}
    assert (planned.committed_id, planned.from_the_beginning) == (None, ["events"])
    assert not (tmp_path / "root" / "tiny").exists()

    done = engine.state_processor(job).bootstrap({"sums": {"total": given}}, clock=5)
    assert (done.entries, done.committed_id) == ({"sums": {"total": 2}}, 1)
    assert site.state() == {"a": 10, "c": 30}
    (row,) = engine.checkpoints("tiny")
    assert (row.kind, row.clock_ms, row.parent_id) == ("bootstrap", 5, None)
    engine.run(job, clock=6)
    assert site.state() == {"a": 11, "b": 2, "c": 30, "d": 3}
    assert site.outputs() == [("a", 1, 11), ("b", 2, 2), ("d", 3, 3)]
    with pytest.raises(ConfigurationError, match="already has checkpoints in"):
        engine.state_processor(job).bootstrap({"sums": {"total": given}})


REFUSED: list[tuple[list[tuple[Any, ...]], str, type[StatelakeError], str]] = [
    ([(None, 1)], "k string, value int", InvalidKeyError, "the key 'k' is null"),
    ([("a", None)], "k string, value int", ValueTypeError, "'value' is null, for the key {'k': 'a'}"),
    ([("a", 1, 2)], "k string, value int, updated_at bigint", ConfigurationError, "has no time to live"),
]


@pytest.mark.parametrize(
    ("rows", "schema", "error", "message"), REFUSED, ids=[f"{i}_{r[1]}" for i, r in enumerate(REFUSED)]
)
def test_what_the_engine_would_not_store_is_refused(
    tmp_path: Path,
    spark: SparkSession,
    rows: list[tuple[Any, ...]],
    schema: str,
    error: type[StatelakeError],
    message: str,
) -> None:
    site = Site(tmp_path, spark)
    with pytest.raises(error, match=message):
        site.engine().state_processor(site.job()).bootstrap(
            {"sums": {"total": frame(spark, rows, schema)}}, dry_run=True
        )


class Narrow(Sum):
    def __init__(self) -> None:
        super().__init__(kind="smallint")


@pytest.mark.long
def test_names_that_are_not_there_are_reported_with_those_that_are(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark)
    engine, job, good = site.engine(), site.job(), frame(spark, [("a", 1)], "k string, value int")
    calls: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: engine.state_processor(job).bootstrap({"sums": {"other": good}}),
            r"declares \['total'\] when it is opened",
        ),
        (lambda: engine.state_processor(job).bootstrap({}), "none at all"),
        (
            lambda: engine.state_processor(job).bootstrap(
                {"sums": {ValueStateDescriptor("total", str): good}}
            ),
            "declared as value of bigint, and given as value of string",
        ),
        (
            lambda: engine.state_processor(site.job(Narrow())).bootstrap(
                {"sums": {"total": frame(spark, [("a", 2**15)], "k string, value int")}},
                dry_run=True,
            ),
            "32768 not in range",
        ),
    ]
    for call, message in calls:
        with pytest.raises(ConfigurationError, match=message):
            call()
    assert not engine.checkpoints("tiny")


@pytest.mark.long
def test_state_that_is_read_from_one_job_gives_another_the_same_state_and_results(
    tmp_path: Path, spark: SparkSession
) -> None:
    """One job reads half of the input, a second one starts with its state and reads the rest: equal to one job."""
    feed, whole = write_feed(tmp_path / "feed"), StateEngine(tmp_path / "whole", spark)
    whole.run(build(feed, tmp_path / "all"), clock=CLOCK_MS)
    table = pq.read_table(feed / "0.parquet")
    half = tmp_path / "half"
    half.mkdir()
    pq.write_table(table.slice(0, 120), half / "0.parquet")
    old = StateEngine(tmp_path / "old", spark)
    old.run(build(half, tmp_path / "old_sinks"), clock=CLOCK_MS)

    new, job = StateEngine(tmp_path / "new", spark), build(half, tmp_path / "new_sinks", parallelism=3)
    states = {
        uid: {name: old.read_state("small", uid, name) for name in names}
        for uid, names in {"totals": ("total", "parities", "recent"), "ranks": ("seen",)}.items()
    }
    report = new.state_processor(job).bootstrap(states, positions={"events": "all"}, clock=CLOCK_MS)
    assert report.from_the_beginning == []
    assert folded_bases(new) == folded(old, "totals") | folded(old, "ranks")
    assert new.run(job, clock=CLOCK_MS).batches == []
    pq.write_table(table.slice(120), half / "1.parquet")
    new.run(job, clock=CLOCK_MS)
    for uid, names in {"totals": ("total", "recent"), "ranks": ("seen",)}.items():
        for name in names:
            assert content(new, uid, name) == content(whole, uid, name)
    ends = [results(e, tmp_path / s) for e, s in ((old, "old_sinks"), (whole, "all"))]
    outputs = results_of_sink(tmp_path / "new_sinks")
    assert sorted(ends[0]["totals"] + outputs) == ends[1]["totals"]


def content(engine: StateEngine, uid: str, name: str) -> dict[str, Any]:
    return {r[0]: r["value"] for r in engine.read_state("small", uid, name).collect()}


def results_of_sink(sinks: Path) -> list[tuple[Any, ...]]:
    from deltalake import DeltaTable

    return [tuple(r.values()) for r in DeltaTable(str(sinks / "totals")).to_pyarrow_table().to_pylist()]


def folded_bases(engine: StateEngine) -> dict[tuple[Any, ...], Any]:
    entries: dict[tuple[Any, ...], Any] = {}
    for uid, name in (("totals", "total"), ("totals", "recent"), ("ranks", "seen")):
        for row in engine.read_state("small", uid, name).collect():
            value = row["value"].asDict() if name == "seen" else row["value"]
            entries[name, row[0]] = value
    for row in engine.read_state("small", "totals", "parities").collect():
        entries.setdefault(("parities", row[0]), {})[row["map_key"]] = row["value"]
    return entries


class Everything(KeyedProcessFunction):
    """States of all shapes under a key of several columns; emits what it reads."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(Time.milliseconds(100)).build()
        self.pair = runtime_context.get_state(ValueStateDescriptor("pair", tuple[int, str]))
        recent, counts = ListStateDescriptor("recent", float), MapStateDescriptor("counts", date, Decimal)
        counts = MapStateDescriptor("counts", date, "decimal(10,2)")
        recent.enable_time_to_live(ttl)
        counts.enable_time_to_live(ttl)
        self.recent, self.counts = (
            runtime_context.get_list_state(recent),
            runtime_context.get_map_state(counts),
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield f"{ctx.get_current_key()} {self.pair.value()} {list(self.recent.get())} {dict(self.counts.items())}"


@pytest.mark.long
def test_every_shape_with_times_of_its_own(tmp_path: Path, spark: SparkSession) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    days = [date(2013, 1, 1), date(2013, 1, 2)]
    pq.write_table(pa.table({"day": days, "price": pa.array([Decimal("1.50")] * 2)}), feed / "0.parquet")
    job = StatefulJob("all", parallelism=2)
    job.source("events", FileSource(str(feed))).key_by("day", "price").process(
        Everything(), uid="all", output_type="string"
    ).sink("out", DeltaSink(str(tmp_path / "sink")))
    key = "day date, price decimal(5,2)"
    at = (days[0], Decimal("1.50"))
    engine = StateEngine(tmp_path / "root", spark)
    report = engine.state_processor(job).bootstrap(
        {
            "all": {
                "pair": frame(spark, [(*at, "x", 7)], f"{key}, f1 string, f0 tinyint"),
                "recent": frame(
                    spark,
                    [(*at, 3.0, 3, 1000), (*at, 1.0, 1, 1000), (*at, 2.0, 2, 850)],
                    f"{key}, value float, position int, updated_at bigint",
                ),
                "counts": frame(
                    spark,
                    [
                        (*at, days[1], Decimal("2.25"), 990),
                        (*at, days[0], None, 991),
                        (*at, date(2000, 1, 1), Decimal("1.00"), 10),
                    ],
                    f"{key}, map_key date, value decimal(7,2), updated_at long",
                ),
            }
        },
        clock=1000,
    )
    assert report.entries == {"all": {"pair": 1, "recent": 1, "counts": 3}}
    engine.run(job, clock=1000)
    rows = [r[0] for r in spark.read.format("delta").load(str(tmp_path / "sink")).collect()]
    assert sorted(rows) == [
        f"({days[0]!r}, Decimal('1.50')) (7, 'x') [1.0, 3.0] {{{days[1]!r}: Decimal('2.25'), {days[0]!r}: None}}",
        f"({days[1]!r}, Decimal('1.50')) None [] {{}}",
    ]


@pytest.mark.long
def test_sources_start_after_what_the_state_holds(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    for n in range(3):
        site.put({"k": ["a"], "v": [10**n]}, str(n))
    table = str(tmp_path / "table")
    for n in range(3):
        frame(spark, [("a", 10**n)], "k string, v bigint").write.format("delta").mode("append").save(table)

    def job(name: str, source: Any) -> StatefulJob:
        case = StatefulJob(name)
        stream = case.from_collection([("a", 1), ("a", 10), ("a", 100)], "k string, v bigint", name="events") if (
            source is None
        ) else case.source("events", source)  # fmt: skip
        stream.key_by("k").process(Sum(), uid="sums", output_type="k string, v bigint, total bigint").sink(
            "out", DeltaSink(str(tmp_path / name))
        )
        return case

    given, files = frame(spark, [("a", 0)], "k string, value bigint"), FileSource(str(site.feed))
    cases: list[tuple[str, Any, Any, int]] = [
        ("f1", files, "all", 0),
        ("f2", files, ["1.parquet", str(site.feed / "2*")], 1),
        ("f3", files, "[01].parquet", 100),
        ("d1", DeltaSource(table), "all", 0),
        ("d2", DeltaSource(table), 1, 100),
        ("d3", DeltaSource(table), 0, 110),
        ("c1", None, 2, 100),
        ("c2", None, "all", 0),
    ]
    engine = site.engine()
    for name, source, position, total in cases:
        bootstrapped = job(name, source)
        report = engine.state_processor(bootstrapped).bootstrap(
            {"sums": {"total": given}}, positions={"events": position}
        )
        assert list(report.positions) == ["events"]
        assert not report.from_the_beginning
        engine.run(bootstrapped)
        assert {r["k"]: r["value"] for r in engine.read_state(name, "sums", "total").collect()} == {
            "a": total
        }
        replayed = engine.replay(bootstrapped, from_checkpoint=1)
        assert engine.compare(bootstrapped, replayed.branch).is_equal if replayed.batches else not total
    for source, position, message in (
        (files, 3, "say 'all'"),
        (DeltaSource(table), 3, "0 to 2, or 'all'; not 3"),
        (None, 4, "how many of its 3 elements"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            engine.state_processor(job("bad", source)).bootstrap(
                {"sums": {"total": given}}, positions={"events": position}
            )


@pytest.mark.long
def test_a_function_that_cannot_be_opened_here_is_reported_by_descriptors(
    tmp_path: Path, spark: SparkSession
) -> None:
    class OnlyInTasks(Totals):
        def open(self, runtime_context: RuntimeContext) -> None:
            raise RuntimeError("no database here")

    site, given = Site(tmp_path, spark), frame(spark, [("a", 1)], "k string, value int")
    job = site.job(OnlyInTasks())
    with pytest.raises(ConfigurationError, match=r"cannot be opened here .*no database here.*give the"):
        site.engine().state_processor(job).bootstrap({"sums": {"total": given}})
    site.engine().state_processor(job).bootstrap({"sums": {ValueStateDescriptor("total", int): given}})
    assert site.state() == {"a": 1}
