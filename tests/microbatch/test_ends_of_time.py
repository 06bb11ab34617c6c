"""Time ends by idleness and by the clock: quiet streams, silent sources, and backlogs after outages. In memory.

That histories in general are equal to a plain loop and to their replays is for ``test_time_histories``; here are those
that somebody would show a colleague. Ends of time partitions are for ``test_ends_of_partitions``.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSource,
    FileSink,
    FileSource,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    TimePartitions,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from state_engine.cli.running import run_lines
from state_engine.cli.status import notes
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.dagster.concepts import checks
from state_engine.microbatch.quiet_time import due_since, outages
from state_engine.microbatch.reports import RunReport
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from state_engine.testing import CollectSink, MemoryRun, run_in_memory
from tests.microbatch.time_model import Visible

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_MS = 60_000
GAP = 30
ROW = "k string, at timestamp"
ENDED = "k string, ended bigint"
NOWHERE = FileSource("/nowhere", schema=ROW)


def minutes(*rows: tuple[str, int]) -> list[tuple[str, datetime]]:
    return [(k, EPOCH + timedelta(minutes=at)) for k, at in rows]


class Session(KeyedProcessFunction):
    """A session of a key ends half an hour after its last row; puts out when, in minutes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.ends = runtime_context.get_map_state(MapStateDescriptor("ends", int, bool))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        for end in list(self.ends.keys()):
            ctx.timer_service().delete_event_time_timer(end)
        self.ends.clear()
        end = (ctx.timestamp() or 0) + GAP * MINUTE_MS
        self.ends.put(end, True)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        self.ends.clear()
        yield ctx.get_current_key(), timestamp // MINUTE_MS


def sessions(job: StatefulJob, **time: Any) -> None:
    rows = job.source("rows", NOWHERE, order_by=["at"], event_time="at", **time)
    ended = rows.key_by("k").process(Session(), uid="sessions", output_type=ENDED)
    ended.sink("ended", CollectSink())


def watermark(run: MemoryRun) -> int | None:
    return run.checkpoints()[-1].sources[0].watermark_ms


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_draining_does_not_raise_the_recorded_watermark() -> None:
    job = StatefulJob("drained")
    sessions(job, watermark="clock", clock_delay="10 min")
    with run_in_memory(job) as run:
        run.process({"rows": minutes(("a", 0))}, clock=MINUTE_MS)
        assert run.process(drain=True, clock=2 * MINUTE_MS)["ended"] == [("a", 30)]
        assert run.checkpoints()[-1].drained
        assert watermark(run) == -1  # that of the row, and not the largest long
        run.process({"rows": minutes(("a", 3))}, clock=3 * MINUTE_MS)
        assert run.process(clock=50 * MINUTE_MS)["ended"] == [("a", 33)]


# -- idle sources ------------------------------------------------------------------------------------------------------


def test_the_largest_long_is_no_watermark_of_an_idle_source() -> None:
    """A row that an operator puts out by a timer of processing time, while its source is idle, moves nothing."""
    job = StatefulJob("behind")
    left = job.source("left", NOWHERE, order_by=["at"], event_time="at", idle_after="5 min")
    ticks = left.key_by("k").process(Ticks(), uid="ticks", output_type=ENDED)
    right = job.source("right", NOWHERE, order_by=["at"], event_time="at")
    keyed = right.map(lambda r: (r.k, 0), output_type=ENDED)
    seen = ticks.union(keyed).key_by("k").process(Seen(), uid="seen", output_type=int)
    seen.sink("seen", CollectSink())
    with run_in_memory(job) as run:
        run.process({"left": minutes(("a", 0)), "right": minutes(("b", 0))}, clock=0)
        out = run.process({"right": minutes(("b", 8))}, clock=9 * MINUTE_MS)["seen"]
        assert MAX_TIMESTAMP not in out
        assert run.checkpoints()[-1].operator_watermarks_ms["seen"] == 8 * MINUTE_MS - 1


