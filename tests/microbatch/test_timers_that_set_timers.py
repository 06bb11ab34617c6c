"""Timers that set timers: what ends fires, and what would never end is an error, in harness, memory and Spark alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import EmbeddedRocksDBStateBackend, FileSource, KeyedProcessFunction, StatefulJob
from state_engine.core.errors import TimerChainError
from state_engine.core.operator import stream_operator
from state_engine.core.time import timers
from state_engine.core.time.timers import TimerQueue
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.support.pipelines import Pipeline

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS = 86_400_000
ROW, OUT = "k string, at timestamp", "k string, fired bigint"
CLOCK_MS = 100 * DAY_MS
Next = Callable[[Any, int], object]


def next_day(service: Any, timestamp: int) -> None:
    service.register_event_time_timer(timestamp + DAY_MS)


def own_time(service: Any, timestamp: int) -> None:
    service.register_event_time_timer(timestamp)


def to_and_fro(service: Any, timestamp: int) -> None:
    service.register_event_time_timer({1: 0}.get(timestamp, 1))


def now(service: Any, timestamp: int) -> None:
    service.register_processing_time_timer(service.current_processing_time())


def before_now(service: Any, timestamp: int) -> None:
    service.register_processing_time_timer(timestamp)


def both_clocks(service: Any, timestamp: int) -> None:
    service.register_processing_time_timer(0)
    service.register_event_time_timer(0)


ENDLESS: dict[str, tuple[Next, bool, str]] = {
    "the next day's, in a drain": (next_day, True, "event time.*2\\*\\*63 - 1"),
    "its own time, in a drain": (own_time, True, "timer at 1 ms .event time"),
    "its own time": (own_time, False, "timer at 1 ms .event time.*later than the one that fires"),
    "one that sets it": (to_and_fro, False, "timer at 0 ms .event time"),
    "now": (now, False, f"timer at {CLOCK_MS} ms .processing time"),
    "its own time, of the clock": (before_now, False, "timer at 1 ms .processing time"),
    "one of either clock": (both_clocks, False, "timer at 0 ms"),
}
"""What a timer sets; whether the job is drained; what the error says of the timer and of the way out."""
EVERY_KIND = pytest.mark.parametrize(("following", "drain", "message"), ENDLESS.values(), ids=list(ENDLESS))


class Again(KeyedProcessFunction):
    """Sets a timer of ann at 1, and when one fires others."""

    def __init__(self, following: Next) -> None:
        self._following = following

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if ctx.get_current_key() == "ann":
            ctx.timer_service().register_event_time_timer(1)
        return []

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        self._following(ctx.timer_service(), timestamp)
        yield ctx.get_current_key(), timestamp


def harness(following: Next, **options: Any) -> KeyedHarness:
    return KeyedHarness(
        Again(following), key_by=lambda e: e[0], timestamp_of=lambda e: e[1], max_out_of_orderness_ms=0,
        clock_ms=CLOCK_MS, **options,
    )  # fmt: skip


@EVERY_KIND
@pytest.mark.parametrize(
    "rows", [[("ann", 0), ("bob", 9)], [("ann", 0), ("ann", 9)]], ids=["at the end", "before a row"]
)
@pytest.mark.parametrize("options", [{}, {"on_error": "dead_letter"}, {"backend": EmbeddedRocksDBStateBackend()}],
                         ids=["fail", "dead letter", "rocksdb"])  # fmt: skip
def test_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
    following: Next,
    drain: bool,
    message: str,
    rows: Any,
    options: dict[str, Any],
) -> None:
    monkeypatch.setattr(stream_operator, "TimerQueue", partial(TimerQueue, chain_limit=50))
    subject = harness(following, **options)
    with pytest.raises(TimerChainError, match=f"operator '.*': on_timer of key 'ann' sets .*{message}"):
        subject.process(rows, drain=drain)
    assert subject.process([]) == []  # nothing was kept


def test_the_limit_ends_a_micro_batch_as_it_is() -> None:
    with pytest.raises(TimerChainError, match="It is the last of 100,000 in a row"):
        harness(own_time).process([("ann", 0), ("bob", 9)])


def build(following: Next, **options: Any) -> StatefulJob:
    job = StatefulJob("job", **options)
    rows = job.source("rows", FileSource("/nowhere", schema=ROW), event_time="at")
    rows.key_by("k").process(Again(following), uid="again", output_type=OUT).sink("out", CollectSink())
    return job


@EVERY_KIND
@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_in_memory_nothing_is_committed(
    monkeypatch: pytest.MonkeyPatch, following: Next, drain: bool, message: str, on_error: str
) -> None:
    monkeypatch.setattr(stream_operator, "TimerQueue", partial(TimerQueue, chain_limit=50))
    with run_in_memory(build(following, on_error=on_error)) as run:
        rows = [("ann", EPOCH), ("bob", EPOCH + timedelta(milliseconds=0 if drain else 9))]
        first = run.process({"rows": rows}, clock=CLOCK_MS) if drain else None
        with pytest.raises(
            TimerChainError, match=f"job 'job': operator 'again': on_timer of key 'ann' sets .*{message}"
        ):
            run.process({} if drain else {"rows": rows}, clock=CLOCK_MS, drain=drain)
        assert len(run.checkpoints()) == (first is not None)


def later(step_ms: int) -> Next:
    return lambda service, timestamp: service.register_event_time_timer(timestamp + step_ms)


def test_time_that_goes_on_ends_a_chain_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_operator, "TimerQueue", partial(TimerQueue, chain_limit=50))
    subject = harness(later(1))
    assert len(subject.process([("ann", 0), ("ann", 1000)])) == 999


def by_clock(service: Any, timestamp: int) -> None:
    service.register_processing_time_timer(timestamp + DAY_MS)


def test_a_clock_that_is_reached_ends_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_operator, "TimerQueue", partial(TimerQueue, chain_limit=50))
    assert len(harness(by_clock).process([("ann", 0), ("ann", 9)])) == 1 + 99


class UntilTheEnd(Again):
    """Sets the next day's timer, unless the input has ended."""

    def __init__(self) -> None:
        super().__init__(next_day)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        if ctx.timer_service().current_watermark() < timers.MAX_TIMESTAMP:
            self._following(ctx.timer_service(), timestamp)
        yield ctx.get_current_key(), timestamp


