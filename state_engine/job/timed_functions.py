"""Functions of a keyed stream that take its rows by event time: ``keyed.over(…)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from state_engine.core.choices import check_choice
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.job.declared_aggregates import Key, check_aggregates
from state_engine.job.graph import OperatorInput, declared_type, type_in_code
from state_engine.job.late_outputs import check_event_time
from state_engine.job.lists_of_rows import check_rows
from state_engine.job.stream import Stream
from state_engine.job.typed_by_input import TimedByInput
from state_engine.machine.defects import guarded_class
from state_engine.operators.aggregates.declarations import Aggregate, Reach
from state_engine.operators.lateness import Lateness
from state_engine.operators.over import Over, OverPlan, WhenOut, shape_of_over
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
        uid: str | None = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Emits each row with aggregates of the rows of its key before it: features of a row.

        ``tx.key_by("card").over(spent=sum_("cents", last=["1 h", "30 days"]), n=count(last_rows=10), tile="5 min")``.
        Behind the columns of the row come those of the aggregates: ``spent_1h``, ``spent_30days`` and ``n``. ``last=d``
        is of the rows between ``d`` before the row and the row itself, both included; ``last_rows=n`` of so many last
        ones; without either, of all rows so far. A key has state until no row has its rows in reach; with an aggregate
        of all rows, or of so many, for ever. The guide on features has examples.

        Args:
            lateness: how long rows wait for others that come late. Operators that read the results have a watermark so
                much earlier.
            late_to: the side output for rows that come later; without, they are dropped and counted.
            emit: ``final`` puts a row out once all rows up to its time have come, by time; ``at_once`` as it comes,
                with those that came before it.
            tile: keep parts of time of this length instead of rows. A span begins with the part that its start lies
                in, so it may be one part longer; one of 64 parts or more has parts of up to a sixteenth of it. Without,
                all rows of the longest span are kept, and read for each row.
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

        def planned(kind: OutputType) -> OverPlan:
            check_rows(kind, "over")
            return OverPlan(kind.columns, aggregates, tile_ms)

        def made(kind: OutputType) -> KeyedProcessFunction:
            check_rows(kind, "over")
            return Over(kind.columns, aggregates, emit=emit, tile_ms=tile_ms, lateness=waits)

        def gives(kind: OutputType) -> OutputType:
            return OutputType(planned(kind).output_type, scalar=False)

        shape = shape_of_over(aggregates, tile_ms, emit, waits)
        return self._by_time(made, gives, waits, shape=shape, method="over", uid=uid)

    def _by_time(
        self,
        made: Callable[[OutputType], KeyedProcessFunction],
        gives: Callable[[OutputType], OutputType],
        lateness: Lateness,
        *,
        shape: str,
        method: str,
        uid: str | None,
    ) -> DataStream:
        """Add a function that lets rows wait, and read the side output of its late rows."""
        check_event_time(self._node, what=f"{method}(…)", lateness_ms=lateness.ms)
        function = TimedByInput(
            made, gives=gives, holds_back_ms=lateness.ms, shape=shape, late_to=lateness.late_to
        )
        declared = declared_type(self._node, type_in_code)
        if declared is not None:
            function.gives(declared)
            function.bound(declared)  # what does not fit is refused here and now
        by_key = (OperatorInput(self._node, self._key),)
        results = self._add(by_key, function, method=method, uid=uid, output_type=None)
        if lateness.late_to is not None:
            results.get_side_output(lateness.late_to)
        return results


def _without_reach(aggregate: Aggregate) -> Aggregate:
    return (
        Aggregate(**{**vars(aggregate), "reach": Reach()}) if isinstance(aggregate, Aggregate) else aggregate
    )
