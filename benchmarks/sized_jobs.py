"""Jobs that are given a large state, so that micro-batches upon it can be measured and profiled.

Every job holds the state of ``keys`` keys, a base written by ``bootstrap``, and takes micro-batches of a few events of
keys chosen at random. ``Counting`` holds a number a key, and ``TOTALS``, in its place, a declared aggregate;
``Waiting`` a pending timer besides, of which a micro-batch reaches as many as it is asked to; ``Mapped`` a map of
entries, of which an event changes some.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import PARALLELISM, hand_over
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    LocalCopies,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    count,
    sum_,
)
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.plan import plan

START_MS = 1_700_000_000_000
SLOT_MS = 1000
"""Event time between two timers."""
_STRIDE = 7919
_SCHEMA = "k bigint, changed bigint, ts timestamp"
TOTALS: dict[str, Aggregate] = {"n": count(), "total": sum_("changed")}
"""Aggregates, in place of a function."""


class Counting(KeyedProcessFunction):
    """Counts the events of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.number = runtime_context.get_state(ValueStateDescriptor("number", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.number.update((self.number.value() or 0) + 1)


class Waiting(Counting):
    """Counts, and emits the number when the key's timer fires."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[int, int]]:
        yield ctx.get_current_key(), self.number.value() or 0


class Registering(Waiting):
    """Sets a timer for every event, which nothing reaches."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        super().process_element(value, ctx)
        ctx.timer_service().register_event_time_timer(2 * START_MS + value.k)


class Mapped(KeyedProcessFunction):
    """Adds one to so many entries of a key's map as the event says."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.parts = runtime_context.get_map_state(MapStateDescriptor("parts", int, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        for part in range(value.changed):
            self.parts.put(part, (self.parts.get(part) or 0) + 1)


@dataclass(frozen=True)
class Took:
    """One micro-batch.

    Attributes:
        seconds: of the whole call.
        rows_out: what the sink got.
        changed_entries, changelog_bytes: rows of changes that were written, and their size.
        subtasks: seconds by step, of each subtask.
    """

    seconds: float
    rows_out: int
    changed_entries: int
    changelog_bytes: int
    subtasks: list[dict[str, float]]


class SizedJob:
    """A job with the state of so many keys.

    Args:
        spark: session.
        directory: for input, state and sink.
        function: one of this module's, or ``TOTALS``.
        keys: that have state.
        entries: of each key's map, for ``Mapped``.
        max_parallelism: key groups, each with a file of the base; None for the default.
        local_copies: of these files; None for some in the directory.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        function: Any,
        keys: int,
        *,
        entries: int = 0,
        max_parallelism: int | None = None,
        local_copies: LocalCopies | None = None,
    ) -> None:
        self._spark, self.directory, self._input, self.keys = spark, directory, directory / "input", keys
        self._input.mkdir(parents=True)
        self._feed = directory / "feed"
        self.job = StatefulJob("sized", parallelism=PARALLELISM, max_parallelism=max_parallelism)
        source = FileSource(str(self._input), schema=_SCHEMA)
        keyed = self.job.source("events", source, event_time="ts").key_by("k")
        self._totals = function is TOTALS
        if self._totals:
            kept = keyed.aggregate(n=TOTALS["n"], total=TOTALS["total"]).uid("kept")
        else:
            kept = keyed.process(function, uid="kept", output_type="k bigint, n bigint")
        kept.sink("out", DeltaSink(str(directory / "out")))
        local_copies = local_copies or LocalCopies(str(directory / "copies"))
        self.engine = StateEngine(directory / "root", spark, local_copies=local_copies)
        self._random = np.random.default_rng(keys)
        self._batches = self._reached = self.events = 0
        self._given(function, entries)

    def _given(self, function: Any, entries: int) -> None:
        keys: DataFrame = self._spark.range(self.keys).withColumnRenamed("id", "k")
        processor = self.engine.state_processor(self.job)
        if isinstance(function, Mapped):
            parts = keys.selectExpr("k", f"explode(sequence(0L, {entries - 1}L)) AS map_key", "1L AS value")
            processor.bootstrap({"kept": {"parts": parts}}, clock=START_MS)
            return
        if self._totals:
            one = "named_struct('rows', 1L, 'sum_changed', named_struct('total', 1L, 'values', 1L)) AS value"
            columns = to_type(_SCHEMA, parameter="events")
            assert isinstance(columns, StructType)
            state = plan(TOTALS, columns).state
            processor.bootstrap({"kept": {state: keys.selectExpr("k", one)}}, clock=START_MS)
            return
        slots = f"{START_MS}L + (k * {_STRIDE} % {self.keys}) * {SLOT_MS} AS at"
        timers = {"kept": {"event": keys.selectExpr("k", slots)}}
        processor.bootstrap(
            {"kept": {"number": keys.selectExpr("k", "1L AS value")}},
            timers=timers if type(function) is Waiting else None,
            clock=START_MS,
        )

    def run(self, events: int, *, due: int = 0, changed: int = 1, keys: Any = None) -> Took:
        """One micro-batch of so many events, of keys chosen at random, that reaches ``due`` more timers.

        Args:
            keys: of the events, in place of some chosen at random.
        """
        self._batches += 1
        self._reached += due
        keys = self._random.integers(0, self.keys, events) if keys is None else keys
        self.events += len(keys)
        times = np.full(len(keys), START_MS + self._reached * SLOT_MS, np.int64)
        batch = self._feed / f"batch-{self._batches:04d}"
        batch.mkdir(parents=True)
        stamps = pa.array(times, pa.timestamp("ms", "UTC"))
        table = pa.table({"k": keys, "changed": np.full(len(keys), changed), "ts": stamps})
        pq.write_table(table, batch / "part-0.parquet")
        hand_over(batch, self._input)
        started = time.perf_counter()
        report = self.engine.run(self.job)
        seconds = time.perf_counter() - started
        (one,) = report.batches
        kept = one.operators["kept"]
        return Took(
            seconds=seconds,
            rows_out=kept.rows_out,
            changed_entries=kept.changed_entries,
            changelog_bytes=kept.changelog_bytes,
            subtasks=[s.seconds for s in kept.subtasks],
        )

    def compact(self) -> None:
        """Fold all changes into the base."""
        self.engine.compact(self.job)

    def check_counts(self, *, events: int | None = None) -> None:
        """Compare what ``Counting`` or ``TOTALS`` hold with all events, and one a key in the beginning.

        Args:
            events: in place of all that there were.

        Raises:
            UnequalResultsError: the numbers of all keys are not that many.
        """
        state, number = ("aggregates", "value.rows") if self._totals else ("number", "value")
        numbers = self.engine.read_state(self.job, "kept", state)
        (row,) = numbers.selectExpr("count(*) AS keys", f"sum({number}) AS events").collect()
        wanted = self.keys + (self.events if events is None else events)
        if (row["keys"], row["events"]) != (self.keys, wanted):
            raise UnequalResultsError(
                f"{row['keys']:,} keys have counted {row['events']:,} events; expected are {self.keys:,} keys and "
                f"{wanted:,} events"
            )

    def close(self) -> None:
        """Let go of the engine."""
        self.engine.close()
