"""Time ends by idleness and by the clock: quiet streams, silent sources, and backlogs after outages. In memory.

That histories in general are equal to a plain loop and to their replays is for ``test_time_histories``; here are those
that somebody would show a colleague. Ends of time partitions are for ``test_ends_of_partitions``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from state_engine import (
    FileSource,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    WatermarkStrategy,
)
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.testing import CollectSink, MemoryRun, run_in_memory

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


class Pair(KeyedCoProcessFunction):
    """A row of either stream is put out a minute after its time: an outer join in its simplest form."""

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + MINUTE_MS)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp // MINUTE_MS


def sessions(job: StatefulJob, **time: Any) -> None:
    rows = job.source("rows", NOWHERE, order_by=["at"], event_time="at", **time)
    ended = rows.key_by("k").process(Session(), uid="sessions", output_type=ENDED)
    ended.sink("ended", CollectSink())


def watermark(run: MemoryRun) -> int | None:
    return run.checkpoints()[-1].sources[0].watermark_ms


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_the_last_session_of_a_quiet_stream_is_published_by_the_first_run_after_the_gap() -> None:
    job = StatefulJob("quiet")
    sessions(job, watermark="clock", clock_delay="10 min")
    with run_in_memory(job) as run:
        assert run.process({"rows": minutes(("a", 0), ("b", 5))}, clock=6 * MINUTE_MS)["ended"] == []
        assert run.process(clock=40 * MINUTE_MS) == {}  # not due: time is at 29:59.999
        assert run.process(clock=40 * MINUTE_MS + 1)["ended"] == [("a", 30)]
        assert watermark(run) == 30 * MINUTE_MS
        assert run.process(clock=44 * MINUTE_MS) == {}
        assert run.process(clock=60 * MINUTE_MS)["ended"] == [("b", 35)]
        assert run.process(clock=600 * MINUTE_MS) == {}


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


def joined(idle_after: Any, *, by_strategy: bool = False) -> StatefulJob:
    job = StatefulJob("joined", parallelism=2)
    streams = []
    for name in ("left", "right"):
        given = {} if by_strategy else {"idle_after": idle_after}
        stream = job.source(name, NOWHERE, order_by=["at"], event_time="at", **given)
        if by_strategy:
            strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(idle_after)
            stream = stream.assign_timestamps_and_watermarks(strategy)
        streams.append(stream.key_by("k"))
    pairs = streams[0].connect(streams[1]).process(Pair(), uid="pairs", output_type=ENDED)
    pairs.sink("pairs", CollectSink())
    return job


@pytest.mark.parametrize("by_strategy", [False, True])
def test_one_idle_source_does_not_stall_a_join(by_strategy: bool) -> None:
    with run_in_memory(joined(timedelta(minutes=20), by_strategy=by_strategy)) as run:
        run.process({"left": minutes(("a", 0)), "right": minutes(("b", 0))}, clock=0)
        assert run.process({"left": minutes(("a", 10))}, clock=10 * MINUTE_MS)["pairs"] == []
        out = run.process({"left": minutes(("a", 20))}, clock=20 * MINUTE_MS)["pairs"]
        assert sorted(out) == [("a", 1), ("a", 11), ("b", 1)]
        assert [s.idle for s in run.checkpoints()[-1].sources] == [False, True]
        # it counts again with its next row, and nothing goes back
        again = run.process({"right": minutes(("b", 15)), "left": minutes(("a", 40))}, clock=25 * MINUTE_MS)
        assert again["pairs"] == [("b", 16)]  # it was late, and is put out at once
        assert run.checkpoints()[-1].operator_watermarks_ms == {"pairs": 20 * MINUTE_MS - 1}
        assert run.process({"right": minutes(("b", 30))}, clock=26 * MINUTE_MS)["pairs"] == [("a", 21)]


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
