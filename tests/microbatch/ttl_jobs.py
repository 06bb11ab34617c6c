"""A function that keeps an item in a state of every kind, with a time to live, and shows what it sees of each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

from state_engine import (
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    SortedMapStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from tests.core.state.aggregates import Sum
from tests.core.state.steps import with_ttl

TTL_MS = 30
EVENT = "at timestamp, k string, what string, n bigint"
SEEN = "k string, seen string"
OPERATIONS = (
    "write",
    "add",
    "write",
    "add",
    "read",
    "read",
    "other",
    "pass",
    "remove",
    "timer",
    "alarm",
    "fail",
)


class Event(NamedTuple):
    """What a key does at an event time."""

    at_ms: int
    k: str
    what: str
    n: int


class TtlSettings(NamedTuple):
    """The settings of a time to live."""

    on_read: bool
    shows_expired: bool
    event_time: bool
    cleanup: str

    def config(self) -> StateTtlConfig:
        builder = StateTtlConfig.new_builder(Time.milliseconds(TTL_MS))
        if self.on_read:
            builder.update_ttl_on_read_and_write()
        if self.shows_expired:
            builder.return_expired_if_not_cleaned_up()
        if self.event_time:
            builder.use_event_time()
        return CLEANUPS[self.cleanup](builder).build()


CLEANUPS: dict[str, Any] = {
    "default": lambda b: b,
    "off": lambda b: b.disable_cleanup_in_background(),
    "incremental": lambda b: b.disable_cleanup_in_background().cleanup_incrementally(3, False),
    "every record": lambda b: b.disable_cleanup_in_background().cleanup_incrementally(3, True),
    "filter": lambda b: b.disable_cleanup_in_background().cleanup_in_rocksdb_compact_filter(2),
    "full snapshot": lambda b: b.cleanup_full_snapshot(),
}
EVERY_SETTING = [TtlSettings(*of) for of in product((False, True), (False, True), (False, True), CLEANUPS)]


class Keeps(KeyedProcessFunction):
    """Does to all states what an event says, and puts out what it sees of them; see ``OPERATIONS``."""

    def __init__(self, settings: TtlSettings) -> None:
        self._settings = settings

    def open(self, runtime_context: RuntimeContext) -> None:
        config, get = self._settings.config(), runtime_context
        self.value = get.get_state(with_ttl(ValueStateDescriptor("value", int), config))
        self.list = get.get_list_state(with_ttl(ListStateDescriptor("list", int), config))
        self.map = get.get_map_state(with_ttl(MapStateDescriptor("map", int, int), config))
        self.sorted = get.get_sorted_map_state(with_ttl(SortedMapStateDescriptor("sorted", int, int), config))
        reducing = ReducingStateDescriptor("reducing", lambda a, b: a + b, int)
        self.reducing = get.get_reducing_state(with_ttl(reducing, config))
        aggregating = AggregatingStateDescriptor("aggregating", Sum(), int)
        self.aggregating = get.get_aggregating_state(with_ttl(aggregating, config))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        what, n = value.what, value.n
        if what == "write":
            self.value.update(n)
            self.list.update([n])
            self.map.put(n % 3, n)
            self.sorted.put(n % 3, n)
        elif what == "add":
            self.list.add(n)
            self.map.put(n % 3, n)
            self.reducing.add(n)
            self.aggregating.add(n)
        elif what == "remove":
            self.map.remove(n % 3)
            self.reducing.clear()
        elif what == "timer":
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + n)
        elif what == "alarm":
            ctx.timer_service().register_processing_time_timer(ctx.current_processing_time() + 1 + n)
        elif what == "other":
            yield (
                value.k,
                f"{what} {n}: {self.map.get(n % 3)} {self.sorted.first_entry()} {self.map.is_empty()}",
            )
        elif what in ("read", "fail"):
            yield value.k, f"{what} {n}: {self._seen()}"
        if what == "fail":
            raise ValueError("on purpose")

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), f"timer {timestamp}: {self._seen()}"

    def _seen(self) -> str:
        maps = list(self.map.items()), list(self.sorted.items())
        return f"{self.value.value()} {list(self.list.get())} {maps} {self.reducing.get()} {self.aggregating.get()}"
