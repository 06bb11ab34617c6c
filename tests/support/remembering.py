"""A job with keyed state of every kind, with and without a time to live, that runs one micro-batch at a time.

What must be seen at each checkpoint is known twice without the engine: by a model that folds the events by hand, and by
what readers saw when the checkpoint was new.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FileSource,
    FoldingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    SortedMapStateDescriptor,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import TtlTime

TTL_MS = 100
FIRST_CLOCK_MS, STEP_MS = 1_000, 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATES = ("last", "shown", "timely", "all", "tags", "counts", "ranked", "total", "mean", "story", "_timers")
Key = tuple[str, int]
Event = tuple[str, int, int]
"""Key in two parts, and a number: zero forgets the key, less than zero removes an entry of its map."""


class Mean(AggregateFunction):
    """Count and sum."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1] / accumulator[0]

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]


class Remembers(KeyedProcessFunction):
    """Puts every number into every state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(Time.milliseconds(TTL_MS))
        hidden = ttl.disable_cleanup_in_background().cleanup_in_rocksdb_compact_filter(1).build()
        shown = (
            StateTtlConfig.new_builder(Time.milliseconds(TTL_MS)).return_expired_if_not_cleaned_up().build()
        )
        by_event = StateTtlConfig.new_builder(Time.milliseconds(TTL_MS))
        timely = by_event.set_ttl_time_characteristic(TtlTime.EventTime).build()

        def living(descriptor: Any, config: StateTtlConfig) -> Any:
            descriptor.enable_time_to_live(config)
            return descriptor

        get = runtime_context
        self.last = get.get_state(living(ValueStateDescriptor("last", int), hidden))
        self.shown = get.get_state(living(ValueStateDescriptor("shown", int), shown))
        self.timely = get.get_state(living(ValueStateDescriptor("timely", int), timely))
        self.all = get.get_list_state(living(ListStateDescriptor("all", int), hidden))
        self.tags = get.get_list_state(ListStateDescriptor("tags", dict[str, int]))
        self.counts = get.get_map_state(living(MapStateDescriptor("counts", int, int), hidden))
        self.ranked = get.get_sorted_map_state(SortedMapStateDescriptor("ranked", str, tuple[int, str]))
        self.total = get.get_reducing_state(ReducingStateDescriptor("total", lambda a, b: a + b, int))
        self.mean = get.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), tuple[int, int]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            story = FoldingStateDescriptor("story", "", lambda printed, n: f"{printed}{n};", str)
            self.story = get.get_folding_state(story)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        n = value.n
        if n == 0:
            for state in (self.last, self.all, self.tags, self.counts, self.ranked, self.total, self.mean):
                state.clear()
        elif n < 0:
            self.counts.remove(-n % 3)
        else:
            for state in (self.last, self.shown, self.timely):
                state.update(n)
            for adding in (self.all, self.total, self.mean, self.story):
                adding.add(n)
            self.tags.add({f"t{n % 2}": n})
            self.counts.put(n % 3, n)
            self.ranked.put(f"r{n % 4}", (n, "x" * (n % 3)))
            ctx.timer_service().register_event_time_timer(10_000 + n)
        yield value.k, n

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        return ()


class Memory:
    """The job on a directory."""

    def __init__(self, directory: Path, spark: SparkSession, *, parallelism: int = 2) -> None:
        self.directory, self.root, self.spark = directory, directory / "root", spark
        self.engine, self.parallelism = StateEngine(self.root, spark), parallelism
        self.batches: list[Sequence[Event]] = []
        (directory / "feed").mkdir(parents=True)

    def job(self) -> StatefulJob:
        job = StatefulJob("memory", parallelism=self.parallelism, max_parallelism=8)
        source = job.source(
            "events", FileSource(str(self.directory / "feed")), order_by=["at", "n"], event_time="at"
        )
        source.key_by("k", "value").process(Remembers(), uid="remembers", output_type="k string, n bigint")
        return job

    def run(self, events: Sequence[Event]) -> int:
        """One micro-batch at the next clock; the id of its checkpoint."""
        at_ms = FIRST_CLOCK_MS + STEP_MS * len(self.batches)
        columns = {
            "k": pa.array([e[0] for e in events]),
            "value": pa.array([e[1] for e in events], pa.int64()),
            "n": pa.array([e[2] for e in events], pa.int64()),
            "at": pa.array([EPOCH + timedelta(milliseconds=at_ms)] * len(events), pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), self.directory / "feed" / f"{len(self.batches)}.parquet")
        self.batches.append(events)
        self.engine.run(self.job(), clock=at_ms, max_batches=1)
        return self.engine.checkpoints("memory")[-1].checkpoint_id

    def seen(self, state: str, **options: Any) -> list[Any]:
        """What Spark reads."""
        return entries(self.engine.read_state("memory", "remembers", state, **options).toArrow())


def entries(table: pa.Table) -> list[Any]:
    """Rows in an order of their own, so that two readers can be compared."""
    return sorted((tuple(_frozen(v) for v in row.values()) for row in table.to_pylist()), key=repr)


def _frozen(value: Any) -> Any:
    """Map entries in the order of their keys; instants in UTC."""
    if isinstance(value, list):
        parts = [_frozen(part) for part in value]
        return sorted(parts) if parts and isinstance(value[0], tuple) else parts
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def model(batches: Sequence[Sequence[Event]], *, include_expired: bool = False) -> dict[str, dict[Any, Any]]:
    """What readers must see of some states after these batches, folded by hand."""
    now = FIRST_CLOCK_MS + STEP_MS * (len(batches) - 1)
    last: dict[Key, tuple[int, int]] = {}
    every: dict[Key, list[tuple[int, int]]] = {}
    counts: dict[Any, tuple[int, int]] = {}
    total: dict[Key, int] = {}
    for number, batch in enumerate(batches):
        at = FIRST_CLOCK_MS + STEP_MS * number
        for k, part, n in sorted(batch, key=lambda e: e[2]):
            key = (k, part)
            if n == 0:
                for state in (last, every, total):
                    state.pop(key, None)
                counts = {entry: v for entry, v in counts.items() if entry[:2] != key}
            elif n < 0:
                counts.pop((*key, -n % 3), None)
            else:
                last[key] = n, at
                every.setdefault(key, []).append((n, at))
                counts[*key, n % 3] = n, at
                total[key] = total.get(key, 0) + n

    def lives(at: int) -> bool:
        return include_expired or at + TTL_MS > now

    lists = {key: [n for n, at in items if lives(at)] for key, items in every.items()}
    return {
        "last": {key: n for key, (n, at) in last.items() if lives(at)},
        "all": {key: items for key, items in lists.items() if items},
        "counts": {entry: n for entry, (n, at) in counts.items() if lives(at)},
        "total": total,
    }


def by_key(rows: Iterable[Any]) -> dict[Any, Any]:
    """Rows of a reader as the model has them."""
    return {tuple(row[:-1]): row[-1] for row in rows}
