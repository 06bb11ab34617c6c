"""A job whose broadcast elements stand in the total order, a plain loop that says what it gives, and random input."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from state_engine import (
    DataStream,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    TimestampAssigner,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from state_engine.core.time.timer_firing import key_order
from state_engine.core.types.durations import Duration
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.testing import CollectSink

EPOCH = datetime(1970, 1, 1)
"""Event times without a zone are UTC."""
DELAY_MS = {"events": 2, "rules": 0}
FACTORS = MapStateDescriptor("factors", str, int)
ROW = Types.ROW_NAMED(["k", "v", "at"], [Types.STRING(), Types.LONG(), Types.SQL_TIMESTAMP()])
OUT = "what string, k string, v bigint, factor bigint, count bigint, watermark bigint"
FOLLOW_UP_MS = 3
"""A timer whose time is a multiple of four sets another one, so much later."""

Row = tuple[str, int, datetime]
Input = list[tuple[str, Row]]
"""Rows with their source, in their total order."""
Seen = tuple[str, str, int, int, int, int]


class Judge(KeyedBroadcastProcessFunction):
    """Puts out what each element, rule and timer sees: the newest rule, the count of its key, and the watermark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Seen]:
        at = ctx.timestamp()
        assert at is not None
        self.count.update(self.count.value() + 1)
        for timer in timers_of(value.v, at):
            ctx.timer_service().register_event_time_timer(timer)
        yield "element", value.k, value.v, factor(ctx), self.count.value(), ctx.current_watermark()

    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Seen]:
        ctx.get_broadcast_state(FACTORS).put("factor", value.v)
        yield "rule", value.k, value.v, 0, 0, ctx.current_watermark()

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Seen]:
        if timestamp % 4 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + FOLLOW_UP_MS)
        key = ctx.get_current_key()
        yield "timer", key, timestamp, factor(ctx), self.count.value(), ctx.current_watermark()


def factor(ctx: Any) -> int:
    return ctx.get_broadcast_state(FACTORS).get("factor") or 0


def timers_of(v: int, at: int) -> list[int]:
    """The timers that an element sets; one of a time long ago is due at once."""
    return [at + v % 5] + [at - 20] * (v % 7 == 0)


# -- the plain loop ----------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """What is seen, element by element in total order; every subtask puts out what a rule does."""

    parallelism: int
    seen: list[Seen] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    factor: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    timers: set[tuple[int, str]] = field(default_factory=set)

    @property
    def watermark(self) -> int:
        if len(self.newest) < 2:
            return MIN_TIMESTAMP
        return min(at - DELAY_MS[name] - 1 for name, at in self.newest.items())

    def run(self, rows: Input) -> Model:
        for source, (key, v, moment) in rows:
            at, before = milliseconds(moment), self.watermark
            if source == "rules":
                self.factor = v
                self.seen += [("rule", key, v, 0, 0, before)] * self.parallelism
            else:
                self.counts[key] = self.counts.get(key, 0) + 1
                self.seen.append(("element", key, v, self.factor, self.counts[key], before))
                self.timers |= {(timer, key) for timer in timers_of(v, at)}
                self.fire(before, shown=before)
            self.newest[source] = max(at, self.newest.get(source, at))
            self.fire(self.watermark)
        return self

    def fire(self, until: int, shown: int | None = None) -> None:
        while due := [one for one in self.timers if one[0] <= until]:
            time, key = one = min(due, key=lambda timer: (timer[0], key_order(timer[1])))
            self.timers.remove(one)
            if time % 4 == 0:
                self.timers.add((time + FOLLOW_UP_MS, key))
            mark = time if shown is None else shown
            self.seen.append(("timer", key, time, self.factor, self.counts[key], mark))


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


# -- input -------------------------------------------------------------------------------------------------------------


