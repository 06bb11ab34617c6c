"""The event time of a source as a job declares it: what gives it, and how it goes on where no row moves it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.map_functions import FilterFunction, MapFunction
from state_engine.core.time.partitions import TimePartitions
from state_engine.core.time.time_plan import NO_POLICY, TimePolicy
from state_engine.core.time.watermark_strategy import NO_TIMESTAMP, TimestampAssigner, TimestampColumn
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.row import Row, RowKind, row_of_kind
from state_engine.core.types.type_information import TypeInformation
from state_engine.job.graph import Node, OperatorNode, SourceNode, TransformNode, UnionNode
from state_engine.operators.row_expectation import RowExpectation
from state_engine.sources.output_type import OutputType


def time_policy(
    source: str,
    idle_after: Span | None,
    watermark: str,
    clock_delay: Span | None,
    stale_after: Span | None,
    partitions: TimePartitions | None,
) -> TimePolicy:
    where = f"source '{source}'"
    check_choice(watermark, ("rows", "clock"), what=f"{where}: watermark")
    if (watermark == "clock") != (clock_delay is not None):
        raise ConfigurationError(
            f"{where}: watermark='clock' and clock_delay go together: clock_delay says how long after its event time a "
            "row may come, for example watermark='clock', clock_delay='10 min'"
        )
    if watermark == "clock" and partitions is not None:
        raise ConfigurationError(
            f"{where}: watermark='clock' is for continuous jobs: in time partitions, which may be run long after, time "
            "ends with each partition. Leave watermark and clock_delay out"
        )
    if stale_after is not None and partitions is not None:
        raise ConfigurationError(
            f"{where}: stale_after is for continuous jobs: a time partition runs when it is over. "
            "Leave it out"
        )
    return TimePolicy(
        _milliseconds(where, "idle_after", idle_after, least_ms=1, must="must be above zero"),
        _milliseconds(where, "clock_delay", clock_delay, least_ms=0, must="must not be negative"),
        _milliseconds(where, "stale_after", stale_after, least_ms=1, must="must be above zero"),
    )


def warn_of_outages(node: SourceNode) -> None:
    """Warn of a source whose backlog may be late after an outage, because time goes on before the outage shows."""
    policy, least_ms = node.time_policy, node.time_policy.stale_after_ms
    if least_ms is None:
        return
    least_ms += node.max_out_of_orderness_ms
    spans = (("clock_delay", policy.clock_delay_ms), ("idle_after", policy.idle_after_ms))
    short = [
        f"{name} is {span_ms // 1000} s"
        for name, span_ms in spans
        if span_ms is not None and span_ms < least_ms
    ]
    if short:
        warnings.warn(
            f"source '{node.name}': {' and '.join(short)}, and stale_after with max_out_of_orderness "
            f"{least_ms // 1000} s: event time goes on before an outage shows, so rows that come after it may be late. "
            "To have them joined as if there had been no outage, give at least that, plus the time that a row takes to "
            "come; or leave watermark='clock' and idle_after out, so that rows alone move time",
            stacklevel=3,
        )


def check_time_policies(sources: Iterable[SourceNode]) -> None:
    """Refuse what has no event time to act on; raises ConfigurationError."""
    for node in sources:
        if node.time_policy != NO_POLICY and not node.timed:
            raise ConfigurationError(
                f"source '{node.name}': idle_after, stale_after and watermark='clock' need event time: name its "
                "column, event_time='…', or give the stream a WatermarkStrategy"
            )


def _milliseconds(where: str, what: str, span: Span | None, *, least_ms: int, must: str) -> int | None:
    if span is None:
        return None
    milliseconds = to_milliseconds(span)
    if milliseconds < least_ms:
        raise ConfigurationError(f"{where}: {what} {must}, not {milliseconds} ms")
    return milliseconds


Timestamps = TimestampAssigner | TimestampColumn | None


def timestamps_behind(node: Node, timestamps: Timestamps) -> tuple[SourceNode, Timestamps]:
    """The source behind a stream, and what gives its elements the times that the stream's are to have."""
    steps: list[DerivationStep] = []
    while not isinstance(node, SourceNode):
        node = _before(node, steps)
    if not steps:
        return node, timestamps
    if not isinstance(timestamps, TimestampAssigner):
        raise ConfigurationError(
            f"source '{node.name}': behind a map or filter a WatermarkStrategy needs with_timestamp_assigner(…): the "
            "columns behind it are not known where event time begins"
        )
    return node, DerivedTimestamps(steps[::-1], timestamps)


