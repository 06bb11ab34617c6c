"""One row of each key: ``FirstRows`` and ``FirstRowsInTime`` keep the first one, ``NewestRow`` the last one.

Mirrors ``RowTimeDeduplicateKeepFirstRowFunction`` and ``RowTimeDeduplicateFunction`` of Flink's table runtime, and
``dropDuplicatesWithinWatermark`` of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.core.types.row import Row, RowKind
from state_engine.core.types.type_information import TypeInformation, TypeLike
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.column_duplicates import ColumnFirstRow, ColumnFirstRowsWithin
from state_engine.operators.column_last_rows import ColumnNewestRow
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.keyed_rows import ROW_TIME, KeyedRows, same, with_time
from state_engine.operators.last_rows import ROW, LastRow
from state_engine.operators.lateness import Lateness, LateRows, plus, time_of
from state_engine.operators.waiting import WaitingRows

SEEN = "seen"
"""Name of the state with the times of the rows that are kept, or of whether there was one."""


class FirstRow(ForgettableFunction):
    """Emits the first row of each key in the total order, and no other one.

    State: ``seen``, one entry a key, for ever or until the key is forgotten.
    """

    shape = "first row"
    shows = (SEEN, SEEN)
    sees_time = False

    def __init__(self) -> None:
        self._descriptor = ValueStateDescriptor(SEEN, bool)

    def vectorized(self) -> ColumnFirstRow:
        """The same over columns, which a subtask runs where it can."""
        return ColumnFirstRow(self._descriptor)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if self._seen.value():
            return []
        self._seen.update(True)
        return [value]

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """The next row of the key is its first one again; nothing is taken back."""
        self._seen.clear()
        return []


class KeptTimes:
    """The times of the rows that are kept: a row nearer than ``within`` to one of them is a duplicate.

    Duplicates are not kept, so they make no other row a duplicate. A time goes when the watermark is
    ``time + within − 1 + lateness``: all rows that are near enough have come then.

    Args:
        within_ms: rows this far apart are different ones; None where all rows of a key are the same one.
    """

    def __init__(self, within_ms: int | None, lateness: Lateness) -> None:
        self._within_ms, self._lateness = within_ms, lateness
        self.descriptor = SortedMapStateDescriptor(SEEN, BIGINT, bool)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_sorted_map_state(self.descriptor)

    def keeps(self, at: int, ctx: KeyedContext) -> bool:
        """Keep the time of a row, unless the row is a duplicate."""
        within = self._within_ms
        near = self._seen.items() if within is None else self._seen.sub_items(at - within + 1, at + within)
        if next(iter(near), None) is not None:
            return False
        self._seen.put(at, True)
        if within is not None:
            ctx.timer_service().register_event_time_timer(self._goes(at, within))
        return True

    def drop(self, watermark: int) -> None:
        """Drop the times that all rows near them have come to."""
        within = self._within_ms
        if within is None:
            return
        while (first := self._seen.first_entry()) is not None and self._goes(first[0], within) <= watermark:
            self._seen.remove(first[0])

    def _goes(self, at: int, within: int) -> int:
        return plus(self._lateness.ends(at), within - 1)


class FirstRowsWithin(KeyedProcessFunction):
    """Emits a row at its place in the total order, unless a row nearer than ``within`` came out before it.

    Args:
        within_ms: rows nearer than this are duplicates, in both directions of event time.
        lateness: when a row is too late, and where it goes.

    State: ``seen``, the times of rows that came out, each until the watermark is
    ``time + within − 1 + lateness``: at most one entry for each ``within`` of the time between.

    Raises:
        ValueTypeError: of a row, when it is processed: it has no event time.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> first = FirstRowsWithin(10, Lateness(100))
        >>> harness = KeyedHarness(first, key_by=lambda at: "a", timestamp_of=lambda at: at)
        >>> harness.process([50, 45, 40, 60, 55, 31])
        [50, 40, 60]
    """

    shows = (SEEN, "kept_at")

    def __init__(self, within_ms: int, lateness: Lateness) -> None:
        self._kept, self._late, self._lateness = (
            KeptTimes(within_ms, lateness),
            LateRows(lateness.late_to),
            lateness,
        )
        self.late_to, self.shape = lateness.late_to, shape_of(within_ms, lateness)
        self.holds_back_ms = lateness.ms
        self._within_ms = within_ms

    def vectorized(self) -> ColumnFirstRowsWithin:
        """The same over columns, which a subtask runs where it can."""
        return ColumnFirstRowsWithin(self._within_ms, self._lateness, self._kept.descriptor)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._kept.open(runtime_context)
        self._late.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """The row, unless it is a duplicate; a row that is too late goes to its side output."""
        at = time_of(ctx)
        if self._lateness.is_over(at, ctx.current_watermark()):
            return self._late.outputs(value, ctx)
        return [value] if self._kept.keeps(at, ctx) else []

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Drop the times that all rows near them have come to."""
        self._kept.drop(timestamp)
        return []