def random_input(seed: int, length: int = 40) -> Input:
    """Rows in total order: by time, rules of one time before its elements."""
    rng = random.Random(seed)
    rows: Input = []
    for number in range(length):
        source = "rules" if rng.random() < 0.3 else "events"
        key = "" if source == "rules" else rng.choice("abcd")
        rows.append((source, (key, number, EPOCH + timedelta(milliseconds=rng.randrange(100, 160)))))
    return sorted(rows, key=lambda one: (one[1][2], one[0] != "rules", one[1][1]))


def random_cuts(seed: int, length: int) -> list[int]:
    """Where micro-batches end."""
    rng = random.Random(seed)
    return [*sorted(rng.sample(range(1, length), rng.randrange(1, 8))), length]


# -- the job -----------------------------------------------------------------------------------------------------------


class AsGiven(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return milliseconds(value.at)


Shape = Callable[[DataStream, str], DataStream]
"""What is done to a stream, by the name of its source, before the two are connected."""


def by_strategy(stream: DataStream, name: str) -> DataStream:
    delay = Duration.of_millis(DELAY_MS[name])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(delay).with_timestamp_assigner(AsGiven())
    return stream.assign_timestamps_and_watermarks(strategy)


def mapped(stream: DataStream, name: str) -> DataStream:
    return stream.map(lambda row: row, output_type=ROW, uid=f"map_{name}")


def job_of(rows: Input, parallelism: int, **options: Any) -> StatefulJob:
    """The job over rows; its sink ``seen`` collects what ``judged`` gives. Options are its, or the job's."""
    own = {name: options.pop(name) for name in _OF_STREAMS if name in options}
    job = StatefulJob("judged", parallelism=parallelism, **options)
    judged(job, rows, **own).sink("seen", CollectSink())
    return job


_OF_STREAMS = ("ordered", "order_by", "shapes", "function", "keyed")


def judged(
    job: StatefulJob,
    rows: Input,
    *,
    ordered: bool = True,
    order_by: dict[str, list[str]] | None = None,
    shapes: Sequence[Shape] = (),
    function: Any = None,
    keyed: bool = True,
) -> DataStream:
    """The outputs of the operator ``judge``, in total order."""
    streams = {}
    for name in DELAY_MS:
        given = [row for source, row in rows if source == name]
        order = (order_by or {}).get(name, ())
        stream = job.from_collection(
            given, ROW, name=name, order_by=order, event_time="at", max_out_of_orderness=DELAY_MS[name]
        )
        for shape in shapes:
            stream = shape(stream, name)
        streams[name] = stream
    events = streams["events"].key_by("k") if keyed else streams["events"]
    both = events.connect(streams["rules"].broadcast(FACTORS), ordered=ordered)
    made = both.process(function or Judge(), uid="judge", output_type=OUT)
    return made.map(lambda row: row, output_type=OUT, uid="seen").set_parallelism(1)


class Refuses(Judge):
    """Raises on negative elements and rules; on these in some subtasks only where it is moody."""

    def __init__(self, *, moody: bool = False, lenient: bool = False) -> None:
        self.moody, self.lenient = moody, lenient

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Seen]:
        yield from super().process_element(value, ctx)
        if value.v < 0 and not self.lenient:
            raise ValueError("a negative element")

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Seen]:
        yield from super().process_broadcast_element(value, ctx)
        if value.v < 0 and not self.lenient and not (self.moody and self.subtask):
            raise ValueError("a negative rule")


def at(ms: int, v: int, key: str = "a") -> Row:
    """A row of a time in milliseconds since 1970."""
    return key, v, EPOCH + timedelta(milliseconds=ms)


def refusable() -> Input:
    """Elements of many keys, so that each subtask has others between the rules; one of each is negative."""
    rows: Input = [("rules", at(n, n)) for n in (10, 20, 30)] + [("rules", at(25, -1))]
    rows += [("events", at(n, n, f"k{n}")) for n in range(12, 40, 2)] + [("events", at(21, -2))]
    return sorted(rows, key=lambda one: (one[1][2], one[0] != "rules"))
