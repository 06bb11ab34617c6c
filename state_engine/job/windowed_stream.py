"""``WindowedStream``: a keyed stream whose rows are grouped by windows, ``keyed.window(Session("30 min"))``.

Mirrors ``org.apache.flink.streaming.api.datastream.WindowedStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from state_engine.core.state.aggregate_functions import AggregateFunction, ReduceFunction, defines_merge
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.declared_aggregates import check_aggregates, result_columns
from state_engine.job.lists_of_rows import check_rows, key_names, ranked_columns_of_windows
from state_engine.job.typed_by_input import element_type
from state_engine.job.windowing import Windowing
from state_engine.machine.defects import guarded_class
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.ranking import Ranking, form_of
from state_engine.operators.top_n import TOP
from state_engine.operators.windows.contents import Accumulated, Contents, ReducedRows, WholeRows
from state_engine.operators.windows.flink_names import Trigger, triggered
from state_engine.operators.windows.window_process import CalledFunction, FunctionOfWindows
from state_engine.operators.windows.window_results import Emitter, WindowAccumulators
from state_engine.operators.windows.window_top_n import TopRows
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from state_engine.job.streams import DataStream


class Keeps(NamedTuple):
    """What is kept of rows: its form, and what makes it for rows of some kind."""

    form: str
    of: Callable[[OutputType], Contents]


@guarded_class
class WindowedStream:
    """What ``KeyedStream.window`` gives: say what is computed of each window."""

    def __init__(self, windowing: Windowing) -> None:
        self._windowing = windowing

    @overload
    def aggregate(self, *, uid: str | None = None, **aggregates: Aggregate) -> DataStream: ...

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: FunctionOfWindows | None = None,
        accumulator_type: TypeLike = None,
        output_type: TypeLike = None,
        *,
        uid: str | None = None,
    ) -> DataStream: ...

    def aggregate(
        self,
        aggregate_function: Any = None,
        window_function: Any = None,
        accumulator_type: Any = None,
        output_type: Any = None,
        *,
        uid: str | None = None,
        **aggregates: Any,
    ) -> DataStream:
        """The aggregates of the rows of each key and window.

        A result has the columns of the key, ``window_start`` and ``window_end`` (exclusive) as instants, and one column
        for each aggregate. Its event time is the last millisecond of the window. With ``emit="changes"`` and
        ``"running"`` it is a stream of changes, for a sink with the key ``[…, "window_start", "window_end"]``: both
        bounds are right for all windows; one is enough where no two windows have the same, which is
        ``window_end`` of ``Cumulating`` and ``window_start`` of all others. A sink with neither is refused. Rows that
        come too late for all of their windows go to ``late_to``, which ``get_side_output`` of the stream reads. The
        metric ``too_late`` counts them.

        With an ``AggregateFunction`` the results are what it makes of the rows of a window, or what a window function
        makes of that. Without ``merge`` the rows of windows that overlap, and of sessions, are kept until they fire.

        Args:
            aggregate_function: adds elements to an accumulator and gives its result.
            window_function: gets the one result of a window.
            accumulator_type: what is stored, of a function.
            output_type: of what comes out, of a function.
            uid: identity of the operator and of its state: ``sessions``, ``windows``, or ``slices`` where they overlap.
            aggregates: ``count``, ``sum_``, ``first`` and so on, by the names of their columns.

        Raises:
            ConfigurationError: there is none, or one does not fit the columns of the stream; the stream changes, and
                one cannot take rows back.

        Example:
            >>> from state_engine import FileSource, Session, StatefulJob, count
            >>> job = StatefulJob("clicks")
            >>> clicks = job.source("clicks", FileSource("in", schema="user string, at timestamp"), event_time="at")
            >>> sessions = clicks.key_by("user").window(Session("30 min"), lateness="2 h").aggregate(n=count())
        """
        given = (aggregate_function, window_function, accumulator_type, output_type)
        misnamed = any(isinstance(one, Aggregate) for one in (*given, uid))
        if aggregates and given == (None,) * 4 and not misnamed:
            return self._aggregates(aggregates, uid)
        if aggregates or misnamed or not isinstance(aggregate_function, AggregateFunction):
            raise ConfigurationError(
                "aggregate of a window needs aggregates by the name of the column that each becomes, as in "
                "aggregate(n=count(), total=sum_('amount')), or an AggregateFunction with accumulator_type and "
                "output_type, and not both. No such column can be called aggregate_function, window_function, "
                "accumulator_type, output_type or uid"
            )
        keeps = self._accumulated(aggregate_function, accumulator_type)
        if window_function is not None:
            return self._called("aggregate", keeps, window_function, output_type, uid)
        self._check_output_type("aggregate", output_type)
        return self._passed_on(keeps, output_type, uid)

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: FunctionOfWindows | None = None,
        output_type: TypeLike = None,
        *,
        uid: str | None = None,
    ) -> DataStream:
        """The reduction of the rows of each key and window: what the function makes of any two of them.

        Results are rows of the stream, without the bounds of their window; a window function sees those.

        Args:
            reduce_function: combines two elements, in any order.
            window_function: gets the one reduction of a window.
            output_type: of what the window function emits.

        Example:
            >>> from state_engine import FileSource, StatefulJob, Tumbling
            >>> job = StatefulJob("bids")
            >>> source = FileSource("in", schema="item string, price int, at timestamp")
            >>> bids = job.source("bids", source, event_time="at")
            >>> best = bids.key_by("item").window(Tumbling("1 h")).reduce(lambda a, b: a if a.price >= b.price else b)
        """
        function = ReduceFunction.of(reduce_function, what="reduce of a window")

        keeps = Keeps(ReducedRows.form, lambda kind: ReducedRows(function, element_type(kind)))
        if window_function is not None:
            return self._called("reduce", keeps, window_function, output_type, uid)
        if output_type is not None:
            raise ConfigurationError(
                "reduce of a window gives rows of its stream: output_type is that of a window_function; leave it out"
            )
        return self._passed_on(keeps, None, uid)

    def process(
        self,
        process_window_function: ProcessWindowFunction | ProcessAllWindowFunction,
        output_type: TypeLike = None,
        *,
        uid: str | None = None,
    ) -> DataStream:
        """Call a function with all rows of each key and window, when the window fires.

        The rows are kept until then, each once in all of its windows together, in the state ``elements``. Outputs have
        the last millisecond of the window as their event time.

        Args:
            process_window_function: gets the rows by event time, those of one time in their total order.
            output_type: of what it emits.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: its outputs would have to be taken back; or the type is missing.
        """
        return self._called("process", _WHOLE_ROWS, process_window_function, output_type, uid)

    def apply(
        self,
        window_function: WindowFunction | AllWindowFunction,
        output_type: TypeLike = None,
        *,
        uid: str | None = None,
    ) -> DataStream:
        """The same for a ``WindowFunction``, which has no context."""
        return self._called("apply", _WHOLE_ROWS, window_function, output_type, uid)

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str],
        ascending: bool = False,
        ties: bool = False,
        rank: bool = True,
        uid: str | None = None,
    ) -> DataStream:
        """The greatest rows of each key and window by rank, when the window is closed.

        A result has the columns of the key, ``window_start``, ``window_end``, ``rank`` and the other columns of its
        row. Of rows that are equal in ``by`` the one with the least event time has the better rank. As many rows a
        window are kept as there are ranks, in the state ``top``: ``publish(table)`` shows those of open tumbling
        windows and sessions, by ``window_start`` in milliseconds and their place in the list. The arguments are those
        of ``keyed.top_n(…)`` without ``ttl``, for rows go with their window.

        Args:
            n: how many ranks there are.
            by: columns to compare, from the first to the last; null is below every value, NaN above all.
            ascending: the least rows instead of the greatest.
            ties: also all rows that are equal to the n-th; those that are equal have one rank.
            rank: False leaves the rank out.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: ``emit`` is not ``final``; or as ``TopN`` does.

        Example:
            >>> from state_engine import FileSource, StatefulJob, Tumbling
            >>> job = StatefulJob("sales")
            >>> source = FileSource("in", schema="shop string, amount bigint, at timestamp")
            >>> sales = job.source("sales", source, event_time="at")
            >>> best = sales.key_by("shop").window(Tumbling("1 h")).top_n(3, by="amount")
        """
        windowing = self._windowing
        if not windowing.settings.shows_once:
            raise ConfigurationError(
                "top_n of a window gives its list once, when the window is closed: use emit='final'. "
                "keyed.top_n(…) gives the changes of a list, of all rows of a key"
            )

        def parts(kind: OutputType) -> tuple[Contents, Emitter]:
            check_rows(kind, "top_n")
            key = key_names(windowing.key)
            rows = KeyedRows(kind.columns, apart=key, operator="top_n")
            ranking = Ranking(rows, n, by=by, key=key, ascending=ascending, ties=ties)
            return TopRows(rows, ranking, rank=rank), windowing.bounded_rows(kind)

        gives = partial(ranked_columns_of_windows, windowing, rank=rank)
        form = form_of(n, by, ascending=ascending, ties=ties)
        return windowing.operator(parts, form=form, shows=(TOP, None), gives=gives, uid=uid)

    # -- PyFlink's settings ----------------------------------------------------------------------------------------

    def allowed_lateness(self, time_ms: int) -> WindowedStream:
        """Take rows for so many milliseconds longer, as Flink does: each of them fires its window once more.

        Each firing is one more insert. With ``window(…, lateness=…)`` instead, a window comes out once, or its result
        takes the one before back.

        Raises:
            ConfigurationError: the windows have a ``lateness`` already.
        """
        given = self._windowing.settings
        if given.lateness_ms and not given.firings:
            raise ConfigurationError(
                f"window(…, lateness={given.lateness_ms}) and allowed_lateness({time_ms}): with lateness a window "
                "comes out once or takes its results back, with allowed_lateness each late row fires it once more; "
                "leave one of them out"
            )
        return self._with(lateness_ms=time_ms, firings=True)

    def side_output_late_data(self, output_tag: OutputTag) -> WindowedStream:
        """Send rows that come too late for all of their windows to a side output: ``window(…, late_to=tag)``.

        Raises:
            ConfigurationError: the windows have a ``late_to`` already.
        """
        if self._windowing.settings.late_to is not None:
            raise ConfigurationError(
                "the windows have a place for late rows already: late rows go to one side output, so leave "
                "side_output_late_data or late_to out"
            )
        return self._with(late_to=output_tag)

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Take a trigger of PyFlink's where it does what the windows do by themselves, or counts for ``GlobalWindows``.

        Raises:
            ConfigurationError: the windows do not fire as the trigger says.
        """
        windowing = self._windowing
        made = triggered(windowing.windows, trigger, clock=windowing.settings.clock)
        return type(self)(replace(windowing, windows=made))

    def evictor(self, evictor: Any) -> NoReturn:
        """Refuse an evictor of Flink's.

        Raises:
            ConfigurationError: always; a window is computed from all of its rows.
        """
        raise ConfigurationError(
            f"evictor({evictor!r}): no row is taken out of a window before it is computed. Leave rows out in "
            "process(…), which gets all of them, or before the window in filter(…); top_n(n, by=…) keeps the greatest "
            "rows, and count_window(size, slide) the last ones"
        )

    def _with(self, **settings: Any) -> WindowedStream:
        made = replace(self._windowing.settings, **settings)
        return type(self)(replace(self._windowing, settings=made))

    # -- what is computed ------------------------------------------------------------------------------------------

    _FUNCTIONS: tuple[type[Any], ...] = (ProcessWindowFunction, WindowFunction)

    def _aggregates(self, aggregates: Mapping[str, Aggregate], uid: str | None) -> DataStream:
        windowing = self._windowing
        origins, merge = windowing.origins_of_changes, not windowing.single_parts
        check_aggregates(aggregates, origins, merge=merge)
        retract = bool(origins)

        def parts(kind: OutputType) -> tuple[Contents, Emitter]:
            made = plan(aggregates, kind.columns, scalar=kind.scalar, retract=retract, merge=merge)
            return WindowAccumulators(made, takes_back=retract), windowing.bounded_rows(kind)

        def gives(kind: OutputType) -> OutputType:
            between = windowing.columns_between(kind)
            return result_columns(aggregates, windowing.key, kind, retract=retract, between=between)

        return windowing.operator(
            parts, form=WindowAccumulators.form, gives=gives, uid=uid, accepts_changes=retract
        )

    def _accumulated(self, function: AggregateFunction, accumulator_type: TypeLike) -> Keeps:
        accumulated = Accumulated(
            function, to_type(accumulator_type, parameter="accumulator_type of aggregate")
        )
        if self._windowing.single_parts or defines_merge(function):
            return Keeps(Accumulated.form, lambda kind: accumulated)
        return Keeps(WholeRows.form, lambda kind: WholeRows(element_type(kind), accumulated))

    def _passed_on(self, keeps: Keeps, output_type: TypeLike, uid: str | None) -> DataStream:
        return self._windowing.operator(
            lambda kind: (keeps.of(kind), Emitter()), form=keeps.form, output_type=output_type, uid=uid
        )

    def _called(
        self,
        method: str,
        keeps: Keeps,
        function: FunctionOfWindows,
        output_type: TypeLike,
        uid: str | None,
    ) -> DataStream:
        if not isinstance(function, self._FUNCTIONS):
            names = " or ".join(f"a {one.__name__}" for one in self._FUNCTIONS)
            raise ConfigurationError(f"{method} of a window takes {names}, not {function!r}")
        settings = self._windowing.settings
        if settings.has_kinds:
            raise ConfigurationError(
                f"{method} of a window with emit='{settings.emit}': outputs of a function cannot be taken back; use "
                "emit='final', which calls it once, when the window is closed"
            )
        self._check_output_type(method, output_type)
        merging = self._windowing.merge

        def parts(kind: OutputType) -> tuple[Contents, Emitter]:
            return keeps.of(kind), CalledFunction(function, merging=merging)

        return self._windowing.operator(parts, form=keeps.form, output_type=output_type, uid=uid)

    def _check_output_type(self, method: str, output_type: TypeLike) -> None:
        if output_type is None:
            raise ConfigurationError(f"output_type of {method} of a window is missing: declare what it emits")


@guarded_class
class AllWindowedStream(WindowedStream):
    """What ``DataStream.window_all`` gives: windows of all rows of a stream; results have no key."""

    _FUNCTIONS = (ProcessAllWindowFunction, AllWindowFunction)


_WHOLE_ROWS = Keeps(WholeRows.form, lambda kind: WholeRows(element_type(kind)))
