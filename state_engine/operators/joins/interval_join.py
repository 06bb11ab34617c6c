"""``IntervalJoin``: rows of two streams of one key whose times are not too far apart.

Mirrors Flink's ``IntervalJoinOperator`` and, for rows without partner, the ``RowTimeIntervalJoin`` of its SQL. Other
than in those, a row is in time until the watermark is at its time, and a row that is too late has no pair at all: the
result is the join of the rows that are in time, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.co_functions import KeyedCoProcessFunction
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.joins.column_interval_join import ColumnIntervalJoin, ColumnSide
from state_engine.operators.joins.joined_rows import JoinedRows, JoinTime, Kept, LeftRows
from state_engine.operators.joins.keyed_join import ONLY_LEFT, How, KeyedJoin
from state_engine.operators.lateness import Lateness, LateRows, plus, time_of
from state_engine.operators.places import PLACE, number_behind


@dataclass(frozen=True)
class Interval:
    """How much later than its left row the right row of a pair may be, in milliseconds, both ends included.

    Raises:
        ConfigurationError: the end is before the start.

    Example:
        >>> Interval.of("1 h"), Interval.of((0, "1 h"))
        (Interval(least_ms=-3600000, most_ms=3600000), Interval(least_ms=0, most_ms=3600000))
    """

    least_ms: int
    most_ms: int

    def __post_init__(self) -> None:
        if self.least_ms > self.most_ms:
            raise ConfigurationError(
                f"join(…, within=({self.least_ms} ms, {self.most_ms} ms)): nothing lies between; put the smaller bound "
                "first. They say how much later than its left row the right row of a pair may be"
            )

    @classmethod
    def of(cls, within: Span | tuple[Span, Span]) -> Interval:
        """From one span, by which either row may be later, or from the least and the most."""
        if isinstance(within, tuple | list):
            if len(within) != 2:
                raise ConfigurationError(
                    f"within takes one span or two, the least and the most, not {within!r}"
                )
            return cls(*map(_signed, within))
        span = _signed(within)
        if span < 0:
            raise ConfigurationError(
                f"within={within!r}: one span is a distance of two times; give two, within=(least, most), for right "
                "rows that are earlier"
            )
        return cls(-span, span)

    @property
    def spread_ms(self) -> int:
        """By how much the watermark may be behind the event time of a pair or of a row that waited for one."""
        return max(self.most_ms, -self.least_ms, 0)


def _signed(span: Span) -> int:
    if isinstance(span, str) and span.startswith("-"):
        return -to_milliseconds(span[1:])
    return to_milliseconds(span)


@dataclass(frozen=True)
class JoinSettings:
    """What an interval join does.

    Attributes:
        left, right: for how long rows of either stream are taken, which is as long, and where later ones go.
        time: which row gives a pair its event time.
    """

    interval: Interval
    how: How = "inner"
    left: Lateness = field(default_factory=Lateness)
    right: Lateness = field(default_factory=Lateness)
    time: JoinTime = "left"

    @property
    def shape(self) -> str:
        ends = f"{self.interval.least_ms} to {self.interval.most_ms}"
        return f"interval join {ends}, {self.how}, {self.left.form}"

    @property
    def timers_yield(self) -> bool:
        """Whether rows come out that had no partner."""
        return self.how not in ("inner", "semi")

    @property
    def holds_back_ms(self) -> int:
        """By how much outputs may be behind the watermark."""
        pairs_are_last = self.how == "inner" and self.time == "later"
        return self.left.ms + (0 if pairs_are_last else self.interval.spread_ms)


class Entry(NamedTuple):
    """A row that waits for partners, and where it is kept."""

    place: tuple[int, int]
    row: Any
    matched: bool

    @property
    def kept(self) -> Kept:
        return Kept(self.place[0], self.row)


class _Side:
    """What is kept of one of the two streams.

    Args:
        partners: how much later than a row its partners may be, least and most.
        comes_alone: whether a row comes out when it had no partner.
        once: whether a row goes with its first partner.
    """

    def __init__(
        self,
        name: str,
        row_type: TypeInformation,
        partners: tuple[int, int],
        lateness: Lateness,
        *,
        comes_alone: bool,
        once: bool,
    ) -> None:
        self._first, self._last = partners
        self._lateness, self.comes_alone, self.once = lateness, comes_alone, once
        self._marks = comes_alone and not once
        value_type = row_type
        if self._marks:
            flag = to_type(bool, parameter="matched")
            value_type = StructType(["matched", "row"], [flag, row_type])
        self._descriptor = SortedMapStateDescriptor(name, PLACE, value_type)
        self.late = LateRows(lateness.late_to)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows = runtime_context.get_sorted_map_state(self._descriptor)
        self.late.open(runtime_context)

    @property
    def over_columns(self) -> ColumnSide:
        return ColumnSide(self._descriptor, self._lateness, self._last)

    def is_late(self, at: int, watermark: int) -> bool:
        return self._lateness.is_over(at, watermark)

    def partners_of(self, at: int) -> tuple[int, int]:
        """The first and the last time of partners of a row of this side."""
        return at + self._first, at + self._last

    def between(self, first: int, last: int) -> list[Entry]:
        """The rows that are kept of these times, both included."""
        return [self._entry(*item) for item in list(self._rows.sub_items((first, 0), (last + 1, 0)))]

    def goes(self, at: int) -> int:
        """The watermark at which a row can have no further partner."""
        return plus(at + self._last, self._lateness.ms)

    def keep(self, ctx: KeyedContext, at: int, row: Any, *, matched: bool) -> None:
        number = number_behind(self._rows, (at,))
        self._rows.put((at, number), (matched, row) if self._marks else row)
        ctx.timer_service().register_event_time_timer(self.goes(at))

    def had_partner(self, entry: Entry) -> None:
        if self.once:
            self._rows.remove(entry.place)
        elif self._marks and not entry.matched:
            self._rows.put(entry.place, (True, entry.row))

    def take_gone(self, watermark: int) -> list[Entry]:
        """Take the rows that can have no further partner."""
        gone = []
        while (first := self._rows.first_entry()) is not None and self.goes(first[0][0]) <= watermark:
            self._rows.remove(first[0])
            gone.append(self._entry(*first))
        return gone

    def _entry(self, place: Any, value: Any) -> Entry:
        matched, row = value if self._marks else (False, value)
        return Entry(tuple(place), row, matched)


class IntervalJoin(KeyedJoin[JoinSettings]):
    """Pairs each left row with the right rows of its key in an interval around it.

    A row of time ``t`` is too late once the watermark, which is the smaller one of the two streams, is ``t + lateness``
    or more: then it has no pair at all. Pairs come with the later one of their rows, by the place of the other one.
    Rows without partner come when none can come. A null part of a key equals no other.

    State: ``left`` and ``right``, sorted maps ``(at, n) → row``, with ``matched`` in front where rows without partner
    come out. A left row stays until the watermark is ``most + lateness`` behind it, a right one until it is ``-least +
    lateness`` behind it; then nothing of a key is left.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.operators.joins.joined_rows import JoinedRows
        >>> from state_engine.testing import KeyedHarness
        >>> rows = to_type("k string, at bigint", parameter="rows")
        >>> results = JoinedRows(rows, rows, take=["at"], suffix="_right", join="join")
        >>> join = IntervalJoin(rows, rows, results, JoinSettings(Interval.of((0, 5)), how="left"))
        >>> harness = KeyedHarness(join, key_by=lambda row: row[0], timestamp_of=lambda row: row[1])
        >>> harness.process_pairs([(1, ("a", 10)), (2, ("a", 12)), (1, ("a", 20))])
        [('a', 10, 12)]
        >>> harness.drain()
        [('a', 20, None)]
    """

    def _keep(self, left_type: TypeInformation, right_type: TypeInformation) -> None:
        settings, how = self._settings, self._settings.how
        least, most = settings.interval.least_ms, settings.interval.most_ms
        self._left = _Side(
            "left", left_type, (least, most), settings.left,
            comes_alone=how in ("left", "full", "anti"), once=how in ONLY_LEFT,
        )  # fmt: skip
        self._right = _Side(
            "right", right_type, (-most, -least), settings.right,
            comes_alone=how in ("right", "full"), once=False,
        )  # fmt: skip

    def vectorized(self) -> ColumnIntervalJoin | None:
        """The join over columns: of rows of columns that come out with a partner only."""
        pairs = self._results if isinstance(self._results, JoinedRows) else None
        rows = pairs is not None or isinstance(self._results, LeftRows)
        if not rows or self._settings.how not in ("inner", "semi"):
            return None
        left, right = self._left.over_columns, self._right.over_columns
        if not all(isinstance(side.state.value_type, StructType) for side in (left, right)):
            return None
        return ColumnIntervalJoin(left, right, pairs, record_key=self._record_key)

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._left.open(runtime_context)
        self._right.open(runtime_context)

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """The pairs of a left row with the right rows that came before it."""
        return self._element(self._left, self._right, value, ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """The pairs of a right row with the left rows that came before it."""
        return self._element(self._right, self._left, value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Drop the rows that can have no further partner; those that had none come out, where they are asked for."""
        outputs = []
        for side in (self._left, self._right):
            for entry in side.take_gone(timestamp):
                if side.comes_alone and not entry.matched:
                    outputs += self._alone(side, entry.kept)
        return outputs

    def _element(self, own: _Side, other: _Side, value: Any, ctx: KeyedContext) -> list[Any]:
        at, watermark = time_of(ctx), ctx.current_watermark()
        if own.is_late(at, watermark):
            return own.late.outputs(value, ctx)
        has_partners = self._may_match(ctx)
        partners = other.between(*own.partners_of(at)) if has_partners else []
        outputs = self._matches(own, Kept(at, value), partners)
        for entry in partners:
            other.had_partner(entry)
        if partners and own.once:
            return outputs
        if own.goes(at) > watermark:
            if has_partners or own.comes_alone:
                own.keep(ctx, at, value, matched=bool(partners))
        elif own.comes_alone and not partners:
            outputs += self._alone(own, Kept(at, value))
        return outputs

    def _matches(self, own: _Side, row: Kept, partners: list[Entry]) -> list[Any]:
        """The results of a row with the partners that came before it."""
        how, is_left = self._settings.how, own is self._left
        if how == "anti":
            return []
        if how == "semi" and is_left:
            partners = partners[:1]
        pairs = [(row, entry.kept) if is_left else (entry.kept, row) for entry in partners]
        return [output for left, right in pairs for output in self._results.of(left, right)]

    def _alone(self, side: _Side, row: Kept) -> list[Any]:
        return self._results.of(row, None) if side is self._left else self._results.of(None, row)
