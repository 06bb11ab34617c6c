"""Functions of a keyed stream that take its rows by event time: ``keyed.over(…)`` and ``keyed.sequence(…)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from state_engine.core.choices import check_choice
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.types.column_names import check_there
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.every_type import StructType
from state_engine.job.declared_aggregates import Key, check_aggregates, key_columns, record_key
from state_engine.job.graph import OperatorInput, declared_type, type_in_code
from state_engine.job.late_outputs import check_event_time
from state_engine.job.lists_of_rows import check_rows
from state_engine.job.stream import Stream, column_names
from state_engine.job.typed_by_input import TimedByInput
from state_engine.machine.defects import guarded_class
from state_engine.operators.aggregates.declarations import Aggregate, Reach
from state_engine.operators.lateness import Lateness
from state_engine.operators.over.over import Over, OverPlan, WhenOut, check_forget_after, shape_of_over
from state_engine.operators.sequence import Sequences, SequenceSettings, check_no_clash
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from state_engine.job.streams import DataStream


@guarded_class
class TimedFunctions(Stream):
    """Methods of ``KeyedStream`` whose functions let rows wait for those before them."""

    _key: Key

    def over(
        self,
        *,
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        emit: WhenOut = "final",
        tile: Span | None = None,
        forget_after: Span | None = None,
        uid: str | None = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Emits each row with aggregates of the rows of its key before it: features of a row.

        ``tx.key_by("card").over(spent=sum_("cents", last=["1 h", "30 days"]), n=count(last_rows=10), tile="5 min")``.
        Behind the columns of the row come those of the aggregates: ``spent_1h``, ``spent_30days`` and ``n``. ``last=d``
        is of the rows between ``d`` before the row and the row itself, both included; ``last_rows=n`` of so many last
        ones; without either, of all rows so far. A key has state until no row has its rows in reach; with an aggregate
        of all rows, or of so many, for ever or for ``forget_after``. No table shows this state: a sink with ``key``
        shows the newest row of each key. The guide on features has examples.

        Args:
            lateness: how long rows wait for others that come late. Operators that read the results have a watermark so
                much earlier.
            late_to: the side output for rows that come later; without, they are dropped and counted.
            emit: ``final`` puts a row out once all rows up to its time have come, by time; ``at_once`` as it comes,
                with those that came before it.
            tile: keep parts of time of this length instead of rows. A span begins with the part that its start lies
                in, so it may be one part longer; one of 64 parts or more has parts of up to a sixteenth of it. Without,
                all rows of the longest span are kept: counts, sums and averages take those back that leave it, and
                other aggregates read it for each row.
            forget_after: how long behind its last row a key is kept, by event time. Its next row is then its first one,
                for aggregates of all rows and of the last so many.
            uid: identity of the operator and of its state.
            aggregates: ``count``, ``sum_`` and so on, by the names of their columns.

        Raises:
            ConfigurationError: the stream has no event time, or holds updates; its late rows are gone before; or an
                aggregate, a span or a tile does not fit.
        """
        check_choice(emit, get_args(WhenOut), what="emit of over")
        check_aggregates({name: _without_reach(one) for name, one in aggregates.items()}, ())
        waits = Lateness(to_milliseconds(lateness), late_to)
        tile_ms = None if tile is None else to_milliseconds(tile)
        forget_ms = None if forget_after is None else to_milliseconds(forget_after)
        check_forget_after(aggregates, forget_ms)

        def planned(kind: OutputType) -> OverPlan:
            check_rows(kind, "over")
            return OverPlan(kind.columns, aggregates, tile_ms)

        def made(kind: OutputType) -> KeyedProcessFunction:
            check_rows(kind, "over")
            return Over(
                kind.columns,
                aggregates,
                emit=emit,
                tile_ms=tile_ms,
                lateness=waits,
                forget_after_ms=forget_ms,
            )

        def gives(kind: OutputType) -> OutputType:
            return OutputType(planned(kind).output_type, scalar=False)

        shape = shape_of_over(aggregates, tile_ms, emit, waits)
        return self._by_time(
            made, gives, waits, shape=shape, timers_yield=emit == "final", method="over", uid=uid
        )

    def sequence(
        self,
        *steps: Any,
        within: Span,
        by: str | None = None,
        strict: bool = False,
        overlapping: bool = False,
        incomplete: bool = False,
        take: Sequence[str] = (),
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Find rows of each key that follow each other, step by step: a funnel, or a pattern.

        ``events.key_by("user").sequence("view", "cart", "buy", by="action", within="1 day")``. A result has the columns
        of the key, and the time of each step: ``view_at``, ``cart_at``, ``buy_at``. Rows are taken by event time, so
        their order of arrival does not matter. A step takes the first row that fits it, and others in between are
        skipped. State of a key: the rows within the lateness, and the sequences that began less than ``within`` ago.
        ``publish(table)`` shows these.

        Args:
            steps: values of the column ``by``, or ``step("large", where=…)``; at least two.
            within: the last row of a sequence comes less than this behind its first.
            by: the column that values are compared with.
            strict: any other row of the key ends a sequence.
            overlapping: a row may be of several sequences. Otherwise the one that began first has its rows, and with
                its last one all others are dropped.
            incomplete: sequences that run out of time come out as well: with ``steps``, the number of steps they
                reached, nulls for the others, and the event time of their end.
            take: columns of the last row that a sequence has.
            lateness: how long rows wait for others that come late. Operators that read the results have a watermark so
                much earlier.
            late_to: the side output for rows that come later; without, they are dropped and counted.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: the stream has no event time, or holds updates; its late rows are gone before; or steps
                and columns do not fit.
        """
        waits, key = Lateness(to_milliseconds(lateness), late_to), self._key
        settings = SequenceSettings.of(
            steps, to_milliseconds(within), by=by, strict=strict, overlapping=overlapping, incomplete=incomplete,
            take=column_names(take, what="take of sequence"),
        )  # fmt: skip

        def made(kind: OutputType) -> KeyedProcessFunction:
            check_rows(kind, "sequence")
            return Sequences(kind.columns, settings, waits, record_key=record_key(key_columns(key, kind)))

        def gives(kind: OutputType) -> OutputType:
            check_rows(kind, "sequence")
            columns = key_columns(key, kind)
            types = dict(zip(kind.columns.names, kind.columns.types, strict=True))
            check_there(settings.take, kind.columns.names, what="take of sequence")
            between = settings.columns_between()
            names = [*columns.names, *between, *settings.take]
            check_no_clash(names)
            of_columns = [*columns.types, *between.values(), *(types[name] for name in settings.take)]
            return OutputType(StructType(names, of_columns, "row"), scalar=False)

        shape, shows = settings.shape(waits), Sequences.shows
        return self._by_time(made, gives, waits, shape=shape, shows=shows, method="sequence", uid=uid)

    def _by_time(
        self,
        made: Callable[[OutputType], KeyedProcessFunction],
        gives: Callable[[OutputType], OutputType],
        lateness: Lateness,
        *,
        method: str,
        uid: str | None,
        **of_function: Any,
    ) -> DataStream:
        """Add a function that lets rows wait; ``of_function`` is what else ``TimedByInput`` says of it."""
        check_event_time(self._node, what=f"{method}(…)", lateness_ms=lateness.ms)
        function = TimedByInput(
            made, gives=gives, holds_back_ms=lateness.ms, late_to=lateness.late_to, **of_function
        )
        declared = declared_type(self._node, type_in_code)
        if declared is not None:
            function.gives(declared)
            function.bound(declared)  # what does not fit is refused here and now
        by_key = (OperatorInput(self._node, self._key),)
        return self._add(by_key, function, method=method, uid=uid, output_type=None)


def _without_reach(aggregate: Aggregate) -> Aggregate:
    return (
        Aggregate(**{**vars(aggregate), "reach": Reach()}) if isinstance(aggregate, Aggregate) else aggregate
    )
