"""Which source a ``WatermarkStrategy`` is for, and what gives its event times, where it stands behind other steps."""

from __future__ import annotations

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.derived_timestamps import DerivationStep, DerivedTimestamps, is_plain
from state_engine.core.time.watermark_strategy import TimestampAssigner, TimestampColumn
from state_engine.core.types.every_type import TypeInformation
from state_engine.job.graph import Node, OperatorNode, SourceNode, TransformNode, UnionNode
from state_engine.sources.output_type import OutputType

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
    if isinstance(node, OperatorNode) and is_plain(node.function) and len(node.inputs) == 1:
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


def _seen_as(kind: OutputType | None) -> TypeInformation | None:
    """What the next function would get of a map's outputs; None for a filter, which changes nothing."""
    if kind is None:
        return None
    return kind.element if kind.scalar else kind.columns
