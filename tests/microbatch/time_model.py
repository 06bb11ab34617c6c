"""A job whose time ends by idleness and by the clock, a plain model of it, and random histories of both.

Two sources go into one keyed function, united; one of them goes into a second one, too, and what the first
puts out into a third. Rows become visible as time passes: an outage lets them pile up.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from state_engine import DataStream, KeyedProcessFunction, StatefulJob, Types, WatermarkStrategy
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.job.graph import SourceNode
from state_engine.sources.base import Element, Slice
from state_engine.sources.collection import CollectionSource
from state_engine.testing import CollectSink

EPOCH = datetime(1970, 1, 1)
"""Event times without a zone are UTC."""
GAP_MS = 20
FOLLOW_UP_MS = 7
"""A timer whose time is a multiple of three sets another one, so much later."""
ROW = Types.ROW_NAMED(["k", "n", "at"], [Types.STRING(), Types.LONG(), Types.SQL_TIMESTAMP()])
OUT = "k string, what string, at bigint, watermark bigint"

Row = tuple[str, int, int]
"""Key, number in the whole history, event time in milliseconds."""
Seen = tuple[str, str, int, int]


@dataclass(frozen=True)
class Visible(CollectionSource):
    """A list of rows of which so many are there by now."""

    there: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def make(cls, node: SourceNode, there: list[int]) -> None:
        """Let the rows of a collection be there as the test says."""
        held = node.source
        assert isinstance(held, CollectionSource)
        node.source = cls(held.name, held.elements, held.kind, held.max_rows_per_batch, there=there)

    def plan(self, spark: Any, elements: Sequence[Element]) -> Slice | None:
        return self._up_to(self.there[0], elements)


class Sessions(KeyedProcessFunction):
    """Puts out each element and each timer, with the watermark that it sees; every element sets a timer."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Seen]:
        at = ctx.timestamp()
        assert at is not None
        ctx.timer_service().register_event_time_timer(at + GAP_MS)
        yield value.k, "row", at, ctx.timer_service().current_watermark()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Seen]:
        if timestamp % 3 == 0 and timestamp < 10_000:
            ctx.timer_service().register_event_time_timer(timestamp + FOLLOW_UP_MS)
        yield ctx.get_current_key(), "timer", timestamp, ctx.timer_service().current_watermark()


@dataclass(frozen=True)
class Source:
    """A source of a history."""

    rows: list[Row]
    delay_ms: int = 0
    idle_after_ms: int | None = None
    clock_delay_ms: int | None = None
    cut: int | None = None


@dataclass(frozen=True)
class Step:
    """One call of the engine: the clock, how many rows of each source are there by then, and what happens before."""

    clock_ms: int
    there: dict[str, int]
    restarts: bool = False
    back: int = 0


@dataclass(frozen=True)
class History:
    """What happens to one job."""

    sources: dict[str, Source]
    steps: list[Step]


def random_history(seed: int) -> History:
    """Rows of three keys, idle spells, outages, clocks and cuts."""
    chance = random.Random(seed)
    sources, visible, number = {}, dict[str, list[int]](), 0
    for name in ("a", "b"):
        rows, at_ms, arrives = [], chance.randrange(100), list[int]()
        for _ in range(chance.randrange(3, 14)):
            at_ms += chance.choice([0, 1, 3, 10, 40, 150])
            number += 1
            rows.append(("xyz"[chance.randrange(3)], number, max(0, at_ms - chance.choice([0, 0, 5, 30]))))
            arrives.append(at_ms + chance.choice([0, 2, 20, 60]))
        sources[name] = Source(
            rows,
            delay_ms=chance.choice([0, 0, 10]),
            idle_after_ms=chance.choice([None, 50, 120]),
            clock_delay_ms=chance.choice([None, None, 0, 30, 100]),
            cut=chance.choice([None, None, 1, 2]),
        )
        visible[name] = [max(arrives[: i + 1]) for i in range(len(arrives))]  # a list is read from its front
    steps, clock_ms = [], 0
    while clock_ms < 1_100:
        clock_ms += chance.choice([5, 20, 20, 60, 300])  # the last one is an outage
        there = {name: sum(at <= clock_ms for at in arrives) for name, arrives in visible.items()}
        steps.append(Step(clock_ms, there, chance.random() < 0.2, chance.choice([0] * 12 + [1, 3])))
    return History(sources, steps)


