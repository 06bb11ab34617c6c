"""States with times to live of their own, timers that set timers, two operators, a restore, and a drain at the end.

Cuts, parallelism and backend change nothing, nor the order in which the second operator sees the outputs of the first:
they are those of the harness, which runs the same operator loop over lists.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from state_engine import (
    AggregatingStateDescriptor,
    EmbeddedRocksDBStateBackend,
    FileSource,
    HashMapStateBackend,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Time,
)
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.core.state.aggregates import Sum

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DELAY_MS, COUNT = 10, 50
SEEN = "k string, n bigint, seen string"


def living(descriptor: Any, ttl_ms: int) -> Any:
    assert isinstance(descriptor, StateDescriptor)
    descriptor.enable_time_to_live(
        StateTtlConfig.new_builder(Time.milliseconds(ttl_ms)).use_event_time().build()
    )
    return descriptor


class Shows(KeyedProcessFunction):
    """Gives what it sees of a map, a list and an aggregate, whose entries live for different times."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.map = runtime_context.get_map_state(living(MapStateDescriptor("map", int, int), 30))
        self.list = runtime_context.get_list_state(living(ListStateDescriptor("list", int), 12))
        aggregating = living(AggregatingStateDescriptor("aggregate", Sum(), "bigint"), 50)
        self.aggregate = runtime_context.get_aggregating_state(aggregating)

    def _seen(self, key: Any, at: int) -> tuple[Any, int, str]:
        return key, at, f"{sorted(self.map.items())} {list(self.list.get())} {self.aggregate.get()}"

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield self._seen(value.k, value.n)
        self.map.put(value.n % 4, value.n)
        self.list.add(value.n)
        self.aggregate.add(value.n)
        if value.n % 3 == 0:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + value.n % 20)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield self._seen(ctx.get_current_key(), timestamp)
        if timestamp % 5 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 7)


class Chains(KeyedProcessFunction):
    """The second operator: keeps all elements in order, and gives the last three."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.came = runtime_context.get_list_state(ListStateDescriptor("came", str))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.came.add(f"{value.k} {value.n} {value.seen}")
        yield value.n % 3, str(list(self.came.get())[-3:])


def job_of(parallelism: int, backend: Any) -> StatefulJob:
    job = StatefulJob("together", parallelism=parallelism, state_backend=backend)
    rows = job.source(
        "rows",
        FileSource("/rows", schema="k string, n bigint, at timestamp"),
        event_time="at",
        max_out_of_orderness=timedelta(milliseconds=DELAY_MS),
    )
    shows = rows.key_by("k").process(Shows(), uid="shows", output_type=SEEN)
    shows.sink("out", CollectSink())
    chained = shows.key_by(third, key_type=int).process(
        Chains(), uid="chains", output_type="n bigint, came string"
    )
    chained.sink("chained", CollectSink())
    return job


def third(row: Any) -> int:
    return int(row.n % 3)


def outputs(
    rows: list[Any], parallelism: int, backend: Any, cuts: list[int], *, restores: bool = False
) -> list[Any]:
    """Of a run that is cut, goes back after its second micro-batch where it ``restores``, and is drained."""
    with run_in_memory(job_of(parallelism, backend)) as run:
        for batch, (start, end) in enumerate(pairwise([0, *cuts, COUNT])):
            run.process({"rows": rows[start:end]})
            if restores and batch == 1:
                run.restore(1)
                run.process({"rows": rows[start:end]})
        run.process(drain=True)
        return [sorted(run.sink(name)) for name in ("out", "chained")]


def in_harness(rows: list[Any]) -> list[Any]:
    """The outputs of both operators in the harness."""
    row = Row("k", "n", "at")
    shows = KeyedHarness(
        Shows(), key_by=lambda value: value.k, output_type=SEEN, max_out_of_orderness_ms=DELAY_MS,
        timestamp_of=lambda value: (value.at - EPOCH) // timedelta(milliseconds=1),
    )  # fmt: skip
    seen = shows.process([row(*values) for values in rows]) + shows.drain()
    chains = KeyedHarness(Chains(), key_by=third, output_type="n bigint, came string")
    row = Row("k", "n", "seen")
    return [sorted(seen), sorted(chains.process([row(*values) for values in seen]))]


@pytest.mark.more
@pytest.mark.parametrize("seed", range(4))
def test_cuts_parallelism_backend_and_a_restore_change_nothing(seed: int) -> None:
    rng, newest, rows = random.Random(seed), 0, []
    for n in range(COUNT):
        newest += rng.choice([0, 1, 3, 9])
        at = EPOCH + timedelta(milliseconds=newest - rng.choice([0, 0, 4, DELAY_MS]))
        rows.append((rng.choice("abc"), n, at))
    whole = outputs(rows, 1, HashMapStateBackend(), [])
    assert len(whole[0]) > COUNT  # timers fired, too
    assert whole == in_harness(rows)
    assert outputs(rows, 3, EmbeddedRocksDBStateBackend(), [7, 20, 33]) == whole
    assert outputs(rows, 2, HashMapStateBackend(), list(range(1, COUNT))) == whole
    assert outputs(rows, 2, EmbeddedRocksDBStateBackend(), [15, 30], restores=True) == whole
