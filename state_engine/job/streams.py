"""Streams: what a job's author holds while wiring it. Every call adds a node to the graph and returns a new stream.

``DataStream`` has no key and so no keyed state; ``KeyedStream`` has both; ``ConnectedStreams`` are two streams into one
function, ``BroadcastStream`` one that every subtask sees whole. Mirror the classes of these names in
``pyflink.datastream``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import pyarrow as pa

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.function_calls import takes_two_inputs
from state_engine.core.functions.key_selector import KeySelector
from state_engine.core.functions.map_functions import FilterFunction, FlatMapFunction, MapFunction
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.sink_function import SinkFunction
from state_engine.core.state.aggregate_functions import AggregateFunction, ReduceFunction
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.time.watermark_strategy import WatermarkStrategy
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.changing_streams import (
    check_key_of_windows,
    check_sink,
    is_changing,
    origins_of_changes,
    sequence_of_feeds,
)
from state_engine.job.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from state_engine.job.declared_aggregates import declared_aggregates
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    SelectedKey,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    declared_columns,
    declared_type,
    type_in_code,
    upstream,
)
from state_engine.job.joined_streams import JoinableStream
from state_engine.job.keyed_sinks import KeyedSink, keyed, last_rows, table_of, uid_of
from state_engine.job.library import TableFunctions
from state_engine.job.stream import check_time_of_ttl, column_names, idle_time, key_of
from state_engine.job.stream_shortcuts import StreamShortcuts
from state_engine.job.time_policies import timestamps_behind, warn_of_outages
from state_engine.job.timed_functions import TimedFunctions
from state_engine.job.typed_by_input import TypedByInput, element_type, forgetting
from state_engine.machine.defects import guarded_class
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.idle_keys import ForgetsIdleKeys
from state_engine.operators.last_rows import ROW
from state_engine.operators.rolling import (
    MapWithState,
    RollingAggregate,
    RollingKind,
    RollingReduce,
    RunningAggregate,
)
from state_engine.sinks.base import Sink
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from state_engine.job.job import StatefulJob

Emit = Literal["rows", "changes"]
"""What the running results of a key are: events of their own, or changes of one."""


@guarded_class
class DataStream(StreamShortcuts):
    """An unkeyed stream of rows, like Flink's ``DataStream``."""

    def transform(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        order_by: Sequence[str] | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Apply DataFrame code to every micro-batch.

        It treats rows one by one: select, filter, explode, unpivot, union of its parts, join with another table, UDFs.
        What looks at other rows (limit, distinct, groupBy, sorts, window functions) or at when and where it runs
        (rand, current_timestamp, input_file_name) raises ConfigurationError in the first run. The rows keep their
        order and event time, which the DataFrame does not show.

        Args:
            function: DataFrame to DataFrame.
            order_by: names the total order of the result; needed where the code makes new rows (mapInArrow,
                mapInPandas, an RDD) and the source declares no ``order_by``.
            output_type: what the elements of the result are, as of an operator: a dataclass, ``Types``, …; its columns
                are those of the result, in any order. Without, they are Rows of what Spark says the columns are.
        """
        if not callable(function):
            raise ConfigurationError(
                f"transform takes a function from DataFrame to DataFrame, not {function!r}"
            )
        order = None if order_by is None else column_names(order_by, what="order_by of transform")
        made = None
        if output_type is not None:
            made = OutputType.of(to_type(output_type, parameter="output_type of transform"))
        node = TransformNode(self._node, function, order, made)
        return DataStream(self._job, node)

    def key_by(
        self,
        *key: str | KeySelector | Callable[[Any], Any] | TypeInformation,
        key_type: TypeLike | None = None,
    ) -> KeyedStream:
        """Partition the stream by key.

        Args:
            key: names of columns, which is the fast way: one gives scalar keys, several give tuples. Or one function
                (or ``KeySelector``) from an element to its key, behind which its type may stand as in PyFlink.
            key_type: type of the key, where a function gives it; ``get_current_key()`` gives it back as declared.
        """
        if key_type is None and key and isinstance(key[-1], TypeInformation):
            *selectors, key_type = key
            key = tuple(selectors)
        return KeyedStream(self._job, self._node, key_of(key, key_type))

    def map(
        self,
        function: MapFunction | Callable[[Any], Any],
        output_type: TypeLike | None = None,
        *,
        uid: str | None = None,
    ) -> DataStream:
        """One output for every element."""
        made = MapFunction.of(function, what="map")
        return self._add((self._input(),), made, method="map", uid=uid, output_type=output_type)

    def flat_map(
        self,
        function: FlatMapFunction | Callable[[Any], Any],
        output_type: TypeLike | None = None,
        *,
        uid: str | None = None,
    ) -> DataStream:
        """Any number of outputs for every element."""
        made = FlatMapFunction.of(function, what="flat_map")
        return self._add((self._input(),), made, method="flat_map", uid=uid, output_type=output_type)

    def filter(
        self, function: FilterFunction | Callable[[Any], bool], *, uid: str | None = None
    ) -> DataStream:
        """The elements for which the function is true."""
        made = FilterFunction.of(function, what="filter")
        return self._add((self._input(),), made, method="filter", uid=uid, output_type=None)

    def process(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a function over every element.

        Args:
            function: sees the elements of its subtask in total order; on a keyed stream with the state of the key.
            uid: identity of the operator and of its state, across versions of the job; or call ``uid(...)`` after.
            output_type: of the outputs: DDL, ``Types``, Spark, Arrow or Python types; see ``type_parsing.to_type``.
        """
        if isinstance(function, MapFunction | FlatMapFunction | FilterFunction) or takes_two_inputs(function):
            raise ConfigurationError(
                f"operator '{uid}': process takes a ProcessFunction or a KeyedProcessFunction, not {function!r}"
            )
        return self._add((self._input(),), function, method="process", uid=uid, output_type=output_type)

    def union(self, *others: DataStream) -> DataStream:
        """The rows of several streams with the same columns, merged by their order."""
        return DataStream(self._job, UnionNode((self._node, *(_of(self._job, o)._node for o in others))))

    @overload
    def connect(self, other: BroadcastStream, *, ordered: bool = False) -> BroadcastConnectedStream: ...

    @overload
    def connect(self, other: DataStream) -> ConnectedStreams: ...

    def connect(
        self, other: DataStream | BroadcastStream, *, ordered: bool = False
    ) -> ConnectedStreams | BroadcastConnectedStream:
        """Two streams into one function: ``ConnectedStreams``, or ``BroadcastConnectedStream``.

        Args:
            other: of this job; ``rules.broadcast(descriptor)`` for a function that takes broadcast elements.
            ordered: put broadcast elements into the total order, by event time, which all sources of both streams must
                have: an element sees the rules up to its own time, those of the same time included, however rows are
                cut into micro-batches. Without, all broadcast elements of a micro-batch come before its other elements.
                See docs/guides/broadcast.md.

        Raises:
            ConfigurationError: ``other`` is of another job; or it is not broadcast, and ``ordered`` stands beside it.
        """
        if isinstance(other, BroadcastStream):
            return BroadcastConnectedStream(self._job, self._input(), _of(self._job, other), ordered=ordered)
        if ordered:
            raise ConfigurationError(
                "connect(…, ordered=True) is for a broadcast stream: connect(rules.broadcast(descriptor), "
                "ordered=True). The elements of two connected streams are in their total order already: leave it out"
            )
        return ConnectedStreams(self._job, self._input(), _of(self._job, other)._input())

    @overload
    def broadcast(self) -> BroadcastDataStream: ...

    @overload
    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream: ...

    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream | BroadcastDataStream:
        """A broadcast stream: every subtask of the connected operator receives all rows.

        With descriptors a ``BroadcastStream``, to be connected with another one. Without, a stream as well: every
        subtask of the operator behind it gets all elements, so ``broadcast().map(f)`` has as many outputs for an
        element as there are subtasks.

        Args:
            descriptors: the broadcast states, which a function asks for by descriptor. A run compares them with what is
                stored before it reads a row.
        """
        if descriptors:
            return BroadcastStream(self._job, self._node, descriptors)
        return BroadcastDataStream(self._job, self._node)

    def get_side_output(self, tag: OutputTag) -> DataStream:
        """What the operator of this stream yields as ``tag, value``, or diverts by ``late_to`` of a source."""
        operator = self._operator("get_side_output")
        known = operator.side_outputs.setdefault(tag.tag_id, tag)
        if known != tag:
            raise ConfigurationError(
                f"operator '{operator.uid}': the side output '{tag.tag_id}' is read as {known.type_info} and as "
                f"{tag.type_info}; use one tag"
            )
        return DataStream(self._job, SideOutputNode(operator, tag))

    def assign_timestamps_and_watermarks(
        self,
        event_time: str | WatermarkStrategy,
        max_out_of_orderness: Span = 0,
    ) -> DataStream:
        """Declare the event time of the sources of this stream.

        Args:
            event_time: a WatermarkStrategy, on the stream of a source, or behind maps and filters of it that need no
                ``open``: elements that these leave out move no watermark. Or the column (timestamp or date) that holds
                it where an operator reads the stream.
            max_out_of_orderness: how late rows may come: see ``source``; beside a column.

        Raises:
            ConfigurationError: the stream is not one of sources; a strategy behind other steps, or without timestamps
                where the source names no column.
        """
        if isinstance(event_time, WatermarkStrategy):
            return self._with_strategy(event_time, max_out_of_orderness)
        if not isinstance(event_time, str):
            raise ConfigurationError(
                "assign_timestamps_and_watermarks takes a WatermarkStrategy or the name of a column, "
                f"not {event_time!r}"
            )
        for node in upstream(self._node):
            if isinstance(node, OperatorNode):
                raise ConfigurationError(
                    "event time belongs to sources: declare it before the first operator, which passes it on"
                )
            if isinstance(node, SourceNode):
                node.event_time, node.timestamps, node.timed_at = event_time, None, None
                node.max_out_of_orderness_ms = to_milliseconds(max_out_of_orderness)
                warn_of_outages(node)
        return DataStream(self._job, self._node)

    def _with_strategy(self, strategy: WatermarkStrategy, beside: Any) -> DataStream:
        node = self._node
        if beside != 0:
            raise ConfigurationError(
                "max_out_of_orderness stands beside the name of a column; a WatermarkStrategy has its own: "
                "for_bounded_out_of_orderness(…)"
            )
        if isinstance(self, KeyedStream | BroadcastStream):
            raise ConfigurationError(
                "assign_timestamps_and_watermarks comes before key_by and broadcast, which pass event time on"
            )
        source, timestamps = timestamps_behind(node, strategy.timestamps)
        if timestamps is None and source.event_time is None:
            raise ConfigurationError(
                f"source '{source.name}': nothing gives its elements event times: add with_timestamp_assigner(…) or "
                "with_timestamp_column(name, unit) to the WatermarkStrategy, or name a column in "
                "source(event_time=…)"
            )
        if source.timed_at not in (None, source, *upstream(node)):
            raise ConfigurationError(
                f"source '{source.name}': another stream of it has a WatermarkStrategy of its own, and a source has "
                "one event time: assign it once, right on the source, or read the source twice, under two names"
            )
        source.timestamps, source.max_out_of_orderness_ms = timestamps, strategy.out_of_orderness_ms
        if strategy.idleness_ms is not None:
            source.time_policy = replace(source.time_policy, idle_after_ms=strategy.idleness_ms)
        source.timed_at = node
        warn_of_outages(source)
        return DataStream(self._job, node)

    def sink(self, name: str, sink: Sink) -> DataStream:
        """Write the stream to a sink; returns the stream itself.

        A ``DeltaSink`` or ``SqlSink`` with ``key=`` shows the last row of each key: the engine keeps these rows in the
        state ``row`` of an operator ``sink_<name>``, and publishes it as ``publish_state`` does. It takes streams that
        change: deletes remove rows.

        Raises:
            ConfigurationError: the name is taken; the sink cannot take the stream.
        """
        self._job.check_output_name(name, what="sink")
        if not isinstance(sink, Sink):
            raise ConfigurationError(
                f"sink '{name}': {sink!r} is not a sink; use DeltaSink(path) or FileSink(path), "
                "and add_sink(...) for a SinkFunction"
            )
        last_of_each = keyed(sink)
        if last_of_each is not None:
            self._keyed_sink(name, last_of_each)
            return self
        check_sink(sink, self._node, name=name)
        declared = declared_columns(self._node, type_in_code)
        if declared is not None:
            sink.check_columns(pa.schema(list(declared.arrow)), name=name)
        self._job.sinks[name] = SinkNode(name, self._node, sink)
        return self

    def _keyed_sink(self, name: str, sink: KeyedSink) -> None:
        """An operator that keeps the last row of each key, whose state the sink's table shows."""
        check_time_of_ttl(self._node, sink.ttl, method=f"sink '{name}'")
        if not sink.sequence:
            check_key_of_windows(sink.key or (), self._node, name=name)
        function = last_rows(
            name, sink, declared_type(self._node, type_in_code), sequence_of_feeds(self._node)
        )
        key = tuple(sink.key or ())
        by_key = (OperatorInput(self._node, key),)
        last = self._add(by_key, function, method="sink", uid=uid_of(name), output_type=None)
        last.name(f"last rows of sink {name}").publish_state(ROW, table_of(sink), name=name)
        self._job.published[name] = replace(self._job.published[name], sink_key=key)

    def add_sink(self, function: SinkFunction, *, uid: str | None = None) -> DataStream:
        """Hand every element to a function that has no outputs: delivery is at least once, its state exactly once.

        Returns the stream that ``uid``, ``name`` and ``set_parallelism`` may be called on; it has no rows.
        """
        if not isinstance(function, SinkFunction):
            raise ConfigurationError(
                f"add_sink takes a SinkFunction, not {function!r}; for tables use sink(name, …)"
            )
        return self._add((self._input(),), function, method="sink", uid=uid, output_type=None)

    def collect(self, **options: Any) -> list[Any]:
        """Run what this stream needs in a state of its own, and give its elements; for tests.

        Args:
            options: for ``StateEngine.run``, and ``spark``: a session.
        """
        from state_engine.engine.collecting import collect

        return collect(self._job, self._node, **options)

    def _input(self) -> OperatorInput:
        return OperatorInput(self._node)


@guarded_class
class BroadcastDataStream(DataStream, BroadcastStream):
    """A stream of which every subtask of the next operator gets all elements."""

    _made_by_operator = False

    def _input(self) -> OperatorInput:
        return OperatorInput(self._node, everywhere=True)

    def _everywhere(self) -> OperatorInput:
        return self._input()


@guarded_class
class KeyedStream(TableFunctions, TimedFunctions, JoinableStream, DataStream):
    """A stream partitioned by key: the only place where keyed state exists."""

    _made_by_operator = False

    def __init__(self, job: StatefulJob, node: Node, key: tuple[str, ...] | SelectedKey) -> None:
        super().__init__(job, node)
        self._key = key

    def map_with_state(
        self, function: Callable[[Any, Any], tuple[Any, Any]], state_type: TypeLike, output_type: TypeLike, *,
        uid: str | None = None,
    ) -> DataStream:  # fmt: skip
        """One output for every element, with a value state of its key that stays for ever unless it is cleared.

        ``function(value, state or None) -> (output, new state)``: a new state of None clears it. A process function can
        have a state with a time to live instead.
        """
        made = MapWithState(function, state_type)
        return self._add((self._input(),), made, method="map_with_state", uid=uid, output_type=output_type)

    @overload
    def aggregate(
        self,
        function: AggregateFunction,
        accumulator_type: TypeLike,
        output_type: TypeLike,
        *,
        emit: Emit = "rows",
        ttl: Span | StateTtlConfig | None = None,
        uid: str | None = None,
    ) -> DataStream: ...

    @overload
    def aggregate(
        self,
        *,
        emit: Emit | Aggregate = "rows",
        ttl: Span | StateTtlConfig | Aggregate | None = None,
        uid: str | None = None,
        **aggregates: Aggregate,
    ) -> DataStream: ...

    def aggregate(
        self,
        function: AggregateFunction | Aggregate | None = None,
        accumulator_type: TypeLike | Aggregate | None = None,
        output_type: TypeLike | Aggregate | None = None,
        *,
        emit: Emit | Aggregate = "rows",
        ttl: Span | StateTtlConfig | Aggregate | None = None,
        uid: str | None = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """For every element, the aggregation of all elements of its key so far; keys stay for ever without ``ttl``.

        By an ``AggregateFunction``, whose ``get_result`` comes out; or by declared aggregates,
        ``keyed.aggregate(n=count(), total=sum_("amount"))``, which come out beside the key. On a stream whose rows are
        updated and deleted such rows are taken back, which an ``AggregateFunction`` needs ``retract`` for: results are
        an insert for the first row of a key, then updates, and with its last row a delete. The guide on aggregates has
        examples.

        Args:
            function: adds elements to an accumulator and gives its result.
            accumulator_type: what is stored, of a function.
            output_type: of the results, of a function.
            emit: ``rows`` makes each result an insert, an event of its own. ``changes`` lets each result of a key take
                the one before back: for a keyed sink, or to rank or aggregate the newest results. On a stream that
                changes they always do.
            ttl: forget a key this time after its last row, by the clock of micro-batches, or by event time, as a
                ``StateTtlConfig`` has it. The next row of the key is the first one again. With ``changes``, a delete of
                its result comes out.
            aggregates: ``count``, ``sum_``, ``first`` and so on, by the names of their columns.

        Raises:
            ConfigurationError: there are both or neither; or an aggregate does not fit the columns of the stream.
        """
        of_function = (function, accumulator_type, output_type)
        misnamed = any(isinstance(one, Aggregate) for one in (*of_function, uid, emit, ttl))
        if not misnamed:
            check_choice(emit, get_args(Emit), what="emit of aggregate")
        emits_changes = is_changing(self._node) or emit == "changes"
        if aggregates and of_function == (None, None, None) and not misnamed:
            assert not isinstance(ttl, Aggregate)
            return self._aggregate(aggregates, uid, ttl, emits_changes=emits_changes)
        if (
            aggregates
            or misnamed
            or function is None
            or isinstance(function, Aggregate)
            or isinstance(ttl, Aggregate)
        ):
            raise ConfigurationError(
                "aggregate takes an AggregateFunction with accumulator_type and output_type, or aggregates by the name "
                "of the column that each becomes, as in aggregate(n=count(), total=sum_('amount')), and not both. No "
                "such column can be called function, accumulator_type, output_type, emit, ttl or uid"
            )
        running = RunningAggregate(function, accumulator_type, emits_changes=emits_changes)
        idle = idle_time(self._node, ttl, method="aggregate")
        made = running if idle is None else ForgetsIdleKeys(running, idle)
        return self._add((self._input(),), made, method="aggregate", uid=uid, output_type=output_type)

    def _aggregate(
        self,
        aggregates: Mapping[str, Aggregate],
        uid: str | None,
        ttl: Span | StateTtlConfig | None,
        *,
        emits_changes: bool,
    ) -> DataStream:
        origins = origins_of_changes(self._node)
        running = declared_aggregates(aggregates, self._key, origins=origins, emits_changes=emits_changes)
        made = forgetting(running, idle_time(self._node, ttl, method="aggregate"))
        declared = declared_type(self._node)
        if declared is not None:
            made.gives(declared)  # what does not fit is refused here and now
        return self._add((self._input(),), made, method="aggregates", uid=uid, output_type=None)

    def reduce(
        self,
        function: ReduceFunction | Callable[[Any, Any], Any],
        *,
        inverse: ReduceFunction | Callable[[Any, Any], Any] | None = None,
        uid: str | None = None,
    ) -> DataStream:
        """For every element, the reduction of all elements of its key so far, of which one value a key stays for ever.

        A process function with a reducing state can forget keys, by a time to live.

        Args:
            function: combines the value so far and an element.
            inverse: takes an element out of the value so far, where rows are updated and deleted: for
                ``reduce(lambda a, b: a + b)`` it is ``lambda total, b: total - b``.
        """
        check = ReduceFunction.of(function, what="reduce")
        undo = None if inverse is None else ReduceFunction.of(inverse, what="inverse of reduce")
        changing = is_changing(self._node)
        made = TypedByInput(
            lambda kind: RollingReduce(check, element_type(kind), undo, emits_changes=changing),
            accepts_changes=undo is not None,
            emits_changes=changing,
            gives_running_results=not changing,
        )
        return self._add((self._input(),), made, method="reduce", uid=uid, output_type=None)

    def sum(self, field: str | int = 0, *, uid: str | None = None) -> DataStream:
        """For every element, its key's first element with the sum of a field so far; keys stay for ever.

        ``aggregate(x=sum_(…), ttl=…)`` forgets keys.
        """
        return self._rolling("sum", field, uid)

    def min(self, field: str | int = 0, *, uid: str | None = None) -> DataStream:
        """For every element, its key's first element with the least value of a field so far; keys stay for ever.

        ``aggregate(x=min_(…), ttl=…)`` forgets keys.
        """
        return self._rolling("min", field, uid)

    def max(self, field: str | int = 0, *, uid: str | None = None) -> DataStream:
        """For every element, its key's first element with the greatest value of a field so far; keys stay for ever.

        ``aggregate(x=max_(…), ttl=…)`` forgets keys.
        """
        return self._rolling("max", field, uid)

    def min_by(self, field: str | int = 0, *, uid: str | None = None) -> DataStream:
        """For every element, the first of its key so far with the least value of a field; keys stay for ever.

        ``aggregate(x=min_by(…), ttl=…)`` forgets keys.
        """
        return self._rolling("min_by", field, uid)

    def max_by(self, field: str | int = 0, *, uid: str | None = None) -> DataStream:
        """For every element, the first of its key so far with the greatest value of a field; keys stay for ever.

        ``aggregate(x=max_by(…), ttl=…)`` forgets keys.
        """
        return self._rolling("max_by", field, uid)

    def _same_rows(self, method: str) -> DataStream:
        raise ConfigurationError(
            f"{method}: a keyed stream is partitioned by its key; call {method} before key_by"
        )

    def sink(self, name: str, sink: Sink) -> DataStream:
        """Write the stream to a sink; keys do not matter there."""
        DataStream(self._job, self._node).sink(name, sink)
        return self

    def _rolling(self, kind: RollingKind, field: str | int, uid: str | None) -> DataStream:
        made = TypedByInput(
            lambda of: RollingAggregate(kind, field, element_type(of)), gives_running_results=True
        )
        return self._add((self._input(),), made, method=kind, uid=uid, output_type=None)

    def _input(self) -> OperatorInput:
        return OperatorInput(self._node, self._key)


def _of(job: StatefulJob, stream: Any) -> Any:
    if not isinstance(stream, DataStream | BroadcastStream):
        raise ConfigurationError(f"{stream!r} is not a stream of job '{job.name}'")
    if stream._job is not job:
        raise ConfigurationError(
            f"a stream of job '{stream._job.name}' cannot be joined with one of job '{job.name}': build both in one job"
        )
    return stream