def timed_job(history: History, there: dict[str, list[int]], parallelism: int) -> StatefulJob:
    """The job with sinks that collect; ``there`` says how many rows of each source it sees."""
    job = StatefulJob("timed", parallelism=parallelism)
    for name, out in streams_of(job, history, there).items():
        out.sink(name, CollectSink())
    return job


def streams_of(job: StatefulJob, history: History, there: dict[str, list[int]]) -> dict[str, DataStream]:
    """Add sources and operators; what the operators put out."""
    streams = {}
    for name, source in history.sources.items():
        rows = [(k, n, _datetime(at)) for k, n, at in source.rows]
        by_strategy = source.idle_after_ms if name == "b" else None  # which says the same
        stream = job.from_collection(
            rows,
            ROW,
            name=name,
            event_time="at",
            order_by=["at", "n"],
            max_out_of_orderness=source.delay_ms,
            idle_after=None if by_strategy is not None else source.idle_after_ms,
            watermark="rows" if source.clock_delay_ms is None else "clock",
            clock_delay=source.clock_delay_ms,
            max_rows_per_batch=source.cut,
        )
        if by_strategy is not None:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness(source.delay_ms)
            stream = stream.assign_timestamps_and_watermarks(strategy.with_idleness(by_strategy))
        Visible.make(job.sources[name], there[name])
        streams[name] = stream
    both = streams["a"].union(streams["b"]).key_by("k").process(Sessions(), uid="both", output_type=OUT)
    one = streams["b"].key_by("k").process(Sessions(), uid="one", output_type=OUT)
    behind = both.key_by("k").process(Marks(), uid="behind", output_type=OUT)
    return {"both": both, "one": one, "behind": behind}


