"""What ``Over`` keeps of the rows of a key whose time is over: rows, accumulators of tiles of time, or one of all.

Each class computes the aggregates of some reach for a row of a time: of the rows that are kept, and of others behind
all of those, in the order of their times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from state_engine.core.functions.runtime_context import RuntimeContext, TaskInfo
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.aggregates.group_accumulators import GroupAccumulators, Kept
from state_engine.operators.aggregates.group_states import Group
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.over.levels import level_of, levels_of
from state_engine.operators.places import PLACE, number_behind

ROWS, SPANS, TILES = "rows", "spans", "tiles"
"""Names of the states: maps, of which the first and the last one are sorted."""
Timed = tuple[int, Any]
"""A row and its event time in front."""


class KeptRows:
    """The rows themselves, of the longest span, and the last ones.

    Args:
        plan: of the aggregates that are computed of rows, over the fields that are kept; None where there are none.
        sums: of the aggregates of spans that take rows back; None where there are none.
        span_ms: the longest one; None without.
        number: how many last rows are kept, at least; 0 without.
    """

    def __init__(
        self,
        plan: AggregatePlan | None,
        sums: SpanSums | None,
        fields: StructType,
        span_ms: int | None,
        number: int,
    ) -> None:
        self._in_memory, self.sums = None if plan is None else InMemory(plan), sums
        self._span_ms, self._number = span_ms, number
        self.descriptor = SortedMapStateDescriptor(ROWS, PLACE, fields)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._kept = runtime_context.get_sorted_map_state(self.descriptor)
        if self._in_memory is not None:
            self._in_memory.open(runtime_context)
        if self.sums is not None:
            self.sums.open(runtime_context, self._between)

    def close(self) -> None:
        if self._in_memory is not None:
            self._in_memory.close()

    def add(self, at: int, row: Any) -> None:
        """Keep a row, which is not in front of any other."""
        if self.sums is not None:
            self.sums.add(at, row)
        self._kept.put((at, number_behind(self._kept, (at,))), row)

    def of_span(self, span_ms: int, at: int, others: Sequence[Timed]) -> list[Any]:
        """The aggregates of the rows that are at most this span before a time."""
        assert self._in_memory is not None
        first = _first(span_ms, at)
        rows = [(place[0], row) for place, row in self._kept.tail_items((first, 0))]
        return self._in_memory.of([*rows, *(one for one in others if one[0] >= first)])

    def sums_of_span(self, span_ms: int, at: int, others: Sequence[Timed]) -> list[Any]:
        """The same of the aggregates that take rows back."""
        assert self.sums is not None
        return self.sums.of_span(span_ms, at, others)

    def of_last(self, number: int, behind: int, others: Sequence[Timed], *, alone: bool = False) -> list[Any]:
        """The aggregates of so many last rows, without the last ones that stand behind these.

        Args:
            alone: of the other rows only.
        """
        assert self._in_memory is not None
        kept = [] if alone else [(place[0], row) for place, row in self._kept.items()]
        rows = [*kept, *others]
        end = len(rows) - behind
        return self._in_memory.of(rows[max(end - number, 0) : end])

    def expire(self, at: int) -> None:
        """Drop the rows that no row of a time, or behind it, has in reach."""
        if self.sums is not None:
            self.sums.expire(at)
        for place in self._in_no_last(at):
            self._kept.remove(place)

    def clear(self) -> None:
        self._kept.clear()
        if self.sums is not None:
            self.sums.clear()

    def _between(self, first: int, end: int | None) -> list[Any]:
        """The rows from one time on and, where there is another one, before that."""
        if end is None:
            return [row for _, row in self._kept.tail_items((first, 0))]
        return [row for _, row in self._kept.sub_items((first, 0), (end, 0))]

    def empty_at(self) -> int | None:
        """The time for which more goes than now, and all that goes by time; None where nothing does."""
        if self._span_ms is None:
            return None
        newest = self._in_no_last(None)[-1:] if self._number else [*_key(self._kept.last_entry())]
        return int(newest[0][0]) + self._span_ms + 1 if newest else None

    def _in_no_last(self, at: int | None) -> list[Any]:
        """Places of rows that are not among the last ones, and lie before all spans of a time."""
        if at is None or self._span_ms is None:
            return list(self._kept.keys())[: -self._number]
        gone = [place for place, _ in self._kept.head_items((max(at - self._span_ms, MIN_TIMESTAMP), 0))]
        if not self._number or not gone:
            return gone
        return gone[: max(len(list(self._kept.keys())) - self._number, 0)]


class SpanSums:
    """The accumulators of the rows in each span before the newest row, for aggregates that take rows back.

    A row is added once to those of each span, and taken back once. It has left a span before another one comes, so a
    sum is never of more rows than a span has.

    Args:
        plan: of aggregates without values beside their accumulators.
        spans_ms: those that are asked for.
    """

    def __init__(self, plan: AggregatePlan, spans_ms: Sequence[int]) -> None:
        self._groups, self._spans_ms = GroupAccumulators(plan), tuple(spans_ms)
        kept = plan.state.value_type
        assert isinstance(kept, StructType)
        self.descriptor = MapStateDescriptor(
            SPANS, int, StructType(["since", *kept.names], [BIGINT, *kept.types])
        )

    def open(self, runtime_context: RuntimeContext, between: Callable[[int, int | None], list[Any]]) -> None:
        """Get the state; ``between`` gives the rows that are kept, by time."""
        self._spans = runtime_context.get_map_state(self.descriptor)
        self._between = between

    def add(self, at: int, row: Any) -> None:
        """Add a row, which is not kept yet, and not in front of any other."""
        for span in self._spans_ms:
            first = _first(span, at)
            self._spans.put(span, (first, *self._groups.added(self._since(span, first), row, at)))

    def of_span(self, span_ms: int, at: int, others: Sequence[Timed]) -> list[Any]:
        """The aggregates of the rows that are at most this span before a time."""
        first = _first(span_ms, at)
        kept = self._since(span_ms, first)
        for time, row in others:
            if time >= first:
                kept = self._groups.added(kept, row, time)
        assert kept is not None
        return self._groups.results(kept)

    def expire(self, at: int) -> None:
        """Take the rows back that no row of a time, or behind it, has in a span."""
        for span in self._spans_ms:
            first, stored = _first(span, at), self._spans.get(span)
            if stored is None or stored[0] >= first:
                continue
            kept = self._since(span, first)
            if kept is None:
                self._spans.remove(span)
            else:
                self._spans.put(span, (first, *kept))

    def clear(self) -> None:
        self._spans.clear()

    def _since(self, span: int, first: int) -> Kept | None:
        """The accumulators of the rows that are kept, from a time on; None of none."""
        stored = self._spans.get(span)
        if stored is None or None in tuple(stored):  # not there yet for rows that are, or not all aggregates
            return self._added(None, self._between(first, None), first)
        since, *accumulators = stored
        kept: Kept | None = tuple(accumulators)
        for row in self._between(since, first) if since < first else ():
            kept = self._groups.taken_back(kept, row)
        return kept

    def _added(self, kept: Kept | None, rows: Sequence[Any], at: int) -> Kept | None:
        for row in rows:
            kept = self._groups.added(kept, row, at)
        return kept


def _first(span_ms: int, at: int) -> int:
    return max(at - span_ms, MIN_TIMESTAMP)


def _key(entry: tuple[Any, Any] | None) -> list[Any]:
    return [] if entry is None else [entry[0]]


class Tiles:
    """Accumulators of tiles of time, for each level that a span has.

    A span of ``d`` has tiles of its level, of the length ``tile · 4ⁿ``: the longest ones that leave it at least 16 of
    them. Its rows begin with that tile which ``at - d`` lies in, so it is at most one tile longer than ``d``. A key
    has at most 66 tiles of a level. Decision 0115.

    Args:
        tile_ms: of the lowest level.
        spans_ms: those that are asked for.
    """

    def __init__(self, plan: AggregatePlan, tile_ms: int, spans_ms: Sequence[int]) -> None:
        self._tile_ms, self.levels = tile_ms, levels_of(spans_ms, tile_ms)
        self._groups = {
            level.number: GroupAccumulators(plan, in_windows=True, apart=f"_{TILES}_{level.number}")
            for level in self.levels
        }
        self._in_memory = InMemory(plan)
        kept = plan.state.value_type
        self.descriptor = SortedMapStateDescriptor(
            TILES, StructType(["level", "start"], [BIGINT, BIGINT]), kept
        )

    def open(self, runtime_context: RuntimeContext) -> None:
        self._in_memory.open(runtime_context)
        self._tiles = runtime_context.get_sorted_map_state(self.descriptor)
        for groups in self._groups.values():
            groups.open_states(runtime_context)

    def close(self) -> None:
        self._in_memory.close()

    def add(self, at: int, row: Any) -> None:
        for level in self.levels:
            start = max(level.start(at), MIN_TIMESTAMP)
            kept = self._tiles.get((level.number, start))
            self._tiles.put((level.number, start), self._groups[level.number].added(kept, row, at, start))

    def of_span(self, span_ms: int, at: int, others: Sequence[Timed]) -> list[Any]:
        """The aggregates of the rows of the span before a time, from the begin of a tile on."""
        number = level_of(span_ms, self._tile_ms)
        level = next(replace(one, span_ms=span_ms) for one in self.levels if one.number == number)
        first, groups = level.first(at), self._groups[number]
        of_level = self._tiles.sub_items((number, first), (number + 1, MIN_TIMESTAMP))
        within = [one for one in others if one[0] >= first]
        return self._in_memory.of_parts(
            groups, [tuple(tile) for _, tile in of_level], (first, at + 1), within
        )

    def expire(self, at: int) -> None:
        """Drop the tiles that no row of a time, or behind it, has in reach."""
        for level in self.levels:
            gone = self._tiles.sub_items((level.number, MIN_TIMESTAMP), (level.number, level.first(at)))
            for (_, start), _ in list(gone):
                self._tiles.remove((level.number, start))
                self._groups[level.number].forget(start)

    def empty_at(self) -> int | None:
        """The time for which nothing that is kept is still in reach; None where nothing is kept."""
        newest = ((level, self._newest(level.number)) for level in self.levels)
        return max((start + level.reach_ms for level, start in newest if start is not None), default=None)

    def _newest(self, number: int) -> int | None:
        if number == self.levels[-1].number:
            entry = self._tiles.last_entry()
            return None if entry is None or entry[0][0] != number else int(entry[0][1])
        of_level = self._tiles.sub_items((number, MIN_TIMESTAMP), (number + 1, MIN_TIMESTAMP))
        return next((int(key[1]) for key, _ in deque(of_level, maxlen=1)), None)


class AllRows:
    """One accumulator of all rows of a key."""

    def __init__(self, plan: AggregatePlan) -> None:
        self._groups, self._in_memory = GroupAccumulators(plan), InMemory(plan, in_windows=False)
        self._descriptor = plan.state

    def open(self, runtime_context: RuntimeContext) -> None:
        self._in_memory.open(runtime_context)
        self._groups.open_states(runtime_context)
        self._kept = runtime_context.get_state(self._descriptor)

    def close(self) -> None:
        self._in_memory.close()

    def clear(self) -> None:
        self._kept.clear()
        self._groups.forget(None)

    def add(self, at: int, row: Any) -> None:
        self._kept.update(self._groups.added(self._kept.value(), row, at))

    def of_all(self, others: Sequence[Timed], *, alone: bool = False) -> list[Any]:
        """The aggregates of all rows; with ``alone`` of the other rows only."""
        kept = None if alone else self._kept.value()
        return self._in_memory.of_all(self._groups, None if kept is None else tuple(kept), others)


class InMemory:
    """Accumulators of some rows for a moment, also together with those in a state."""

    def __init__(self, plan: AggregatePlan, *, in_windows: bool = True) -> None:
        self._groups = GroupAccumulators(plan, in_windows=in_windows)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the functions of users, which all accumulators of a plan share."""
        context = KeyContext()
        context.key = 0
        store = KeyedStateStore("", context, lambda descriptor: {})
        self._groups.open_states(RuntimeContext(TaskInfo(""), store))
        self._groups.open_functions(runtime_context)

    def close(self) -> None:
        self._groups.close()

    def of(self, rows: Sequence[Timed]) -> list[Any]:
        """The aggregates of some rows, at least one."""
        kept = self._added(None, rows, 0)
        return self._groups.results(kept, (0, 1))

    def of_parts(
        self, groups: GroupAccumulators, parts: list[Kept], span: tuple[int, int], others: Sequence[Timed]
    ) -> list[Any]:
        """The aggregates of groups within a span, and of other rows, which come behind all starts of these."""
        if not others:
            whole = groups.merged(parts, span)
            assert whole is not None
            return groups.results(whole, span)
        self._groups.copy(groups, span)
        kept = self._added(None, others, span[1] - 1)
        whole = self._groups.merged([*parts, kept], span)
        assert whole is not None
        return self._groups.results(whole, span)

    def of_all(self, groups: GroupAccumulators, kept: Kept | None, others: Sequence[Timed]) -> list[Any]:
        """The aggregates of all rows of a key, and of others behind them."""
        if kept is not None and not others:
            return groups.results(kept)
        self._groups.copy(groups, None)
        return self._groups.results(self._added(kept, others, None))

    def _added(self, kept: Kept | None, rows: Sequence[Timed], group: Group) -> Kept:
        for at, row in rows:
            kept = self._groups.added(kept, row, at, group)
        assert kept is not None
        return kept
