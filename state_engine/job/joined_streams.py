"""Joins of two keyed streams, ``orders.key_by("id").join(payments.key_by("id"), within="1 h")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.co_functions import ProcessJoinFunction
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.keys.canonical import storage_type
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.type_information import TypeLike
from state_engine.job.changing_streams import (
    from_origins,
    is_changing,
    origins_of_changes,
)
from state_engine.job.declared_aggregates import Key, key_columns, record_key
from state_engine.job.graph import KEY_COLUMN, OperatorInput, SelectedKey, declared_type, type_in_code
from state_engine.job.late_outputs import check_event_time
from state_engine.job.lists_of_rows import check_rows
from state_engine.job.stream import Stream, check_time_of_ttl, column_names
from state_engine.job.typed_by_input import TimedByInputs, TypedByInputs, element_type
from state_engine.machine.defects import guarded_class
from state_engine.operators.idle_keys import as_ttl_config
from state_engine.operators.joins.asof_join import AsOfEmit, AsOfJoin, AsOfSettings
from state_engine.operators.joins.interval_join import Interval, IntervalJoin, JoinSettings
from state_engine.operators.joins.joined_rows import CalledJoin, JoinedRows, JoinResults, JoinTime, LeftRows
from state_engine.operators.joins.keyed_join import ONLY_LEFT, KeyedJoin, how_of
from state_engine.operators.joins.regular_join import RegularJoin, RegularSettings
from state_engine.operators.lateness import Lateness
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from state_engine.job.streams import DataStream, KeyedStream

RIGHT = "_right"
"""Stands behind the names of right columns that left rows have, too."""


@guarded_class
class JoinableStream(Stream):
    """Methods of ``KeyedStream`` that take another one."""

    _key: Key

    def join(
        self,
        other: KeyedStream,
        *,
        within: Span | tuple[Span, Span] | None = None,
        how: str = "inner",
        take: Sequence[str] | None = None,
        right: str = RIGHT,
        lateness: Span = 0,
        late_to: OutputTag | None = None,
        late_right_to: OutputTag | None = None,
        time: JoinTime = "left",
        ttl: Span | StateTtlConfig | tuple[Span | StateTtlConfig | None, ...] | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Pair each row with those of another stream that have its key: ``within`` a time, or all, kept for ever.

        A result has the columns of the left row (of this stream), then those of the right one. Nulls in a key of
        several columns equal nothing. The guide on joins shows both kinds.

        **With ``within``**, an interval join of two streams of inserts: pairs come as the later one of their rows
        comes, rows without partner when the watermark says that none comes. So the result is the join of all rows that
        are in time, in any order. State: ``left`` and ``right``. A left row is kept until the watermark is
        ``most + lateness`` behind it, a right one until it is ``-least + lateness`` behind it.

        **Without**, a regular join, and both streams may change: updates and deletes take rows back. The results are
        the join of the existing rows. ``inner`` and ``semi`` of inserts give inserts; all others give changes,
        where a row beside nulls is deleted as its first partner comes, and comes again as the last one goes. State:
        ``left`` and ``right``, one entry for each different existing row, for ever or for ``ttl``. A row is taken
        back by one that is equal in all columns. Outputs have the event time of the row that made them, and no row is
        too late.

        Args:
            other: the right stream, of this job, keyed by columns of the same types.
            within: how far apart two rows may be, ends included. ``"1 h"``: either is at most an hour later.
                ``(0, "1 h")``: the right row is at most an hour later and never earlier. ``0``: of one time.
            how: ``inner``; ``left``, ``right`` or ``full`` for rows without partner, too, with nulls; ``semi`` for left
                rows that have a partner, each once, and ``anti`` for those that have none. Spark's spellings do, too.
            take: columns of the right rows that come out; all by default.
            right: stands behind the name of a right column that left rows have, too.
            lateness: how far behind the watermark rows are still taken; results wait so much longer. For ``within``.
            late_to: the side output for left rows that come too late. They have no pair. Without, they are dropped;
                the metric ``too_late`` counts them. For ``within``.
            late_right_to: the same for right rows.
            time: whose event time a pair has: that of the ``left`` row, of the ``right`` one, or of the ``later`` one.
                For ``within``.
            ttl: without ``within``, drop a row this time after it was written last: as it comes, and with ``how`` that
                gives rows alone also as a partner comes or goes. By the clock of micro-batches, or by event time, as a
                ``StateTtlConfig`` has it; a pair ``(left, right)`` gives each stream its own, None for ever. Results
                stay, and taking a row back that is gone changes nothing.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: the streams are keyed by different types, or columns are unknown or would have one
                name; with ``within``, a stream has no event time, or updates and deletes, or the bounds are reversed;
                an argument is for the other kind.

        Example:
            >>> from state_engine import FileSource, StatefulJob
            >>> job = StatefulJob("orders")
            >>> files = {"orders": "id int, amount int, at timestamp", "payments": "id int, paid_at timestamp"}
            >>> orders = job.source("orders", FileSource("o", schema=files["orders"]), event_time="at")
            >>> paid = job.source("payments", FileSource("p", schema=files["payments"]), event_time="paid_at")
            >>> unpaid = orders.key_by("id").join(paid.key_by("id"), within=(0, "1 h"), how="anti")
            >>> all_times = orders.key_by("id").join(paid.key_by("id"), ttl="90 days")
        """
        check_choice(time, get_args(JoinTime), what="time of a join")
        waits = to_milliseconds(lateness)
        late = Lateness(waits, late_to), Lateness(waits, late_right_to)
        kind, named = how_of(how), Named("join", uid)
        if kind in ONLY_LEFT and (take is not None or right != RIGHT or time != "left"):
            raise ConfigurationError(
                f"join(…, how='{how}') gives left rows as they are: leave take, right and time out"
            )
        outputs = LEFT_ROWS if kind in ONLY_LEFT else columns_of_both(take, right, "join", time)
        if within is not None:
            if ttl is not None:
                raise ConfigurationError(
                    "join(…, within=…) drops each row by event time, when no partner can come: leave ttl out"
                )
            settings = JoinSettings(Interval.of(within), kind, *late, time)
            return self._timed_join(other, IntervalJoin, settings, outputs, named)
        if late != (Lateness(), Lateness()) or time != "left":
            raise ConfigurationError(
                "join without within keeps its rows, so none is too late, and what comes out has the event time of the "
                "row that made it: leave lateness, late_to, late_right_to and time out, or give within=…"
            )
        ttls = ttl if isinstance(ttl, tuple) else (ttl, ttl)
        if len(ttls) != 2:
            raise ConfigurationError(f"ttl of a join takes one time or two, (left, right), not {ttl!r}")
        changing = kind not in _GIVES_INSERTS or is_changing(self._node) or is_changing(other._node)
        lives = [None if one is None else as_ttl_config(one) for one in ttls]
        return self._regular_join(other, RegularSettings(kind, changing, *lives), outputs, named)

    def join_asof(
        self,
        other: KeyedStream,
        *,
        take: Sequence[str] | None = None,
        right: str = RIGHT,
        tolerance: Span | None = None,
        allow_exact_matches: bool = True,
        how: str = "left",
        lateness: Span = 0,
        emit: AsOfEmit = "final",
        late_to: OutputTag | None = None,
        ttl: Span | StateTtlConfig | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """Put beside each row the newest row of another stream that has its key and is not newer than it.

        ``trades.key_by("sym").join_asof(prices.key_by("sym"), take=["bid"], tolerance="1 day")``. A result has the
        columns of the left row, then those of the version that was in force at its time, nulls where there was none.
        Of versions of one time the later one in the total order counts. The right stream may change: a delete ends a
        version at its own time. The guide on joins says when to use which join.

        State: ``versions``, those above ``watermark - lateness`` and the newest one that is not, for ever or for
        ``ttl``; ``waiting``, the left rows above ``watermark - lateness``. Nulls in a key of several columns equal
        nothing.

        Args:
            other: the right stream, of this job, keyed by columns of the same types.
            take: columns of the right rows that come out; all by default.
            right: stands behind the name of a right column that left rows have, too.
            tolerance: how old a version may be, included; of any age by default.
            allow_exact_matches: False leaves out versions of the time of the row.
            how: ``left`` for all left rows; ``inner`` for those that have a version.
            lateness: how far behind the watermark left rows are still taken; results wait so much longer.
            emit: ``final`` puts a row out when both streams have come to its time, so the order of arrival does not
                matter; ``at_once`` as it comes, with the version that has come before it.
            late_to: the side output for left rows that come too late. Without, they are dropped; the metric
                ``too_late`` counts them, and right rows that come so late, which still are versions for later rows.
            ttl: drop a version this time after it came, by the clock of micro-batches.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: a stream has no event time, the left one has updates and deletes; the streams are keyed
                by different types, or columns are unknown or would have one name.

        Example:
            >>> from state_engine import FileSource, StatefulJob
            >>> job = StatefulJob("trades")
            >>> trades = job.source("trades", FileSource("t", schema="sym string, at timestamp"), event_time="at")
            >>> source = FileSource("p", schema="sym string, bid int, at timestamp")
            >>> prices = job.source("prices", source, event_time="at")
            >>> at_bid = trades.key_by("sym").join_asof(prices.key_by("sym"), take=["bid"], tolerance="1 day")
        """
        check_choice(emit, get_args(AsOfEmit), what="emit of join_asof")
        settings = AsOfSettings(
            None if tolerance is None else to_milliseconds(tolerance),
            exact=allow_exact_matches,
            inner=check_choice(how_of(how), ("left", "inner"), what="how of join_asof") == "inner",
            left=Lateness(to_milliseconds(lateness), late_to),
            emit=emit,
            ttl=None if ttl is None else as_ttl_config(ttl),
        )
        origins = origins_of_changes(self._node)
        if origins:
            raise ConfigurationError(
                f"join_asof takes inserts only on its left side, and that holds updates and deletes, too"
                f"{from_origins(origins)}: a result would have to be taken back. Put a KeyedProcessFunction before it "
                "that turns them into inserts; the right side may change"
            )
        outputs = columns_of_both(take, right, "join_asof", "left")
        return self._timed_join(other, AsOfJoin, settings, outputs, Named("join_asof", uid))

    def interval_join(self, other: KeyedStream) -> IntervalJoined:
        """The same by Flink's names: ``left.interval_join(right).between(low, high).process(function, output_type)``.

        Args:
            other: the right stream, as of ``join``.
        """
        return IntervalJoined(self, other)

    def _timed_join(
        self,
        other: KeyedStream,
        join: type[IntervalJoin | AsOfJoin],
        settings: JoinSettings | AsOfSettings,
        outputs: Outputs,
        named: Named,
    ) -> DataStream:
        """A join by event time, which both streams must have."""
        inputs = self._both(other)
        for one in inputs:
            check_event_time(one.parent, what=f"{named.method}(…)", lateness_ms=settings.left.ms)
        function = TimedByInputs(
            self._maker(join, settings, outputs),
            gives=outputs.kind,
            holds_back_ms=settings.holds_back_ms,
            shape=settings.shape,
            accepts_changes=join.accepts_changes,
            shows=join.shows,
            timers_yield=settings.timers_yield,
            late_to=settings.left.late_to,
            late_right_to=settings.right.late_to if isinstance(settings, JoinSettings) else None,
        )
        return self._joined(inputs, function, named)

    def _regular_join(
        self, other: KeyedStream, settings: RegularSettings, outputs: Outputs, named: Named
    ) -> DataStream:
        inputs = self._both(other)
        for one, ttl in zip(inputs, (settings.ttl, settings.right_ttl), strict=True):
            check_time_of_ttl(one.parent, ttl, method="join")
        function = TypedByInputs(
            self._maker(RegularJoin, settings, outputs),
            gives=outputs.kind,
            shape=settings.shape,
            accepts_changes=True,
            emits_changes=settings.emits_changes,
            sees_time=settings.sees_time,
        )
        return self._joined(inputs, function, named)

    def _maker(self, join: type[KeyedJoin[Any]], settings: Any, outputs: Outputs) -> MakesJoin:

        def made(left: OutputType, right: OutputType) -> KeyedJoin[Any]:
            results, record = outputs.results(left, right), record_key(key_columns(self._key, left))
            return join(element_type(left), element_type(right), results, settings, record_key=record)

        return made

    def _both(self, other: KeyedStream) -> tuple[OperatorInput, OperatorInput]:
        """Both streams as inputs. Raises ConfigurationError where the other one cannot be joined."""
        if not isinstance(other, JoinableStream) or other._job is not self._job:
            raise ConfigurationError(
                f"join takes another keyed stream of job '{self._job.name}', not {other!r}: call key_by on it, as in "
                "orders.key_by('id').join(payments.key_by('id'), …)"
            )
        return OperatorInput(self._node, self._key), OperatorInput(other._node, other._key)

    def _joined(
        self, inputs: tuple[OperatorInput, OperatorInput], function: TypedByInputs, named: Named
    ) -> DataStream:
        """The operator; columns that do not fit are refused here and now, if code shows them."""
        left, right = (declared_type(one.parent, type_in_code) for one in inputs)
        if left is not None and right is not None:
            function.bound(left, right)
        joined = self._add(
            inputs, function, method=named.method, uid=named.uid, output_type=named.output_type
        )
        _check_keys(inputs)
        return joined


_GIVES_INSERTS = ("inner", "semi")
"""Regular joins that take nothing back where no row of either stream is."""


class Named(NamedTuple):
    """The method that adds an operator, its uid, and the type of its outputs where that is declared."""

    method: str
    uid: str | None
    output_type: TypeLike = None


@guarded_class
@dataclass(frozen=True)
class IntervalJoined:
    """What ``KeyedStream.interval_join`` gives: say between which bounds, and what is made of each pair.

    Mirrors ``KeyedStream.IntervalJoin`` and ``IntervalJoined`` of Flink, in event time, with these differences: an
    element is late once the watermark is at its time, and a late element has no pair at all.
    """

    left: JoinableStream
    right: KeyedStream
    interval: Interval = Interval(0, 0)  # noqa: RUF009
    late_tags: tuple[OutputTag | None, OutputTag | None] = (None, None)

    def in_event_time(self) -> IntervalJoined:
        """The same: pairs are of event time always."""
        return self

    def between(self, lower_bound: Span, upper_bound: Span) -> IntervalJoined:
        """How much later than the left element the right one of a pair may be, both bounds included.

        Raises:
            ConfigurationError: the upper bound is below the lower one.
        """
        return replace(self, interval=Interval.of((lower_bound, upper_bound)))

    def lower_bound_exclusive(self) -> IntervalJoined:
        """Leave the lower bound out: one millisecond is added to it."""
        return replace(self, interval=Interval(self.interval.least_ms + 1, self.interval.most_ms))

    def upper_bound_exclusive(self) -> IntervalJoined:
        """Leave the upper bound out: one millisecond is taken off it."""
        return replace(self, interval=Interval(self.interval.least_ms, self.interval.most_ms - 1))

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send left elements that come too late to a side output: ``join(…, late_to=tag)``."""
        return replace(self, late_tags=(output_tag, self.late_tags[1]))

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Send right elements that come too late to a side output: ``join(…, late_right_to=tag)``."""
        return replace(self, late_tags=(self.late_tags[0], output_tag))

    def process(
        self,
        process_join_function: ProcessJoinFunction,
        output_type: TypeLike = None,
        *,
        uid: str | None = None,
    ) -> DataStream:
        """Call a function with each pair, as the later one of its elements comes.

        Args:
            process_join_function: gets pairs; its outputs have the time of the later element.
            output_type: of what it emits.
            uid: identity of the operator and of its state.

        Raises:
            ConfigurationError: it is not a ``ProcessJoinFunction``, its type is missing, or as of ``KeyedStream.join``.
        """
        if not isinstance(process_join_function, ProcessJoinFunction):
            raise ConfigurationError(
                f"process of an interval join takes a ProcessJoinFunction, not {process_join_function!r}; join(…, "
                "within=…) gives the columns of both rows without a function"
            )
        left, right = (Lateness(0, tag) for tag in self.late_tags)
        settings = JoinSettings(self.interval, "inner", left, right, "later")
        outputs = Outputs(lambda one, other: CalledJoin(process_join_function))
        named = Named("interval_join", uid, output_type)
        return self.left._timed_join(self.right, IntervalJoin, settings, outputs, named)


MakesJoin = Callable[[OutputType, OutputType], KeyedJoin[Any]]


class Outputs(NamedTuple):
    """What comes out of a join, of rows of some kinds.

    Attributes:
        kind: of the rows that come out; None where that is declared.
    """

    results: Callable[[OutputType, OutputType], JoinResults]
    kind: Callable[[OutputType, OutputType], OutputType] | None = None


LEFT_ROWS = Outputs(lambda left, right: LeftRows(), lambda left, right: left)
"""Left rows as they came."""


def columns_of_both(take: Sequence[str] | None, suffix: str, join: str, time: JoinTime) -> Outputs:
    """The columns of both rows.

    Args:
        join: the method, for messages.
    """
    names = None if take is None else column_names(take, what=f"take of {join}")

    def rows(left: OutputType, right: OutputType) -> JoinedRows:
        check_rows(left, join)
        check_rows(right, join)
        return JoinedRows(left.columns, right.columns, take=names, suffix=suffix, time=time, join=join)

    return Outputs(rows, lambda left, right: OutputType(rows(left, right).columns, scalar=False))


def _check_keys(inputs: Sequence[OperatorInput]) -> None:
    """Refuse streams that are keyed by different types, as far as code shows them."""
    keys = [_declared_key(one) for one in inputs]
    if None in keys:
        return
    left, right = (key.schema for key in keys if key is not None)
    if list(map(storage_type, left.types)) != list(map(storage_type, right.types)):
        raise ConfigurationError(
            f"join: the streams are keyed by {_text(left)} and {_text(right)}, and keys of different "
            "types are never equal: cast one in a transform before key_by"
        )


def _text(key: KeySchema) -> str:
    return ", ".join(f"'{name}' ({ddl_text(kind)})" for name, kind in zip(key.names, key.types, strict=True))


def _declared_key(given: OperatorInput) -> DeclaredKey | None:
    if isinstance(given.key, SelectedKey):
        return DeclaredKey.of(KEY_COLUMN, given.key.key_type)
    kind = declared_type(given.parent, type_in_code)
    return None if kind is None or given.key is None else key_columns(given.key, kind)
