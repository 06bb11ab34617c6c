"""Random jobs: states, timers, event-time TTL and two chained operators; neither cuts nor parallelism change anything.

In memory, with either backend, as on Spark. Outputs and state also equal those of the harness, which runs the same
operator loop over lists.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import TtlTime
from state_engine.sources.frames import StreamFrame
from state_engine.testing import KeyedHarness
from tests.support.pipelines import MemoryPipeline, Pipeline

pytestmark = pytest.mark.spark
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELAY_MS = 3
OPERATIONS = ("put", "add", "remove", "clear", "timer", "forget", "reduce")


class Event(NamedTuple):
    """An operation of a key at an event time, with a number."""

    at: datetime
    k: str
    what: str
    n: int


EVENT = "at timestamp, k string, what string, n bigint"
SEEN = "k string, what string, n bigint, at bigint"


def milliseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def events(seed: int, count: int = 60) -> list[Event]:
    """In the order of their times, as the job's order is."""
    rng = random.Random(seed)
    times = sorted(rng.sample(range(4 * count), count))
    return [
        Event(
            EPOCH + timedelta(milliseconds=at),
            rng.choice("abcde"),
            rng.choice(OPERATIONS),
            rng.randrange(-9, 9),
        )
        for at in times
    ]


class Does(KeyedProcessFunction):
    """Applies events to one state of each kind, and emits all that it reads."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(Time.milliseconds(25)).set_ttl_time_characteristic(TtlTime.EventTime)
        ttl = ttl.update_ttl_on_create_and_write().disable_cleanup_in_background()
        last = ValueStateDescriptor("last", int)
        last.enable_time_to_live(ttl.build())
        counts = MapStateDescriptor("counts", int, int)
        counts.enable_time_to_live(ttl.build())
        self.last, self.counts = runtime_context.get_state(last), runtime_context.get_map_state(counts)
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", int))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        at, what, n = milliseconds(value.at), value.what, value.n
        yield from self.seen_row(ctx.get_current_key(), what, n, at)
        if what == "put":
            self.last.update(n)
            self.counts.put(n % 4, (self.counts.get(n % 4) or 0) + 1)
        elif what == "add":
            self.all.add(n)
        elif what == "remove":
            self.counts.remove(n % 4)
        elif what == "clear":
            (self.all, self.last, self.sum)[n % 3].clear()
        elif what == "timer":
            ctx.timer_service().register_event_time_timer(at + 2 * n)
        elif what == "forget":
            ctx.timer_service().delete_event_time_timer(at + n)
        else:
            self.sum.add(n)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield from self.seen_row(ctx.get_current_key(), "fired", 0, timestamp)
        self.all.add(timestamp)
        if timestamp % 3 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 7)

    def seen_row(self, key: str, what: str, n: int, at: int) -> Iterable[Any]:
        seen = (self.last.value(), sorted(self.counts.items()), list(self.all.get()), self.sum.get())
        yield key, f"{what}: {seen}", n, at


class Chains(KeyedProcessFunction):
    """The second operator: keeps all elements in order."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.came = runtime_context.get_list_state(ListStateDescriptor("came", str))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.came.add(f"{value.k} {value.at} {value.what}")
        yield value.n, len(list(self.came.get())), f"{value.k} {value.what}"


def job_of(seed: int, cut: int | None) -> Any:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        source = job.from_collection(
            events(seed), EVENT, name="events", order_by=["at"], event_time="at",
            max_out_of_orderness=DELAY_MS, max_rows_per_batch=cut,
        )  # fmt: skip
        seen = source.key_by("k").process(Does(), uid="does", output_type=SEEN)
        chained = seen.key_by("n").process(
            Chains(), uid="chains", output_type="n bigint, count bigint, seen string"
        )
        return {"seen": seen, "chained": chained}

    return build


STATES = {"does": ("last", "counts", "all", "sum"), "chains": ("came",)}


def everything(pipeline: Pipeline | MemoryPipeline) -> dict[str, Any]:
    pipeline.run(drain=True)
    outputs: dict[str, Any] = {name: sorted(rows) for name, rows in pipeline.outputs().items()}
    return outputs | {s: pipeline.state(operator, s) for operator, names in STATES.items() for s in names}


@pytest.mark.parametrize("seed", [1, *[pytest.param(n, marks=pytest.mark.long) for n in range(2, 9)]])
def test_cuts_parallelism_and_backends_change_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Tasks of Spark route the rows of the first run, the driver those of the others; the results are the same."""
    rng = random.Random(seed)
    with monkeypatch.context() as patch:
        patch.setattr(StreamFrame, "table", None)
        whole = everything(Pipeline(tmp_path, spark, job_of(seed, None), parallelism=1))
    for cut, parallelism, backend in (
        (rng.randrange(10, 30), rng.randrange(2, 6), EmbeddedRocksDBStateBackend()),
        (rng.randrange(3, 10), rng.randrange(2, 6), HashMapStateBackend()),
    ):
        build = job_of(seed, cut)
        with MemoryPipeline.of(build, parallelism=parallelism, state_backend=backend) as pipeline:
            content = everything(pipeline)
        for name, expected in whole.items():
            assert content[name] == expected, (name, cut)

    harness = KeyedHarness(
        Does(), key_by=lambda e: e.k, timestamp_of=lambda e: milliseconds(e.at), max_out_of_orderness_ms=DELAY_MS,
        output_type=SEEN,
    )  # fmt: skip
    outputs = harness.process(events(seed)) + harness.drain()
    assert sorted(outputs) == whole["seen"]
    chained = KeyedHarness(
        Chains(), key_by=lambda row: row.n, output_type="n bigint, count bigint, seen string"
    )
    from state_engine import Row

    row = Row("k", "what", "n", "at")
    assert sorted(chained.process([row(*t) for t in outputs])) == whole["chained"]
