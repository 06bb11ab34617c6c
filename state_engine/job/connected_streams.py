"""Two streams into one function: connected ones, which may share keyed state, and one beside a broadcast stream.

Mirror ``ConnectedStreams``, ``BroadcastStream`` and ``BroadcastConnectedStream`` of ``pyflink.datastream``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.function_calls import has_timers, takes_broadcast, takes_two_inputs
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.types.type_information import TypeLike
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    SideOutputNode,
    SourceNode,
    TransformNode,
    has_event_time,
    merged_ends,
    operator_of,
    parents,
    stream_ends,
    upstream,
)
from state_engine.job.late_outputs import late_outputs
from state_engine.machine.defects import guarded_class

if TYPE_CHECKING:
    from state_engine.job.job import StatefulJob
    from state_engine.job.streams import DataStream
from state_engine.job.stream import KeyLike, Stream, key_of


def check_merged_timers(job: str, nodes: Iterable[Node]) -> None:
    """Refuse to merge what event-time timers emit with another stream, where no order has a place for it.

    Raises:
        ConfigurationError: the order of an operator's input does not begin with its event time.
    """
    ends = (end for node in nodes for end in merged_ends(node))
    for operator in (operator for end in ends for operator in _with_timers(end)):
        if has_event_time(operator):
            sources = sorted({node.name for node in upstream(operator) if isinstance(node, SourceNode)})
            raise ConfigurationError(
                f"job '{job}', operator '{operator.uid}': what its event-time timers emit is merged with another "
                "stream, so it needs a place in the order: begin order_by of each source before it with its event_time "
                f"column, and give all the same number of columns; they are {sources}. Times that a WatermarkStrategy "
                "gives are in no order: name a timestamp column there instead. A function of your own whose on_timer "
                "puts nothing out, or that has timers of processing time only, says timers_yield = False on its class"
            )


def _with_timers(end: SourceNode | OperatorNode | SideOutputNode) -> Iterator[OperatorNode]:
    """The operators of no order whose event-time timers may have emitted rows, or what others made these rows of."""
    if isinstance(end, SourceNode) or is_ordered_by_time(operator_of(end)):
        return
    if _of_timers(end):
        yield operator_of(end)
    for parent in parents(operator_of(end)):
        for before in stream_ends(parent):
            yield from _with_timers(before)


def _of_timers(end: OperatorNode | SideOutputNode) -> bool:
    """Whether event-time timers may have emitted rows of a stream."""
    function = operator_of(end).function
    if isinstance(end, SideOutputNode):
        late = [function.late_to, function.late_right_to, *late_outputs(end.operator).values()]
        if end.tag in late:
            return False
    return has_timers(function) and function.timers_yield


def is_ordered_by_time(node: Node) -> bool:
    """Whether the order of a stream begins with its event time, as far as the job says it.

    Of several streams, all have as many named columns of order; else they have none in common.
    """
    if isinstance(node, SourceNode):
        return (
            node.timestamps is None
            and node.event_time is not None
            and node.order_by[:1] == (node.event_time,)
        )
    if isinstance(node, TransformNode) and node.order_by is not None:
        ends = stream_ends(node)
        return (
            len(ends) == 1 and isinstance(ends[0], SourceNode) and node.order_by[:1] == (_column_of(ends[0]),)
        )
    if isinstance(node, OperatorNode) and node.by_event_time:
        return True
    before = parents(node)
    return all(map(is_ordered_by_time, before)) and len({_named(one) for one in before}) == 1


def _column_of(source: SourceNode) -> str | None:
    return source.event_time if source.timestamps is None else None


def _named(node: Node) -> int:
    """How many columns of a stream's order are named."""
    if isinstance(node, SourceNode):
        return len(node.order_by)
    if isinstance(node, TransformNode) and node.order_by is not None:
        return len(node.order_by)
    if isinstance(node, OperatorNode) and node.by_event_time:
        return 1
    named = {_named(one) for one in parents(node)}
    return named.pop() if len(named) == 1 else 0


@guarded_class
class BroadcastStream:
    """A broadcast stream: every subtask of the connected operator receives all rows."""

    _states: tuple[MapStateDescriptor, ...] = ()

    def __init__(self, job: StatefulJob, node: Node, states: tuple[MapStateDescriptor, ...] = ()) -> None:
        self._job, self._node, self._states = job, node, states

    def _everywhere(self) -> OperatorInput | None:
        """The stream as one of two connected ones; None where it was broadcast for states."""
        return None


