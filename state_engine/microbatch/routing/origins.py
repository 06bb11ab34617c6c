"""``Origins``: what moves the watermark of an operator: its sources, and the outputs of operators that it reads.

Rows that come straight from a source move the watermark by their event times. Rows that another operator put out carry
how far the watermark was there; they count for all the sources behind that operator together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from state_engine.core.functions.function_calls import sees_time
from state_engine.core.time.watermarks import combined, held_back, slowest
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.job.graph import (
    Node,
    OperatorNode,
    SideOutputNode,
    SourceNode,
    operator_of,
    stream_ends,
    upstream,
)
from state_engine.job.late_outputs import late_outputs

_AND = "\x1f"


@dataclass(frozen=True)
class Origins:
    """What moves the watermark of one operator in one batch.

    Attributes:
        start_ms: watermark of each before the batch; the largest long for one that is idle.
        delays_ms: out-of-orderness of those that are sources, by their number.
        held_ms: by their number, how much the operators in between hold their watermarks back. Rows that an operator
            put out carry what its watermark would be if none did.
        least_ms: watermark of the operator before the batch; None where it has none yet.
    """

    names: tuple[str, ...] = ()
    start_ms: tuple[int | None, ...] = ()
    delays_ms: Mapping[int, int] | None = None
    least_ms: int | None = None
    held_ms: Mapping[int, int] | None = None


NO_ORIGINS = Origins()


def origin_of(node: SourceNode | OperatorNode | SideOutputNode) -> str | None:
    """Name of the origin of a stream's rows: the sources with event time behind it; None where there are none."""
    return _AND.join(sorted(timed_sources(node))) or None


def timed_sources(node: Node) -> dict[str, SourceNode]:
    return {n.name: n for n in upstream(node) if isinstance(n, SourceNode) and n.timed}


@dataclass(frozen=True)
class EventTimes:
    """How far event time is, of every stream of a job, at one moment: the watermarks of its sources and operators.

    An operator is as far as the slowest of the streams that it reads and that are not idle, and it never goes back.
    Where all of them are idle, it stays where it was. Plays the part of Flink's ``StatusWatermarkValve``.

    Attributes:
        sources_ms: watermarks of the sources with event time; None before the first row.
        operators_ms: what operators reached before, by uid, where their sources' watermarks alone do not say it.
    """

    sources_ms: Mapping[str, int | None]
    idle: frozenset[str] = frozenset()
    operators_ms: Mapping[str, int] = field(default_factory=dict)

    def of(self, node: SourceNode | OperatorNode | SideOutputNode) -> int | None:
        """The watermark of a source, or of an operator itself; None where it has none yet."""
        if isinstance(node, SourceNode):
            return self.sources_ms.get(node.name)
        operator = operator_of(node)
        active = [self.emitted(end) for end in timed_ends(operator) if not self.is_idle(end)]
        return combined(active, self.operators_ms.get(operator.uid))

    def emitted(self, node: SourceNode | OperatorNode | SideOutputNode) -> int | None:
        """The watermark of what a node emits; None where it has none yet."""
        if isinstance(node, SourceNode):
            return self.of(node)
        return held_back(self.of(node), operator_of(node).function.holds_back_ms or 0)

    def start(self, operator: OperatorNode) -> int | None:
        """The watermark of an operator before its first row, where these are those before a micro-batch.

        What the operators before it yield when a source falls idle still comes, so only sources raise it here.
        """
        starts = [one for node in timed_ends(operator) if (one := self.start_of_end(node)) != MAX_TIMESTAMP]
        return combined(starts, self._without_idleness.of(operator))

    def start_of_end(self, node: SourceNode | OperatorNode | SideOutputNode) -> int | None:
        """The same of one stream that it reads; the largest long where that is idle."""
        if self.is_idle(node):
            return MAX_TIMESTAMP
        return self.of(node) if isinstance(node, SourceNode) else self._without_idleness.emitted(node)

    @property
    def _without_idleness(self) -> EventTimes:
        return replace(self, idle=frozenset())

    def is_idle(self, node: Node) -> bool:
        return self.idle.issuperset(timed_sources(node))


def origins_of(operator: OperatorNode, times: EventTimes) -> Origins:
    by_name: dict[str, tuple[int | None, int | None]] = {}
    held: dict[str, int] = {}
    for node in timed_ends(operator):
        name = origin_of(node)
        assert name is not None
        start, held[name] = times.start_of_end(node), max(held_back_of(node), held.get(name, 0))
        delay = node.max_out_of_orderness_ms if isinstance(node, SourceNode) else None
        other_start, other_delay = by_name.get(name, (start, None))
        by_name[name] = (slowest([start, other_start]), delay if delay is not None else other_delay)
    delays = {at: delay for at, (_, delay) in enumerate(by_name.values()) if delay is not None}
    starts, least_ms = tuple(start for start, _ in by_name.values()), times.start(operator)
    if all(start == MAX_TIMESTAMP for start in starts):
        starts = (least_ms,) * len(starts)  # where all are idle, it stays
    return Origins(tuple(by_name), starts, delays, least_ms, dict(enumerate(held.values())))


def held_back_of(node: SourceNode | OperatorNode | SideOutputNode) -> int:
    """By how much the watermark of what a node emits is behind that of its sources: operators hold it back."""
    if isinstance(node, SourceNode):
        return 0
    operator = operator_of(node)
    return held_back_before(operator) + (operator.function.holds_back_ms or 0)


def held_back_before(operator: OperatorNode) -> int:
    """By how much the operators before this one hold its watermark back, in milliseconds."""
    return max((held_back_of(end) for end in timed_ends(operator)), default=0)


def may_be_held_back(operator: OperatorNode) -> bool:
    """Whether an operator before this one holds its watermark back, or may do so another time."""
    ends = [operator_of(end) for end in timed_ends(operator) if not isinstance(end, SourceNode)]
    return any(one.function.holds_back_ms is not None or may_be_held_back(one) for one in ends)


def timed_ends(operator: OperatorNode) -> list[SourceNode | OperatorNode | SideOutputNode]:
    """The sources and operators whose rows move an operator's watermark."""
    ends = [node for one in operator.inputs for node in stream_ends(one.parent)]
    return [node for node in ends if origin_of(node) is not None]


def that_need_watermarks(operators: Iterable[OperatorNode]) -> set[str]:
    """Uids of the operators that see time or divert late elements, and of those whose outputs they read."""
    seeing = [o for o in operators if late_outputs(o) or sees_time(o.function)]
    return {n.uid for n in upstream(*seeing) if isinstance(n, OperatorNode)}
