"""The examples of stateful functions in Flink's documents, for every test that runs them, with Spark or without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from state_engine import (
    CheckpointedFunction,
    FlatMapFunction,
    ListCheckpointed,
    ListStateDescriptor,
    RuntimeContext,
    SortedMapStateDescriptor,
    SourceFunction,
    ValueStateDescriptor,
)

AVERAGE = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]
AVERAGE_OUTPUTS = [(1, 4), (1, 5)]
FIRST_ENTRY = [(1, 3), (1, 5), (1, 3), (1, 7), (1, 4), (1, 2), (1, 2), (1, 1)]
FIRST_ENTRY_OUTPUTS = [(1, 3, 1), (1, 3, 1), (1, 3, 2), (1, 3, 2), (1, 3, 2), (1, 2, 1), (1, 2, 2), (1, 1, 1)]
COUNTS = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]
COUNTS_OUTPUTS = [("a", 0), ("b", 0), ("a", 1), ("b", 2), ("a", 4)]


class CountWindowAverage(FlatMapFunction):
    """The average of every two values of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("average", tuple[int, int], default=(0, 0)))

    def flat_map(self, value: tuple[int, int]) -> Iterable[Any]:
        count, total = self.sum.value()
        count, total = count + 1, total + value[1]
        self.sum.update((count, total))
        if count >= 2:
            yield value[0], total // count
            self.sum.clear()


class CountWindowFirstEntry(FlatMapFunction):
    """The smallest value of a key so far, and how often it came."""

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = SortedMapStateDescriptor("sortedmapstate", int, int)
        self.counts = runtime_context.get_sorted_map_state(descriptor)

    def flat_map(self, value: tuple[int, int]) -> Iterable[Any]:
        self.counts.put(value[1], (self.counts.get(value[1]) or 0) + 1)
        first = self.counts.first_entry()
        assert first is not None
        yield value[0], *first


def running_count(value: tuple[str, int], seen: int | None) -> tuple[tuple[str, int], int]:
    """For ``map_with_state``: the output has the state before the element."""
    return (value[0], seen or 0), (seen or 0) + value[1]


class Buffering(CheckpointedFunction):
    """Keeps elements until there are ``threshold`` of them; what is kept survives restarts and rescales."""

    def __init__(self, threshold: int, element_type: Any = int) -> None:
        self.threshold, self.element_type = threshold, element_type
        self.buffered: list[Any] = []

    def groups(self, value: Any) -> Iterator[list[Any]]:
        """One more element; the groups that are full."""
        self.buffered.append(value)
        while len(self.buffered) >= self.threshold:  # after a rescale there may be more
            yield self.buffered[: self.threshold]
            del self.buffered[: self.threshold]

    def snapshot_state(self, context: Any) -> None:
        self.stored.clear()
        for element in self.buffered:
            self.stored.add(element)

    def initialize_state(self, context: Any) -> None:
        descriptor = ListStateDescriptor("buffered_elements", self.element_type)
        self.stored = context.get_operator_state_store().get_list_state(descriptor)
        if context.is_restored():
            self.buffered.extend(self.stored.get())


class CounterSource(SourceFunction, ListCheckpointed):
    """Counts from where it was; fails where it must."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.offset, self.running, self.fail_at = 0, True, fail_at

    def run(self, ctx: Any) -> None:
        lock = ctx.get_checkpoint_lock()
        while self.running:
            with lock:
                if self.offset == self.fail_at:
                    raise RuntimeError("on purpose")
                ctx.collect(self.offset)
                self.offset += 1

    def cancel(self) -> None:
        self.running = False

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.offset]

    def restore_state(self, state: list[int]) -> None:
        for offset in state:
            self.offset = offset
