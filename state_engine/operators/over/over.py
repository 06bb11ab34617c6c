"""``Over``: each row with aggregates of the rows of its key before it.

Mirrors Flink's ``RowTimeRangeBoundedPrecedingFunction``, ``RowTimeRowsBoundedPrecedingFunction`` and
``RowTimeRangeUnboundedPrecedingFunction``, and for tiles the sawtooth windows of Chronon. A row is too late by the
watermark, not by the time of the last row of its key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from state_engine.core.argument_checks import checked_function
from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.operator.atomic_call import BATCH_FATAL_ERRORS
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.pickled_type import holds_pickles
from state_engine.core.types.row import Row
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.declarations import Aggregate, Reach
from state_engine.operators.aggregates.plan import AggregatePlan, plan
from state_engine.operators.aggregates.steps import Fields
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.lateness import Lateness, plus, time_of
from state_engine.operators.over.column_over import ColumnOver
from state_engine.operators.over.column_rows import RowsOverColumns
from state_engine.operators.over.column_tiles import TilesOverColumns
from state_engine.operators.over.levels import Level
from state_engine.operators.over.over_rows import AllRows, KeptRows, SpanSums, Tiles, Timed
from state_engine.operators.waiting import WaitingRows

WhenOut = Literal["final", "at_once"]
"""When rows come out: once all rows up to their time have come, or as they come."""
WAKES, LAST_ROW = "wakes", "last_row"
"""Names of the states with the time of the timer that drops an idle key, and with that of its last row."""
_TAKES_BACK = ("count", "sum", "avg", "stddev", "variance")
"""Kinds of aggregates whose accumulators alone take rows back."""


@dataclass(frozen=True)
class OverColumn:
    """A column of aggregates.

    Attributes:
        place: of its aggregate among the results of its plan.
        span_ms: of time; None without.
        last_rows: how many; None without.
        takes_back: whether rows that leave the span are taken back; otherwise it is computed of those in it.
    """

    name: str
    place: int
    type: TypeInformation
    span_ms: int | None = None
    last_rows: int | None = None
    takes_back: bool = False


class OverPlan:
    """Aggregates of the rows before, on a stream.

    Attributes:
        columns: that come out behind those of the row.
        timed, others: the plans of aggregates with a reach, and of those of all rows; None where there are none.

    Raises:
        ConfigurationError: there are none; one does not fit the columns; a tile does not fit a span; or two columns
            would have one name.
    """

    def __init__(
        self, row_type: StructType, aggregates: Mapping[str, Aggregate], tile_ms: int | None
    ) -> None:
        if not aggregates:
            raise ConfigurationError("over: no aggregate is given: name one, as in over(n=count(last='1 h'))")
        self.row_type, self.tile_ms = row_type, tile_ms
        named = {name: _by_name(name, one, row_type) for name, one in aggregates.items()}
        self.fields = _fields(row_type, named)
        self.of_tiles = self._plan(named, lambda one: bool(one.reach.spans) and tile_ms is not None)
        self.of_sums = self._plan(named, self._takes_back, retract=True)
        self.of_rows = self._plan(named, lambda one: _keeps_rows(one, tile_ms) and not self._takes_back(one))
        self.of_all = self._plan(named, lambda one: one.reach == Reach())
        self._named = named
        self.columns = [column for name, one in named.items() for column in self._columns(name, one)]
        _check_names([column.name for column in self.columns], row_type.names)
        self.spans_ms = sorted({column.span_ms for column in self.columns if column.span_ms is not None})
        self.spans_of_sums = sorted(
            {c.span_ms for c in self.columns if c.takes_back and c.span_ms is not None}
        )
        self._check_tile()

    @property
    def last_rows(self) -> int:
        """The most last rows that a column is of; 0 without."""
        return max((column.last_rows or 0 for column in self.columns), default=0)

    @property
    def output_type(self) -> StructType:
        names = [*self.row_type.names, *(column.name for column in self.columns)]
        return StructType(names, [*self.row_type.types, *(column.type for column in self.columns)], "row")

    @cached_property
    def of_all_reaches(self) -> AggregatePlan:
        """One plan of all aggregates, of rows that are never taken back."""
        made = self._plan(self._named, lambda one: True)
        assert made is not None
        return made

    def place_of(self, column: OverColumn) -> int:
        """Where its result stands among those of all reaches."""
        results = self.plan_of(column)
        assert results is not None
        name = results.results[column.place].name
        return [result.name for result in self.of_all_reaches.results].index(name)

    def _plan(
        self, aggregates: Mapping[str, Aggregate], has: Callable[[Aggregate], bool], *, retract: bool = False
    ) -> AggregatePlan | None:
        chosen = {name: replace(one, reach=Reach()) for name, one in aggregates.items() if has(one)}
        return plan(chosen, self.fields, retract=retract, merge=not retract) if chosen else None

    def _takes_back(self, aggregate: Aggregate) -> bool:
        """Whether rows that leave its spans are taken back."""
        return bool(aggregate.reach.spans) and self.tile_ms is None and aggregate.kind in _TAKES_BACK

    def plan_of(self, column: OverColumn) -> AggregatePlan | None:
        if column.takes_back:
            return self.of_sums
        if column.span_ms is not None and self.tile_ms is not None:
            return self.of_tiles
        return self.of_all if column.span_ms is None and column.last_rows is None else self.of_rows

    def _columns(self, name: str, aggregate: Aggregate) -> list[OverColumn]:
        spans, rows = aggregate.reach.spans, aggregate.reach.rows
        column = OverColumn(name, 0, self.fields, last_rows=rows, takes_back=self._takes_back(aggregate))
        made = [replace(column, name=name + end, span_ms=ms) for end, ms in spans] or [column]
        results = self.plan_of(made[0])
        assert results is not None
        place = [result.name for result in results.results].index(name)
        return [replace(one, place=place, type=results.results[place].type) for one in made]

    def _check_tile(self) -> None:
        if self.tile_ms is None:
            return
        if self.tile_ms < 1 or not self.spans_ms:
            raise ConfigurationError(
                "over: tile is the length of parts of time that spans consist of: give one above 0, and aggregates "
                "with last=, or leave tile out"
            )
        for span in self.spans_ms:
            if span % self.tile_ms or not span:
                raise ConfigurationError(
                    f"over: a span of {span} ms does not consist of tiles of {self.tile_ms} ms: give a tile that "
                    "divides every last"
                )


class Over(KeyedProcessFunction):
    """Emits each row with aggregates of those rows of its key that are not behind it.

    An aggregate with ``last=d`` is of the rows whose time lies in ``[t - d, t]``, both included; one with
    ``last_rows=n`` of the row and the ``n - 1`` before it; any other of all rows so far. With ``tile`` a span begins
    with the tile that ``t - d`` lies in: it is at most one tile longer. A span of 64 tiles or more has longer ones, of
    at most a sixteenth of it.

    ``final`` lets rows wait until the watermark is ``lateness`` behind them, and puts them out by time: rows of one
    time see each other. ``at_once`` puts a row out as it comes, with those that stand before it in the total order.
    A row of ``t`` is too late once the watermark before it is ``t + lateness`` or more. Nulls count for no aggregate.

    State of a key: ``waiting``, the rows within the lateness. Besides, ``rows`` of the longest span, with the fields
    that aggregates are of, and of the last rows; or with tiles the sorted map ``tiles``, of at most 66 entries for each
    level that a span has. ``count_distinct``, ``collect_set`` and ``collect_list`` keep their values besides. All of it
    goes when the watermark is ``longest span + tile + lateness`` behind the last row. An aggregate of all rows, or of
    the last so many, stays for ever, or for ``forget_after``. Counts, sums, averages and moments of spans without tile
    have their accumulators in ``spans``, one entry a span: a row is added once, and taken back once. Other aggregates
    without tile read the rows of their span for each row.

    Args:
        row_type: type of the elements.
        aggregates: by the name of the column; with several spans, of the columns ``<name>_<span>``.
        tile_ms: length of a tile, which divides all spans; without, rows are kept.
        forget_after_ms: how long behind its last row a key is kept; its next row is then its first one. None for ever.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time, or not this type.

    Example:
        >>> from state_engine import count, sum_
        >>> from state_engine.testing import KeyedHarness
        >>> spent = {"spent": sum_("cents", last=["1 min", "1 h"]), "n": count(last_rows=2)}
        >>> features = Over("card string, cents bigint, at bigint", spent, emit="at_once")
        >>> harness = KeyedHarness(features, key_by=lambda row: row[0], timestamp_of=lambda row: row[2])
        >>> harness.process([("a", 5, 0), ("a", 7, 60_000), ("a", 1, 60_001)])
        [('a', 5, 0, 5, 5, 1), ('a', 7, 60000, 12, 12, 2), ('a', 1, 60001, 8, 13, 2)]
    """

    @checked_function
    def __init__(
        self,
        row_type: Any,
        aggregates: Mapping[str, Aggregate],
        *,
        emit: WhenOut = "final",
        tile_ms: int | None = None,
        lateness: Lateness = Lateness(),  # noqa: B008  frozen
        forget_after_ms: int | None = None,
    ) -> None:
        check_choice(emit, get_args(WhenOut), what="emit")
        check_forget_after(aggregates, forget_after_ms)
        self._rows = KeyedRows(row_type, apart=(), operator="over")
        made = self._plan = OverPlan(self._rows.columns, aggregates, tile_ms)
        self._lateness, self._at_once = lateness, emit == "at_once"
        self.late_to, self.holds_back_ms = lateness.late_to, lateness.ms
        self.shape = shape_of_over(aggregates, tile_ms, emit, lateness)
        self._kept_at = [made.row_type.names.index(name) for name in made.fields.names]
        self._waiting = WaitingRows(
            made.fields if self._at_once else made.row_type,
            lateness,
            whole=not self._at_once,
            failing=None if self._at_once else self._failing,
        )
        span = made.spans_ms[-1] if made.spans_ms and tile_ms is None else None
        sums = None if made.of_sums is None else SpanSums(made.of_sums, made.spans_of_sums)
        self._kept = (
            None
            if sums is None and made.of_rows is None
            else KeptRows(made.of_rows, sums, made.fields, span, made.last_rows)
        )
        self._tiles = (
            None if made.of_tiles is None or tile_ms is None else Tiles(made.of_tiles, tile_ms, made.spans_ms)
        )
        self._all = None if made.of_all is None else AllRows(made.of_all)
        self._wakes_descriptor = ValueStateDescriptor(WAKES, int)
        self._forget_after_ms, self._last_descriptor = forget_after_ms, ValueStateDescriptor(LAST_ROW, int)

    def vectorized(self) -> ColumnOver | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        made = self._plan
        if self._all is not None or self._forget_after_ms is not None or holds_pickles(made.row_type):
            return None
        kept = self._kept_over_columns()
        if kept is None:
            return None
        waiting = self._waiting.descriptor
        return ColumnOver(made, kept, waiting, self._wakes_descriptor, self._lateness, at_once=self._at_once)

    def _kept_over_columns(self) -> RowsOverColumns | TilesOverColumns | None:
        """What is kept over columns: rows by time, last rows, or tiles; None for several of these."""
        made, kept, tiles = self._plan, self._kept, self._tiles
        by_two = kept is not None and (tiles is not None or (bool(made.spans_ms) and bool(made.last_rows)))
        plan = None if by_two else PlanOverColumns.of(made.of_all_reaches)
        if plan is None:
            return None
        if tiles is not None:
            assert made.tile_ms is not None
            return TilesOverColumns(
                plan, tiles.levels, made.tile_ms, made.fields.names, self._at_once, tiles.descriptor
            )
        assert kept is not None
        levels = [Level(0, 1, made.spans_ms[-1])] if made.spans_ms else []
        sums = None if kept.sums is None else kept.sums.descriptor
        return RowsOverColumns(
            plan, levels, made.last_rows, made.fields.names, self._at_once, kept.descriptor, sums
        )

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting.open(runtime_context)
        if self._forget_after_ms is not None:
            self._last = runtime_context.get_state(self._last_descriptor)
        self._wakes = runtime_context.get_state(self._wakes_descriptor)
        for part in (*self._expiring(), *self._forever()):
            part.open(runtime_context)

    def close(self) -> None:
        for part in (*self._expiring(), *self._forever()):
            part.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Let the row wait; with ``at_once`` it comes out."""
        row = self._rows.normal(value)
        at, fields = time_of(ctx), self._fields_of(row)
        if self._lateness.is_over(at, ctx.current_watermark()):
            return self._waiting.add(value, ctx)
        self._waiting.add(fields if self._at_once else row, ctx)
        if not self._at_once:
            return []
        others, alone = self._not_forgotten(list(self._waiting.until(at)))
        return [self._with_columns(row, at, 0, others, alone=alone)]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Keep the rows whose time is over, and put them out if they are not; drop what no row has in reach."""
        outputs: list[Any] = []
        for at, rows in self._waiting.due_by_time(timestamp, ctx):
            self._forget(at)
            for row in self._waiting.one_by_one(rows):
                self._keep(at, row if self._at_once else self._fields_of(row))
            if not self._at_once:
                outputs += [
                    Timestamped(self._with_columns(row, at, behind, ()), at)
                    for behind, row in zip(
                        reversed(range(len(rows))), self._waiting.one_by_one(rows), strict=True
                    )
                ]
            self._expire(at)
            self._wake(ctx)
        wakes = self._wakes.value()
        if wakes is not None and wakes <= timestamp:
            self._wakes.clear()
            self._expire(timestamp - self._lateness.ms)
            self._forget(timestamp - self._lateness.ms)
            if timestamp < MAX_TIMESTAMP:
                self._wake(ctx)
        return outputs

    # -- inside ----------------------------------------------------------------------------------------------------

    def _failing(self, waiting: list[Timed]) -> int | None:
        """Of the rows of the last time, the first that cannot come out with those before it, as ``at_once`` has it."""
        at = waiting[-1][0]
        before = [(time, self._fields_of(row)) for time, row in waiting]

        def fails(number: int) -> bool:
            others, alone = self._not_forgotten(before[: number + 1])
            try:
                self._with_columns(waiting[number][1], at, 0, others, alone=alone)
            except BATCH_FATAL_ERRORS:
                raise
            except Exception:
                return True
            return False

        last = range(sum(time < at for time, _ in waiting), len(waiting))
        number = bisect_left(last, True, key=fails)
        return last[number] if number < len(last) else None

    def _fields_of(self, row: Row) -> Row:
        parts = tuple(row)
        kept: Row = self._plan.fields.normalise([parts[at] for at in self._kept_at])
        return kept

    def _keep(self, at: int, fields: Row) -> None:
        for part in (*self._expiring(), *self._forever()):
            part.add(at, fields)
        if self._forget_after_ms is not None:
            self._last.update(at)

    def _forget(self, at: int) -> None:
        """Forget a key whose last row is so far behind a time."""
        if self._forget_after_ms is None or not self._is_behind(self._last.value(), at):
            return
        self._last.clear()
        for part in (self._kept, self._all):  # spans are no longer, and tiles go by themselves
            if part is not None:
                part.clear()

    def _is_behind(self, last: int | None, at: int) -> bool:
        """True for the first row of a key that was forgotten."""
        return last is not None and self._forget_after_ms is not None and at - last > self._forget_after_ms

    def _not_forgotten(self, others: list[Timed]) -> tuple[list[Timed], bool]:
        """The rows since the key was forgotten last, and True where those that are kept were forgotten."""
        if self._forget_after_ms is None:
            return others, False
        last, first, alone = self._last.value(), 0, False
        for number, (at, _) in enumerate(others):
            if self._is_behind(last, at):
                first, alone = number, True
            last = at
        return others[first:], alone

    def _with_columns(
        self, row: Row, at: int, behind: int, others: Sequence[Timed], *, alone: bool = False
    ) -> tuple[Any, ...]:
        """A row with its aggregates, which are computed once for each reach.

        Args:
            others: rows behind those that are kept.
            alone: True where those that are kept were forgotten.
        """
        results: dict[tuple[int | None, int | None, bool], list[Any]] = {}
        columns = []
        for column in self._plan.columns:
            reach = column.span_ms, column.last_rows, column.takes_back
            if reach not in results:
                results[reach] = self._results(column, at, behind, others, alone=alone)
            columns.append(results[reach][column.place])
        return (*row, *columns)

    def _results(
        self, column: OverColumn, at: int, behind: int, others: Sequence[Timed], *, alone: bool
    ) -> list[Any]:
        span, last_rows = column.span_ms, column.last_rows
        if last_rows is not None:
            assert self._kept is not None
            return self._kept.of_last(last_rows, behind, others, alone=alone)
        if column.takes_back:
            assert self._kept is not None
            assert span is not None
            return self._kept.sums_of_span(span, at, others)
        if span is None:
            assert self._all is not None
            return self._all.of_all(others, alone=alone)
        timed = self._tiles or self._kept
        assert timed is not None
        return timed.of_span(span, at, others)

    def _expiring(self) -> list[KeptRows | Tiles]:
        return [part for part in (self._kept, self._tiles) if part is not None]

    def _forever(self) -> list[AllRows]:
        return [] if self._all is None else [self._all]

    def _expire(self, at: int) -> None:
        for part in self._expiring():
            part.expire(at)

    def _wake(self, ctx: KeyedContext) -> None:
        """Set the timer that drops what is kept now, unless one is set."""
        if self._wakes.value() is not None:
            return
        ends = [end for part in self._expiring() if (end := part.empty_at()) is not None]
        if self._forget_after_ms is not None and (last := self._last.value()) is not None:
            ends.append(plus(last, self._forget_after_ms + 1))
        if ends:
            wakes = plus(max(ends), self._lateness.ms)
            self._wakes.update(wakes)
            ctx.timer_service().register_event_time_timer(wakes)


def check_forget_after(aggregates: Mapping[str, Aggregate], forget_after_ms: int | None) -> None:
    """Refuse to forget keys that go by themselves, or rows that are in reach. Raises ConfigurationError."""
    if forget_after_ms is None:
        return
    if all(one.reach.spans for one in aggregates.values()):
        raise ConfigurationError(
            "over: all aggregates have last=, so a key goes by itself when no row has its rows in reach: leave "
            "forget_after out"
        )
    longest = max((ms for one in aggregates.values() for _, ms in one.reach.spans), default=1)
    if forget_after_ms < longest:
        raise ConfigurationError(
            f"over(forget_after={forget_after_ms} ms) would forget rows that are in reach: make it {longest} ms, or "
            "longer"
        )


def shape_of_over(
    aggregates: Mapping[str, Aggregate], tile_ms: int | None, emit: WhenOut, lateness: Lateness
) -> str:
    """What the state means: another reach, or other fields of rows, would ask for what was not kept."""
    reaches = {one.reach for one in aggregates.values()}
    spans = sorted({ms for reach in reaches for _, ms in reach.spans})
    of_rows = [one for one in aggregates.values() if _keeps_rows(one, tile_ms)]
    fields = sorted({str(field) for one in of_rows for field in (one.field, one.by) if field is not None})
    rows = max((reach.rows or 0 for reach in reaches), default=0)
    tile = "rows" if tile_ms is None else f"tile {tile_ms}"
    return f"over {tile} last {spans} last_rows={rows} of {fields} {emit} {lateness.form}"


def _keeps_rows(aggregate: Aggregate, tile_ms: int | None) -> bool:
    """True where an aggregate needs its rows."""
    return aggregate.reach.rows is not None or (bool(aggregate.reach.spans) and tile_ms is None)


def _by_name(name: str, aggregate: Aggregate, columns: StructType) -> Aggregate:
    fields = Fields(columns, scalar=False, where=f"aggregate {name}={aggregate}")
    field = None if aggregate.field is None else fields.name(aggregate.field)
    return replace(aggregate, field=field, by=None if aggregate.by is None else fields.name(aggregate.by))


def _fields(columns: StructType, aggregates: Mapping[str, Aggregate]) -> StructType:
    """The columns that aggregates are of; all where one is of whole rows, and the first where all only count."""
    used = {field for one in aggregates.values() for field in (one.field, one.by) if field is not None}
    if any(one.of_function is not None and one.field is None for one in aggregates.values()):
        used = set(columns.names)
    names = [name for name in columns.names if name in used] or [columns.names[0]]
    types = dict(zip(columns.names, columns.types, strict=True))
    return StructType(names, [types[name] for name in names], "row")


def _check_names(names: Sequence[str], of_row: Sequence[str]) -> None:
    known = set(of_row)
    for name in names:
        if name in known:
            raise ConfigurationError(
                f"over: two columns would be called '{name}': rename the aggregate, or the column of the row in a "
                "transform before"
            )
        known.add(name)