class FirstRowsInTime(KeyedProcessFunction):
    """The same by event time: rows wait until all of their time have come, and the earliest one comes out.

    Args:
        within_ms: as for ``FirstRowsWithin``; None keeps one row of each key, for ever.

    State: ``waiting``, the rows within the lateness of the watermark, and ``seen``.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.testing import KeyedHarness
        >>> first = FirstRowsInTime(to_type("bigint", parameter="rows"), 10, Lateness(20))
        >>> harness = KeyedHarness(first, key_by=lambda at: "a", timestamp_of=lambda at: at)
        >>> harness.process([50, 45, 40, 60, 55, 31]), harness.drain()
        ([], [31, 45, 55])
    """

    def __init__(self, row_type: TypeInformation, within_ms: int | None, lateness: Lateness) -> None:
        self._waiting, self._kept = WaitingRows(row_type, lateness), KeptTimes(within_ms, lateness)
        self.late_to, self.shape = lateness.late_to, shape_of(within_ms, lateness, in_time=True)
        self.holds_back_ms, self.shows = lateness.ms, FirstRowsWithin.shows

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting.open(runtime_context)
        self._kept.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Let the row wait; one that is too late goes to its side output."""
        return self._waiting.add(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """The rows whose time has come, without duplicates."""
        for at, row in self._waiting.due(timestamp, ctx):
            if self._kept.keeps(at, ctx):
                yield Timestamped(row, at)
        self._kept.drop(timestamp)


def shape_of(within_ms: int | None, lateness: Lateness, *, in_time: bool = False) -> str:
    """What the times in ``seen`` mean: another distance would miss duplicates.

    Example:
        >>> shape_of(10, Lateness()), shape_of(None, Lateness(5), in_time=True)
        ('first within 10 lateness 0', 'first in time lateness 5')
    """
    distance = "" if within_ms is None else f" within {within_ms}"
    return f"first{' in time' if in_time else ''}{distance} {lateness.form}"


class NewestRow(ForgettableFunction):
    """Emits the changes of the last row of each key: an insert, and then updates.

    By default the last row is the one with the greatest event time, and of several the last one in the total order.

    Args:
        row_type: of the elements: records with named columns.
        key: the columns that the stream is keyed by. Empty where a function gives the key.
        sequence: columns that order the rows of a key instead of their event time.
        by_time: whether rows are ordered by event time; False, without a sequence, for the total order.
        changing: whether rows may be updated and deleted, see ``LastRow``.

    State: ``row``, one entry a key, and of changing rows with a sequence ``deleted``, for ever or until the key is
    forgotten.

    Raises:
        ConfigurationError: as ``LastRow`` does; or a column has the name of the time that is kept with a row.
        ValueTypeError: of a row, when it is processed: it has not this type, no sequence, or no event time.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> last = NewestRow("k string, v bigint", key=["k"], by_time=True)
        >>> harness = KeyedHarness(last, key_by=lambda row: row.k, timestamp_of=lambda row: row.v)
        >>> changes = harness.process([Row(k="a", v=5), Row(k="a", v=3), Row(k="a", v=7)])
        >>> [(str(kind), row) for kind, row in changes]
        [('+I', ('a', 5)), ('-U', ('a', 5)), ('+U', ('a', 7))]
    """

    emits_changes = True
    shows = (ROW, ROW)

    def __init__(
        self,
        row_type: TypeLike,
        *,
        key: Iterable[str] = (),
        sequence: str | Sequence[str] | None = None,
        by_time: bool = False,
        changing: bool = False,
    ) -> None:
        key = tuple(key)
        self._rows = KeyedRows(row_type, apart=key, operator="drop_duplicates")
        self._by_time, self.accepts_changes = by_time, changing
        columns: TypeInformation = self._rows.columns
        if by_time:
            columns, sequence = with_time(self._rows.columns, operator="drop_duplicates"), ROW_TIME
        self._last = LastRow(columns, key=key, sequence=sequence)
        self.shape = shape_of_last(sequence, by_time=by_time)
        self._key = key
        self._sequence = (sequence,) if isinstance(sequence, str) else tuple(sequence or ())

    def vectorized(self) -> ColumnNewestRow | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        states = None if self.accepts_changes else self._last.states_over_columns
        if states is None:
            return None
        return ColumnNewestRow(*states, key=self._key, sequence=self._sequence, by_time=self._by_time)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last.open(runtime_context)

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Keep the row if it is the last one, or take it back; what that changes."""
        row: tuple[Any, ...] = self._rows.normal(value)
        before = self._last.kept
        self._last.process_element((*row, time_of(ctx)) if self._by_time else row, ctx)
        return self._changes(before, self._last.kept, ctx)

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear what is kept of the key; the delete of its row."""
        before = self._last.kept
        self._last.forget()
        return self._changes(before, None, ctx)

    def _changes(self, before: Row | None, after: Row | None, ctx: KeyedContext) -> list[Any]:
        if same(before, after):
            return []
        if before is None or after is None:
            given = [(RowKind.DELETE, before), (RowKind.INSERT, after)]
        else:
            given = [(RowKind.UPDATE_BEFORE, before), (RowKind.UPDATE_AFTER, after)]
        of_key, width = self._rows.of_key(ctx.get_current_key()), len(self._rows.kept.names)
        return [(kind, self._rows.whole_of(row[:width], of_key)) for kind, row in given if row is not None]


def shape_of_last(sequence: str | Sequence[str] | None, *, by_time: bool) -> str:
    """Which row is the last one.

    Example:
        >>> shape_of_last(["day", "lsn"], by_time=False), shape_of_last(None, by_time=True)
        ('last by day, lsn', 'last by event time')
    """
    columns = [sequence] if isinstance(sequence, str) else sequence
    return f"last by {'event time' if by_time else ', '.join(columns) if columns else 'total order'}"
