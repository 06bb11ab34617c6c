"""Rows that come within the declared out-of-orderness: no cut, order, parallelism or union makes one of them late.

Every job of this module sums windows, whatever the order of a key's rows, so its results are those of a plain sum.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    FileSource,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Time,
)
from state_engine.state_backends.state_backend import StateBackend
from state_engine.testing import CollectSink, run_in_memory
from tests.microbatch.time_model import Visible
from tests.state_backends.backends import BACKENDS
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits
from tests.support.pipelines import Pipeline

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
EVENT = "n bigint, k string, at timestamp"
SUM = "k string, ends bigint, count bigint"
LATE = OutputTag("late", EVENT)
WINDOW_MS = 10
IDLE_AFTER_MS = 100
DELAYS_MS = {"left": 25, "right": 8}
ORDERS: list[list[str]] = [[], ["at"], ["n"], ["k"], ["k", "at"]]
KINDS = ("alone", "union", "connected", "behind a map", "beside a map")


class Event(NamedTuple):
    """A row of a source; its number says nothing of its time or place."""

    n: int
    k: str
    at: datetime

    @property
    def ends(self) -> int:
        """When its window ends."""
        at_ms = (self.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        return (at_ms // WINDOW_MS + 1) * WINDOW_MS - 1


def events(rng: random.Random, delay_ms: int, count: int) -> list[Event]:
    """As they come: each at most so far behind the newest before it."""
    newest, made = 0, []
    for _ in range(count):
        newest += rng.choice([0, 0, 1, 5, 20])
        at = EPOCH + timedelta(milliseconds=newest - rng.choice([0, 0, 1, delay_ms // 2, delay_ms]))
        made.append(Event(rng.randrange(1000), rng.choice("abc"), at))
    return made


class Windows(KeyedProcessFunction):
    """How many rows each key has in each window."""

    def __init__(self, ttl_ms: int = 200) -> None:
        self.ttl_ms = ttl_ms

    def open(self, runtime_context: RuntimeContext) -> None:
        counts = MapStateDescriptor("counts", int, int)
        ttl = StateTtlConfig.new_builder(Time.milliseconds(self.ttl_ms)).use_event_time()
        counts.enable_time_to_live(ttl.build())
        self.counts = runtime_context.get_map_state(counts)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        assert not ctx.is_late()
        ends = Event(*value).ends
        self.counts.put(ends, (self.counts.get(ends) or 0) + 1)
        ctx.timer_service().register_event_time_timer(ends)
        return []

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, self.counts.get(timestamp)
        self.counts.remove(timestamp)


class WindowsOfTwo(KeyedCoProcessFunction):
    """The same, over connected streams."""

    def __init__(self, ttl_ms: int = 200) -> None:
        self.windows = Windows(ttl_ms)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.windows.open(runtime_context)

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.windows.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        return self.windows.process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        return self.windows.on_timer(timestamp, ctx)


def summed(kind: str, left: DataStream, right: DataStream | None, ttl_ms: int = 200) -> DataStream:
    """The windows of one source or of both."""
    if right is not None and kind == "connected":
        both = left.key_by("k").connect(right.key_by("k"))
        return both.process(WindowsOfTwo(ttl_ms), uid="windows", output_type=SUM)
    if kind in ("behind a map", "beside a map"):
        left = left.map(lambda event: event, uid="map", output_type=EVENT)
    stream = left if right is None else left.union(right)
    return stream.key_by("k").process(Windows(ttl_ms), uid="windows", output_type=SUM)


def job_of(
    kind: str,
    order_by: list[str],
    parallelism: int,
    *,
    backend: StateBackend,
    silent: bool = False,
    **time: Any,
) -> StatefulJob:
    job = StatefulJob("windows", parallelism=parallelism, state_backend=backend)
    sources = [
        job.source(
            name, FileSource(f"/data/{name}", schema=EVENT), order_by=order_by, event_time="at",
            max_out_of_orderness=timedelta(milliseconds=delay_ms), late_to=LATE, **time,
        )
        for name, delay_ms in DELAYS_MS.items()
        if name in read_by(kind)
    ]  # fmt: skip
    if (
        silent
    ):  # a source without any row: time waits for it in the first micro-batch, and then catches up at once
        source = FileSource("/data/silent", schema=EVENT)
        sources[0] = sources[0].union(
            job.source("silent", source, event_time="at", order_by=order_by, idle_after="1 ms")
        )
    ttl_ms = 100_000 if silent else 200
    windows = summed(kind, sources[0], sources[1] if len(sources) > 1 else None, ttl_ms)
    windows.sink("sums", CollectSink())
    return job


def read_by(kind: str) -> list[str]:
    """The sources of a job."""
    return ["left"] if kind in ("alone", "behind a map") else ["left", "right"]


def expected(rows: Iterable[Event]) -> list[Any]:
    return sorted((k, ends, count) for (k, ends), count in Counter((e.k, e.ends) for e in rows).items())


@pytest.mark.more
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 10_000),
    order_by=st.sampled_from(ORDERS),
    parallelism=st.sampled_from([1, 3]),
    cuts=st.lists(st.integers(1, 39), max_size=4),
    time=st.sampled_from([{}, {"watermark": "clock", "clock_delay": "1 s"}]),
    silent=st.booleans(),
    backend=st.sampled_from([*BACKENDS.values()]),
)
def test_no_cut_makes_a_row_late(
    kind: str,
    seed: int,
    order_by: list[str],
    parallelism: int,
    cuts: list[int],
    time: dict[str, str],
    silent: bool,
    backend: Any,
) -> None:
    rng = random.Random(seed)
    rows = {name: events(rng, DELAYS_MS[name], 40) for name in read_by(kind)}
    bounds = [0, *sorted(set(cuts)), 40]
    job = job_of(kind, order_by, parallelism, backend=backend(), silent=silent, **time)
    with run_in_memory(job) as run:
        for start, end in pairwise(bounds):
            given_rows = {name: some[start:end] for name, some in rows.items()}
            newest = max(event.at for event in chain(*given_rows.values()))
            run.process(given_rows, clock=int(newest.timestamp() * 1000))
        run.process(drain=True)
        assert sorted(run.sink("sums")) == expected(chain(*rows.values()))
        assert [
            s.behind_watermark for row in run.checkpoints() for s in row.sources if s.behind_watermark
        ] == []
        assert not any(run.state("windows", "counts").values())


def come_and_go(rng: random.Random, gaps: int) -> list[tuple[int, Event]]:
    """Rows with the clock at which they come, behind their time by the least delay at most; with long gaps."""
    long = rng.sample(range(5, 25), gaps)
    clock, made = 0, []
    for n in range(30):
        clock += 3 * IDLE_AFTER_MS if n in long else rng.choice([0, 5, 20, 20, 40])
        at = EPOCH + timedelta(milliseconds=clock - rng.choice([0, 0, 1, min(DELAYS_MS.values())]))
        made.append((clock, Event(rng.randrange(1000), rng.choice("abc"), at)))
    return made


@pytest.mark.more
@pytest.mark.parametrize("kind", ["union", "connected", "beside a map"])
def test_no_cut_makes_a_row_late_where_sources_fall_idle_and_come_back(kind: str) -> None:
    """Also where the rows of one that comes back take several micro-batches, and the other goes on meanwhile."""
    came_back = 0
    for seed in range(4):
        rng = random.Random(seed)
        rows = {name: come_and_go(rng, gaps) for name, gaps in (("left", 1), ("right", 2))}
        there = {name: [0] for name in rows}
        job, streams = StatefulJob("windows", parallelism=rng.choice([1, 3])), []
        for name, some in rows.items():
            stream = job.from_collection(
                [event for _, event in some], EVENT, name=name, order_by=rng.choice(ORDERS), event_time="at",
                max_out_of_orderness=timedelta(milliseconds=DELAYS_MS[name]), late_to=LATE,
                idle_after=timedelta(milliseconds=IDLE_AFTER_MS), max_rows_per_batch=rng.choice([None, 2]),
            )  # fmt: skip
            Visible.make(job.sources[name], there[name])
            streams.append(stream)
        summed(kind, streams[0], streams[1], ttl_ms=100_000).sink("sums", CollectSink())
        last, clock = max(at for some in rows.values() for at, _ in some), 0
        with run_in_memory(job) as run:
            while clock < last:
                clock += rng.choice([20, IDLE_AFTER_MS - 10, IDLE_AFTER_MS - 10, 2 * IDLE_AFTER_MS])
                for name, some in rows.items():
                    there[name][0] = sum(at <= clock for at, _ in some)
                run.run(clock=int(EPOCH.timestamp() * 1000) + clock)
            run.run(drain=True)
            assert sorted(run.sink("sums")) == expected(event for some in rows.values() for _, event in some)
            batches = run.checkpoints()
        assert [s.behind_watermark for row in batches for s in row.sources if s.behind_watermark] == []
        for name in rows:
            idle = [one.idle for row in batches if (one := row.source(name))]
            came_back += sum(before and not after for before, after in pairwise(idle))
    assert came_back >= 5


@pytest.mark.spark
@pytest.mark.parametrize("order_by", [["n"], ["k"]])
def test_tasks_of_spark_find_the_same(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, order_by: list[str]
) -> None:
    rows = {name: events(random.Random(3), delay_ms, 40) for name, delay_ms in DELAYS_MS.items()}

    def build(job: StatefulJob) -> dict[str, DataStream]:
        left, right = (
            job.from_collection(
                rows[name], EVENT, name=name, order_by=order_by, event_time="at", max_rows_per_batch=25,
                max_out_of_orderness=timedelta(milliseconds=delay_ms),
            )
            for name, delay_ms in DELAYS_MS.items()
        )  # fmt: skip
        return {"sums": summed("union", left, right)}

    limits(**NOTHING_BY_DRIVER)
    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run(drain=True)
    assert sorted(pipeline.outputs()["sums"]) == expected(chain(*rows.values()))
    assert sum(source.behind_watermark or 0 for row in pipeline.checkpoints() for source in row.sources) == 0


@pytest.mark.parametrize(("cuts", "late"), [([2], []), ([1, 2], [1])])
def test_a_row_beyond_the_bound_is_late_for_earlier_batches_only_where_order_by_is_the_time(
    cuts: list[int], late: list[int]
) -> None:
    """What the guide says: sorted in one micro-batch, late in the second of two."""
    rows = [Event(0, "a", EPOCH + timedelta(hours=17)), Event(1, "a", EPOCH + timedelta(hours=12))]
    job = StatefulJob("times")
    source = job.source(
        "left", FileSource("/data", schema=EVENT), order_by=["at"], event_time="at", late_to=LATE
    )
    windows = source.key_by("k").process(Windows(), uid="windows", output_type=SUM)
    windows.get_side_output(LATE).sink("late", CollectSink())
    with run_in_memory(job) as run:
        for start, end in pairwise([0, *cuts]):
            run.process({"left": rows[start:end]})
        assert [row.n for row in run.sink("late")] == late