@guarded_class
class ConnectedStreams(Stream):
    """Two streams into one function, which may share keyed state."""

    _made_by_operator = False

    def __init__(self, job: StatefulJob, first: OperatorInput, second: OperatorInput) -> None:
        super().__init__(job, first.parent)
        self._inputs = (first, second)

    def key_by(self, first: KeyLike, second: KeyLike, key_type: TypeLike | None = None) -> ConnectedStreams:
        """Partition both streams: columns (a name or a list of names) or functions, one for each stream.

        Keys that they had before are forgotten.
        """
        one, two = self._inputs
        keys = [key_of(k if isinstance(k, list | tuple) else (k,), key_type) for k in (first, second)]
        return ConnectedStreams(self._job, replace(one, key=keys[0]), replace(two, key=keys[1]))

    def map(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a ``CoMapFunction``."""
        return self._two("map", function, output_type, uid)

    def flat_map(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a ``CoFlatMapFunction``."""
        return self._two("flat_map", function, output_type, uid)

    def process(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a ``CoProcessFunction``, or a ``KeyedCoProcessFunction`` where the streams are keyed."""
        return self._two("process", function, output_type, uid)

    def _two(self, method: str, function: Function, output_type: TypeLike, uid: str | None) -> DataStream:
        if not takes_two_inputs(function):
            raise ConfigurationError(
                f"operator '{uid or method}': {function!r} takes one stream; connected streams need a CoMapFunction, "
                "CoFlatMapFunction, CoProcessFunction or KeyedCoProcessFunction"
            )
        if len({one.key is None for one in self._inputs}) > 1:
            raise ConfigurationError(
                f"operator '{uid or method}': one of the connected streams is keyed and the other is not; key both, "
                "connect(…).key_by(first, second), or none"
            )
        return self._add(self._inputs, function, method=method, uid=uid, output_type=output_type)


@guarded_class
class BroadcastConnectedStream(Stream):
    """A stream, keyed or not, beside one that every subtask sees whole: before its elements, or among them.

    Made by ``connect(rules.broadcast(descriptor))``; among them with ``ordered=True``, by event time. Decision 0060.
    """

    _made_by_operator = False

    def __init__(
        self, job: StatefulJob, first: OperatorInput, second: BroadcastStream, *, ordered: bool = False
    ) -> None:
        super().__init__(job, first.parent)
        self._inputs = (
            first,
            OperatorInput(second._node, broadcast=True, ordered=ordered, states=second._states),
        )
        self._second, self._ordered = second, ordered

    def _plain(self, method: str) -> ConnectedStreams:
        """The two as connected streams, of which every subtask gets the second one whole."""
        second = self._second._everywhere()
        if second is None:
            raise ConfigurationError(
                f"{method}: a stream beside broadcast(descriptor) takes process with a BroadcastProcessFunction; for "
                "functions of two streams call broadcast() without descriptors"
            )
        if self._ordered:
            raise ConfigurationError(
                f"{method}: ordered=True is for a BroadcastProcessFunction; a function of two streams sees the "
                "elements of broadcast() in their total order already: leave it out"
            )
        return ConnectedStreams(self._job, self._inputs[0], second)

    def map(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a ``CoMapFunction``, where the second stream is ``broadcast()`` without descriptors."""
        return self._plain("map").map(function, output_type, uid=uid)

    def flat_map(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a ``CoFlatMapFunction``, where the second stream is ``broadcast()`` without descriptors."""
        return self._plain("flat_map").flat_map(function, output_type, uid=uid)

    def process(
        self, function: Function, output_type: TypeLike | None = None, *, uid: str | None = None
    ) -> DataStream:
        """Run a ``BroadcastProcessFunction``, or a ``KeyedBroadcastProcessFunction`` where the stream is keyed.

        Behind ``broadcast()`` without descriptors a ``CoProcessFunction`` as well.
        """
        if takes_two_inputs(function):
            return self._plain("process").process(function, uid=uid, output_type=output_type)
        if not takes_broadcast(function):
            raise ConfigurationError(
                f"operator '{uid or 'process'}': {function!r} takes no broadcast elements; use a "
                "BroadcastProcessFunction or a KeyedBroadcastProcessFunction"
            )
        if self._ordered:
            self._require_event_time(uid or "process")
        return self._add(self._inputs, function, method="process", uid=uid, output_type=output_type)

    def _require_event_time(self, uid: str) -> None:
        """Event time on both sides, without which nothing says where a broadcast element stands."""
        nodes = upstream(*(one.parent for one in self._inputs))
        untimed = sorted(n.name for n in nodes if isinstance(n, SourceNode) and not n.timed)
        if untimed:
            raise ConfigurationError(
                f"operator '{uid}': connect(…, ordered=True) puts both streams into the order of their event times, "
                f"and these sources have none: {untimed}. Give each of them one, in source(event_time=…) or by "
                "assign_timestamps_and_watermarks(…), before connect; or connect without ordered=True, which applies "
                "all broadcast elements of a micro-batch first"
            )