def test_the_way_out_of_the_message_helps() -> None:
    subject = KeyedHarness(
        UntilTheEnd(), key_by=lambda e: e[0], timestamp_of=lambda e: e[1], max_out_of_orderness_ms=0
    )
    assert subject.process([("ann", 0), ("ann", 2 * DAY_MS)]) == [("ann", 1), ("ann", DAY_MS + 1)]
    assert subject.process([], drain=True) == [("ann", 2 * DAY_MS + 1)]


def a_week(service: Any, timestamp: int) -> None:
    if timestamp < 7 * DAY_MS:
        service.register_event_time_timer(timestamp + DAY_MS)


def test_a_drain_fires_what_timers_set_and_leaves_the_clock_alone() -> None:
    assert len(harness(a_week).process([("ann", 0)], drain=True)) == 8

    def clock_too(service: Any, timestamp: int) -> None:
        if timestamp < CLOCK_MS:
            service.register_processing_time_timer(CLOCK_MS + 1)

    subject = harness(clock_too)
    assert subject.process([("ann", 0)], drain=True) == [("ann", 1)]
    subject.set_clock(CLOCK_MS + 1)
    assert subject.process([]) == [("ann", CLOCK_MS + 1)]


@pytest.mark.spark
@pytest.mark.parametrize("case", ["the next day's, in a drain", "its own time", "now"])
def test_on_spark(tmp_path: Path, spark: SparkSession, case: str) -> None:
    following, drain, message = ENDLESS[case]

    def of_rows(job: StatefulJob) -> dict[str, Any]:
        rows = [("ann", EPOCH), ("bob", EPOCH + timedelta(milliseconds=9))]
        source = job.from_collection(rows, ROW, name="rows", event_time="at")
        return {"out": source.key_by("k").process(Again(following), uid="again", output_type=OUT)}

    pipeline = Pipeline(tmp_path, spark, of_rows, on_error="dead_letter")
    with pytest.raises(
        TimerChainError, match=f"job 'pipeline': operator 'again': on_timer of key 'ann' .*{message}"
    ):
        pipeline.run(clock=CLOCK_MS, drain=drain)
    assert len(pipeline.checkpoints()) == drain