def _before(node: Node, steps: list[DerivationStep]) -> Node:
    """The stream that a map or filter reads, which is added to the steps."""
    if isinstance(node, OperatorNode) and _is_plain(node):
        only = node.inputs[0]
        if only.key is None and not only.everywhere:
            steps.append(DerivationStep(node.function, _seen_as(node.output_type)))
            return only.parent
    if isinstance(node, TransformNode):
        what = "a transform. Name the column that holds the time there: assign_timestamps_and_watermarks('column', …)"
    elif isinstance(node, UnionNode):
        what = "a union. Give each of its sources a WatermarkStrategy"
    elif isinstance(node, OperatorNode):
        what = (
            f"the operator '{node.uid}', which may hold back, join or multiply elements. Its outputs keep their "
            "event time: give the source a WatermarkStrategy"
        )
    else:
        what = "a side output, which keeps its event time: give the source a WatermarkStrategy"
    raise ConfigurationError(
        "event time begins at a source, or behind maps and filters of it that need no open(); this stream is behind "
        f"{what}. Declare it right behind job.source(…) or from_collection(…), or behind their maps and filters"
    )


def _is_plain(operator: OperatorNode) -> bool:
    """Whether its function may be called for one element anywhere; a rule over columns may not."""
    function = operator.function
    return is_plain(function) and len(operator.inputs) == 1 and not isinstance(function, RowExpectation)


def _seen_as(kind: OutputType | None) -> TypeInformation | None:
    """What the next function would get of a map's outputs; None for a filter, which changes nothing."""
    if kind is None:
        return None
    return kind.element if kind.scalar else kind.columns


@dataclass(frozen=True)
class DerivationStep:
    """One map or filter.

    Attributes:
        kind: of what a map gives; None for a filter.
    """

    function: Function
    kind: TypeInformation | None = None


class DerivedTimestamps(TimestampAssigner):
    """The times that an assigner gives what maps and filters make of an element.

    Flink assigns event times on any stream; here event time begins at the source, and what a map makes of an element
    has the element's time. So a strategy behind maps and filters gives the source's element the time that it gives what
    becomes of the element, and none to one that is filtered out, which moves no watermark, as in Flink.

    Example:
        >>> steps = [DerivationStep(FilterFunction.of(lambda v: v > 1, what="filter"))]
        >>> late = DerivedTimestamps(steps, TimestampAssigner.of(lambda v: v * 1000))
        >>> late.extract_timestamp(2, -1), late.extract_timestamp(1, -1) is NO_TIMESTAMP
        (2000, True)
    """

    def __init__(self, steps: list[DerivationStep], assigner: TimestampAssigner) -> None:
        self._steps, self._assigner = steps, assigner

    def extract_timestamp(self, value: Any, record_timestamp: int) -> Any:
        """Milliseconds since 1970, or ``NO_TIMESTAMP`` for what is filtered out."""
        kind = value.get_row_kind() if isinstance(value, Row) else RowKind.INSERT
        for step in self._steps:
            if isinstance(step.function, FilterFunction):
                if not step.function.filter(value):
                    return NO_TIMESTAMP
            elif isinstance(step.function, MapFunction) and step.kind is not None:
                value = step.kind.normalise(_of_kind(step.function.map(value), RowKind.INSERT))
                value = _of_kind(value, kind)  # as behind the map itself
        return self._assigner.extract_timestamp(value, record_timestamp)


def _of_kind(value: Any, kind: RowKind) -> Any:
    return row_of_kind(value, kind) if isinstance(value, Row) else value


def is_plain(function: Function) -> bool:
    """Whether a function is a map or a filter that needs no ``open``, so that it may be called anywhere."""
    plain = type(function).open is Function.open and type(function).close is Function.close
    return plain and isinstance(function, MapFunction | FilterFunction)