class Ticks(KeyedProcessFunction):
    """A timer of processing time five minutes after a row."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(ctx.current_processing_time() + 5 * MINUTE_MS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp


class Seen(KeyedProcessFunction):
    """The watermark that each element sees."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[int]:
        yield ctx.timer_service().current_watermark()


LATE = OutputTag("late", ROW)
PAY_WITHIN, STALE_AFTER = 30, 20


def covered(every: int) -> dict[str, str]:
    """What covers an outage for a run every so many minutes: a row takes as long to be read."""
    return {
        "watermark": "clock",
        "clock_delay": f"{STALE_AFTER + every} min",
        "stale_after": f"{STALE_AFTER} min",
    }


COVERED = covered(5)


class Paid(KeyedCoProcessFunction):
    """Says of each order whether a payment came within half an hour."""

    def open(self, runtime_context: Any) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order", int))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.order.update(ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + PAY_WITHIN * MINUTE_MS)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        if self.order.value() is None:
            yield value.k, "no order"
        else:
            yield value.k, "paid"
            ctx.timer_service().delete_event_time_timer(self.order.value() + PAY_WITHIN * MINUTE_MS)
            self.order.clear()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        self.order.clear()
        yield ctx.get_current_key(), "unpaid"


class Echo(KeyedProcessFunction):
    """Gives the key of each row, and never one that is late."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        assert not ctx.is_late()
        yield (value.k,)


@dataclass
class Shop:
    """Orders and payments, and how many of each are there to be read."""

    orders: list[tuple[str, int]]
    payments: list[tuple[str, int]]
    there: dict[str, list[int]] = field(default_factory=lambda: {"orders": [0], "payments": [0]})

    def job(self, *, orders: dict[str, Any], payments: dict[str, Any]) -> StatefulJob:
        job, streams = StatefulJob("shop"), []
        for name, time in (("orders", orders), ("payments", payments)):
            rows = [(k, EPOCH + timedelta(minutes=at)) for k, at in getattr(self, name)]
            stream = job.from_collection(
                rows, ROW, name=name, order_by=["at"], event_time="at", late_to=LATE, **time
            )
            Visible.make(job.sources[name], self.there[name])
            streams.append(stream.key_by("k"))
        paid = streams[0].connect(streams[1]).process(Paid(), uid="paid", output_type="k string, what string")
        paid.sink("paid", CollectSink())
        paid.get_side_output(LATE).sink("late", CollectSink())
        return job

    def run(self, run: MemoryRun, minute: int, *, payments_until: int | None = None) -> list[str]:
        """Run by the clock of a minute, with the rows that came by then; what time waits for."""
        self.there["orders"][0] = sum(at <= minute for _, at in self.orders)
        until = minute if payments_until is None else min(minute, payments_until)
        self.there["payments"][0] = sum(at <= until for _, at in self.payments)
        return run.run(clock=minute * MINUTE_MS).outages


def shop_of(rng: random.Random, *, until: int) -> Shop:
    """An order every few minutes, most of them paid within half an hour; the last payment comes at the end."""
    orders = [(f"o{at}", at) for at in range(0, until - PAY_WITHIN, rng.randrange(2, 5))]
    paid = [(k, at + rng.randrange(1, PAY_WITHIN)) for k, at in orders if rng.random() < 0.8]
    ends = [("end", until)]
    return Shop(orders + ends, sorted(paid, key=lambda row: row[1]) + ends)


def as_if_nothing_had_been(shop: Shop, time: dict[str, Any]) -> list[Any]:
    """Each row on its own, in order."""
    at_once = Shop(shop.orders, shop.payments)
    with run_in_memory(at_once.job(orders={}, payments={})) as run:
        at_once.run(run, 10**6)
        run.run(drain=True)
        return sorted(run.sink("paid"))


@pytest.mark.more
@settings(max_examples=6, deadline=None)
@example(seed=20, begins=38, lasts=31, every=17, pieces=1, idle=False, replays=False)
@given(
    seed=st.integers(0, 2**32), begins=st.integers(20, 100), lasts=st.integers(10, 120), every=st.integers(4, 70),
    pieces=st.integers(1, 4), idle=st.booleans(), replays=st.booleans(),
)  # fmt: skip
def test_an_outage_and_its_backlog_give_the_rows_of_a_run_without_outage(
    seed: int, begins: int, lasts: int, every: int, pieces: int, idle: bool, replays: bool
) -> None:
    """Whenever it runs, however long the outage is, and in how many pieces the backlog comes."""
    rng = random.Random(seed)
    shop = shop_of(rng, until=begins + lasts + 60)
    orders = covered(every)
    payments = orders | ({"idle_after": f"{STALE_AFTER + every} min"} if idle else {})
    steps = sorted(rng.sample(range(begins, begins + lasts), min(pieces, lasts)))
    with run_in_memory(shop.job(orders=orders, payments=payments)) as run:
        for minute in range(0, begins + lasts + 200, every):
            down = begins <= minute < begins + lasts
            if 0 <= minute - begins - lasts < every:  # the backlog, one piece after the other
                for until in steps:
                    shop.run(run, minute, payments_until=until)
            shop.run(run, minute, payments_until=begins if down else None)
        shop.run(run, 10**6)
        run.run(drain=True)
        assert run.sink("late") == []
        assert sorted(run.sink("paid")) == as_if_nothing_had_been(shop, payments)
        if replays:
            times = [[(s.floor_ms, s.idle, s.watermark_ms) for s in row.sources] for row in run.checkpoints()]
            outputs = run.sink("paid")
            run.replay()
            again = [[(s.floor_ms, s.idle, s.watermark_ms) for s in row.sources] for row in run.checkpoints()]
            assert run.sink("paid") == outputs
            assert again[len(times) : 2 * len(times)] == times


ORDERS = [(f"o{at}", at) for at in range(0, 100, 5)] + [("end", 240)]
PAYMENTS = [(k, at + 10) for k, at in ORDERS[:-1]] + [("end", 240)]


def test_without_it_each_order_of_the_outage_is_unpaid_and_the_backlog_is_late() -> None:
    shop, clock = Shop(ORDERS, PAYMENTS), {"watermark": "clock", "clock_delay": "5 min"}
    with run_in_memory(shop.job(orders=clock, payments=clock)) as run:
        for minute in range(0, 300, 5):
            assert shop.run(run, minute, payments_until=30 if minute < 180 else None) == []
        assert len([what for _, what in run.sink("paid") if what == "unpaid"]) > 10
        assert len(run.sink("late")) > 10


@pytest.mark.parametrize(
    "time", [COVERED, {"idle_after": "25 min", "stale_after": "20 min"}], ids=["clock", "idle"]
)
def test_it_says_for_what_time_waits_and_since_when(time: dict[str, Any]) -> None:
    shop = Shop(ORDERS, PAYMENTS)
    with run_in_memory(shop.job(orders=COVERED, payments=time)) as run:
        for minute in range(0, 50, 5):
            assert shop.run(run, minute, payments_until=30) == []
        (outage,) = shop.run(run, 50, payments_until=30)
        assert (
            outage
            == "source 'payments' brought its last rows at 1970-01-01 00:30:00 UTC: event time waits for it"
        )
        watermark = run.checkpoints()[-1].source("payments").watermark_ms  # type: ignore[union-attr]
        for minute in range(55, 115, 5):
            assert shop.run(run, minute, payments_until=30) == [outage]
        assert run.checkpoints()[-1].source("payments").watermark_ms == watermark  # type: ignore[union-attr]
        assert not run.checkpoints()[-1].source("payments").idle  # type: ignore[union-attr]
        shop.run(run, 240)
        assert shop.run(run, 245) == []
        assert run.sink("late") == []
        assert {what for _, what in run.sink("paid")} == {"paid"}


def test_a_backlog_in_pieces_is_waited_for_until_it_has_caught_up() -> None:
    """After its first piece the source is not silent, and its rows are far behind the clock."""
    orders = [(f"o{at}", at) for at in range(0, 200, 5)]
    shop = Shop(orders, [(k, at + 10) for k, at in orders[:-2]])
    with run_in_memory(shop.job(orders=COVERED, payments=COVERED)) as run:
        for minute in range(0, 180, 5):
            shop.run(run, minute, payments_until=30)
        for until in (60, 61, 100, 150):
            (outage,) = shop.run(run, 180, payments_until=until)
            assert outage.startswith("source 'payments' ")
        assert shop.run(run, 185) == []
        assert run.sink("late") == []
        assert {what for _, what in run.sink("paid")} == {"paid"}


def test_a_stream_that_is_quiet_for_less_is_quiet() -> None:
    """The end of the last order is due by the clock, though no payment came."""
    shop = Shop([("a", 0)], [("b", 0)])
    time = {"watermark": "clock", "clock_delay": "5 min", "stale_after": "2 h"}
    with pytest.warns(
        UserWarning, match="source '(orders|payments)': clock_delay is 300 s, and stale_after .* 7200 s"
    ):
        job = shop.job(orders=time, payments=time)
    with run_in_memory(job) as run:
        shop.run(run, 0)
        shop.run(run, 36)
        assert sorted(run.sink("paid")) == [("a", "unpaid"), ("b", "no order")]


@pytest.mark.parametrize(("time", "warns"), [
    ({"watermark": "clock", "clock_delay": "19 min"}, True),
    ({"watermark": "clock", "clock_delay": "20 min"}, False),
    ({"watermark": "clock", "clock_delay": "24 min", "max_out_of_orderness": "5 min"}, True),
    ({"watermark": "clock", "clock_delay": "25 min", "max_out_of_orderness": "5 min"}, False),
    ({"idle_after": "19 min"}, True),
    ({"idle_after": "20 min"}, False),
    ({}, False),
])  # fmt: skip
def test_time_that_goes_on_before_an_outage_shows_is_warned_of(time: dict[str, Any], warns: bool) -> None:
    """The advice is followed by the rows above each: then nothing is said."""
    job = StatefulJob("job")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        job.source("rows", FileSource("/x", schema=ROW), event_time="at", stale_after="20 min", **time)
    assert [str(one.message).partition(":")[0] for one in given] == ["source 'rows'"] * warns


@pytest.mark.parametrize(("delay", "warns"), [("5 min", True), ("4 min", False)])
@pytest.mark.parametrize("by", ["strategy", "column"])
def test_what_a_stream_says_later_of_its_order_is_warned_of_as_well(by: str, delay: str, warns: bool) -> None:
    job = StatefulJob("job")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        policy: Any = {"watermark": "clock", "clock_delay": "24 min", "stale_after": "20 min"}
        rows = job.source("rows", FileSource("/x", schema=ROW), event_time="at", **policy)
        if by == "column":
            rows.assign_timestamps_and_watermarks("at", delay)
        else:
            rows.assign_timestamps_and_watermarks(WatermarkStrategy.for_bounded_out_of_orderness(delay))
    assert [str(one.message).partition(":")[0] for one in given] == ["source 'rows'"] * warns


def test_timers_that_wait_for_a_source_that_is_down_are_not_due() -> None:
    shop = Shop([("a", 0), ("c", 30)], [("b", 0)])
    time = {"watermark": "clock", "clock_delay": "25 min", "stale_after": "20 min"}
    job = shop.job(orders=time, payments=time)
    with run_in_memory(job) as run:
        shop.run(run, 0)
        head = run.checkpoints()[-1]
        assert due_since(job, head, now_ms=10**9) is None
        assert len(outages(job, head, clock_ms=10**9)) == 2
        assert len(outages(job, head, clock_ms=10**9, unread=["orders"])) == 1


@pytest.mark.parametrize(("options", "message"), [
    ({"stale_after": 0}, "stale_after must be above zero, not 0 ms"),
    ({"stale_after": "1 h", "event_time": None}, "stale_after and watermark='clock' need event time"),
])  # fmt: skip
def test_what_cannot_be_declared(options: dict[str, Any], message: str) -> None:
    job = StatefulJob("job")

    def declare() -> None:
        rows = job.source("rows", FileSource("/nowhere", schema=ROW), **({"event_time": "at"} | options))
        rows.sink("rows", CollectSink())
        job.check()

    with pytest.raises(ConfigurationError, match=f"source 'rows': .*{message}"):
        declare()


def test_time_partitions_have_no_outages() -> None:
    job = StatefulJob("job", partitions=TimePartitions("at", start="2013-01-01"))
    with pytest.raises(ConfigurationError, match=r"source 'rows': stale_after is for continuous jobs.*Leave"):
        job.source("rows", FileSource("/nowhere", schema=ROW), event_time="at", stale_after="1 h")


@pytest.mark.spark
def test_status_the_check_and_the_report_say_for_what_time_waits(tmp_path: Path, spark: SparkSession) -> None:
    job = StatefulJob("shop")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("a,2026-01-01T00:00:00Z\n")
    rows = job.source(
        "payments",
        FileSource(str(tmp_path / "in"), format="csv", schema=ROW),
        event_time="at",
        stale_after="1 h",
    )
    rows.sink("out", FileSink(str(tmp_path / "out")))
    begin = datetime.now(UTC)
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
        (outage,) = engine.run(job, clock=int((begin + timedelta(hours=2)).timestamp() * 1000)).outages
    assert outage.startswith("source 'payments' brought its last rows at 20")
    report = RunReport("shop", [], True, [], outages=[outage])
    assert list(run_lines(report)) == ["shop: nothing new", f"shop: {outage}"]

    def status(hours: float) -> JobStatus:
        now_ms = int((begin + timedelta(hours=hours)).timestamp() * 1000)
        history = read_history(str(tmp_path / "root"), "shop")
        return status_of_history("shop", history, job=job, now_ms=now_ms, stuck_after=timedelta(hours=9))

    assert (status(0.9).state, status(0.9).outages) == ("ok", ())
    assert (status(2).state, status(2).exit_code, status(2).outages) == ("waiting", 1, (outage,))
    assert outage in notes(status(2))
    (tmp_path / "in" / "1.csv").write_text("b,2026-01-01T02:00:00Z\n")
    came = (begin + timedelta(hours=1.9)).timestamp()
    os.utime(tmp_path / "in" / "1.csv", (came, came))
    assert status(2).state == "ok"  # it has new rows


def test_the_check_fails_with_what_time_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    down = JobStatus("shop", "waiting", head_id=1, outages=("source 'payments' is down",))
    monkeypatch.setattr(checks, "status_of", lambda _: down)
    verdict = checks.verdict_on(SimpleNamespace(job=StatefulJob("shop")))  # type: ignore[arg-type]
    assert (verdict.passed, verdict.description) == (False, "source 'payments' is down")


@pytest.mark.spark
def test_a_delta_source_that_is_down_is_waited_for(tmp_path: Path, spark: SparkSession) -> None:
    """Also where its table gets commits without rows meanwhile; and its backlog is not late."""
    at, table = datetime(2026, 1, 1, tzinfo=UTC), str(tmp_path / "payments")

    def append(*minutes: int) -> None:
        rows = [(f"k{minute}", at + timedelta(minutes=minute)) for minute in minutes]
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").mode("append").save(table)

    def job() -> StatefulJob:
        made = StatefulJob("shop")
        rows = made.source(
            "payments", DeltaSource(table), event_time="at", late_to=LATE, watermark="clock",
            clock_delay=COVERED["clock_delay"], stale_after=COVERED["stale_after"],
        )  # fmt: skip
        echo = rows.key_by("k").process(Echo(), uid="echo", output_type="k string")
        echo.sink("out", FileSink(str(tmp_path / "out")))
        return made

    def run(minute: int) -> Any:
        with StateEngine(tmp_path / "root", spark) as engine:
            return engine.run(job(), clock=int((at + timedelta(minutes=minute)).timestamp() * 1000))

    append(0)
    run(1)
    append(5)
    assert run(6).outages == []
    append()  # a commit without rows
    (outage,) = run(40).outages
    assert "'payments' brought its last rows at 2026-01-01 00:06" in outage
    append(7, 20)
    run(50)
    append(21, 49)
    report = run(51)
    assert (report.outages, sum(report.behind_watermark.values())) == ([], 0)