class Marks(KeyedProcessFunction):
    """Passes on what an operator put out, with the watermark that it sees itself."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Seen]:
        yield value.k, value.what, value.at, ctx.timer_service().current_watermark()


@dataclass
class Operator:
    """One operator of the model: the sources that it reads, its watermark, and timers by key.

    A timer that was due when it was set, or when the batch began, sees the watermark of then: it is kept beside it.
    """

    reads: tuple[str, ...]
    watermark_ms: int | None = None
    timers: dict[str, dict[int, int]] = field(default_factory=dict)
    out: list[Seen] = field(default_factory=list)

    def begin(self, start_ms: int) -> None:
        """A batch begins."""
        self.timers = {key: {at: max(at, start_ms) for at in times} for key, times in self.timers.items()}

    def set(self, key: str, at: int, now_ms: int) -> None:
        """Set a timer."""
        self.timers.setdefault(key, {}).setdefault(at, max(at, now_ms))

    def fire(self, key: str, until_ms: int) -> None:
        """Fire what is due of a key, in the order of time."""
        waiting = self.timers.setdefault(key, {})
        while waiting and min(waiting) <= until_ms:
            at = min(waiting)
            shown_ms = waiting.pop(at)
            if at % 3 == 0 and at < 10_000:
                self.set(key, at + FOLLOW_UP_MS, shown_ms)
            self.out.append((key, "timer", at, shown_ms))


@dataclass
class Model:
    """A plain loop over the rows; what the engine must be equal to, batch by batch."""

    history: History
    read: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    watermarks: dict[str, int | None] = field(default_factory=lambda: {"a": None, "b": None})
    last_ms: dict[str, int | None] = field(default_factory=lambda: {"a": None, "b": None})
    both: Operator = field(default_factory=lambda: Operator(("a", "b")))
    one: Operator = field(default_factory=lambda: Operator(("b",)))
    batches: list[dict[str, Any]] = field(default_factory=list)
    path: list[dict[str, Any]] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)

    def restore(self, back: int) -> bool:
        """Go back by so many micro-batches of the path; whether there are as many."""
        if back < 1 or len(self.path) <= back:
            return False
        del self.path[-back:], self.states[-back:]
        self.read, self.watermarks, self.last_ms, self.both, self.one = deepcopy(self.states[-1])
        return True

    def run(self, step: Step) -> None:
        """All batches of a step."""
        while self._batch(step):
            pass

    def _batch(self, step: Step) -> bool:
        taken = {n: self._taken(n, step.there[n]) for n in self.read}
        idle, floors = set(), dict[str, int]()
        for name, source in self.history.sources.items():
            more = self.read[name] + len(taken[name]) < step.there[name]
            last_ms = self.last_ms[name]
            waits = source.idle_after_ms is not None and not taken[name] and last_ms is not None
            if waits and step.clock_ms - (last_ms or 0) >= (source.idle_after_ms or 0):
                idle.add(name)
            if source.clock_delay_ms is not None and not more:
                floors[name] = step.clock_ms - source.clock_delay_ms - 1
        if not any(taken.values()) and not self._due(idle, floors):
            return False
        for operator in (self.both, self.one):
            self._run(operator, taken, idle, floors)
        for name, rows in taken.items():
            self.read[name] += len(rows)
            self.watermarks[name] = self._after(name, rows, floors)
            if rows or self.last_ms[name] is None:
                self.last_ms[name] = step.clock_ms
        self.batches.append(
            {"clock": step.clock_ms, "idle": idle, "watermarks": dict(self.watermarks), "slowest": self._slowest(),
             "both": sorted(self.both.out), "one": sorted(self.one.out)}
        )  # fmt: skip
        self.both.out, self.one.out = [], []
        self.path.append(self.batches[-1])
        self.states.append(deepcopy((self.read, self.watermarks, self.last_ms, self.both, self.one)))
        return True

    def _slowest(self) -> int | None:
        """The watermark of the row: that of the source that is furthest behind."""
        known = [at for at in self.watermarks.values() if at is not None]
        return min(known) if len(known) == len(self.watermarks) else None

    def _taken(self, name: str, there: int) -> list[Row]:
        source, read = self.history.sources[name], self.read[name]
        end = there if source.cut is None else min(there, read + source.cut)
        return source.rows[read:end]

    def _after(self, name: str, rows: list[Row], floors: dict[str, int]) -> int | None:
        reached = [self.watermarks[name], floors.get(name)]
        reached += [at - self.history.sources[name].delay_ms - 1 for _, _, at in rows]
        return max((w for w in reached if w is not None), default=None)

    def _combined(self, operator: Operator, by_source: dict[str, int | None], idle: set[str]) -> int | None:
        active = [by_source[name] for name in operator.reads if name not in idle]
        known = [w for w in active if w is not None]
        reached = min(known) if known and len(known) == len(active) else None
        return max((w for w in (operator.watermark_ms, reached) if w is not None), default=None)

    def _due(self, idle: set[str], floors: dict[str, int]) -> bool:
        after = {name: self._after(name, [], floors) for name in self.read}
        for operator in (self.both, self.one):
            end_ms = self._combined(operator, after, idle)
            if end_ms is not None and any(t <= end_ms for ts in operator.timers.values() for t in ts):
                return True
        return False

    def _run(
        self, operator: Operator, taken: dict[str, list[Row]], idle: set[str], floors: dict[str, int]
    ) -> None:
        now = dict(self.watermarks)
        start = self._combined(operator, now, idle)
        start_ms = MIN_TIMESTAMP if start is None else start
        operator.begin(start_ms)
        rows = [(at, n, k, name) for name in operator.reads for k, n, at in taken[name]]
        for at, _, key, name in sorted(rows):
            combined = self._combined(operator, now, idle)
            before_ms = MIN_TIMESTAMP if combined is None else max(start_ms, combined)
            operator.fire(key, before_ms)
            operator.set(key, at + GAP_MS, before_ms)
            operator.out.append((key, "row", at, before_ms))
            moved = at - self.history.sources[name].delay_ms - 1
            known = now[name]
            now[name] = moved if known is None else max(known, moved)
        after = {name: self._after(name, taken[name], floors) for name in self.read}
        operator.watermark_ms = self._combined(operator, after, idle)
        if operator.watermark_ms is not None:
            for key in list(operator.timers):
                operator.fire(key, operator.watermark_ms)


def _datetime(at_ms: int) -> datetime:

    return EPOCH + timedelta(milliseconds=at_ms)
