"""Where late elements of sources with ``late_to`` go: to a side output of each operator that reads the source itself.

An operator reads a source directly, through transforms and unions, or as one of two connected streams. The first
operator diverts, whatever its function: what stands behind it reads its outputs and not the source. In Flink only a
window diverts late elements, ``sideOutputLateData``. Decision 0060.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.keys.key_conversions import is_lossless
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.pickled_type import holds_pickles
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    SourceNode,
    declared_type,
    has_event_time,
    stream_ends,
    type_in_code,
    upstream,
)
from state_engine.sources.output_type import OutputType


def late_outputs(operator: OperatorNode) -> dict[str, OutputTag]:
    """The tags that late elements of an operator's sources go to, by source; without sources whose elements stay."""
    return {source.name: source.late_to for source in _read(operator) if source.late_to is not None}


def check_event_time(node: Node, *, what: str, lateness_ms: int, otherwise: str = "") -> None:
    """Refuse a stream without event time, and one whose late rows are gone before an operator could take them.

    Args:
        what: the operator, as it is written.
        otherwise: what else to do without event time, as text behind the message.

    Raises:
        ConfigurationError: the stream is of one of these kinds.
    """
    if not has_event_time(node):
        raise ConfigurationError(
            f"{what} needs event time, and none of the sources of the stream has it: give source(event_time=…), or "
            f"assign_timestamps_and_watermarks(…){otherwise}"
        )
    ends = [end for end in stream_ends(node) if isinstance(end, SourceNode) and end.late_to is not None]
    if ends and lateness_ms:
        raise ConfigurationError(
            f"source '{ends[0].name}' diverts late rows before {what} could take them: move late_to from the source to "
            f"{what.partition('(')[0]}(…, late_to=…), or leave lateness out"
        )


def check_late_types(function: Function, inputs: Sequence[OperatorInput], *, operator: str) -> None:
    """Refuse a side output of late rows whose type cannot hold them, as far as code shows theirs.

    Raises:
        ConfigurationError: it has other columns, or another type.
    """
    tags = {"late_to": function.late_to, "late_right_to": function.late_right_to}
    for (argument, tag), one in zip(tags.items(), inputs, strict=False):
        rows = None if tag is None else declared_type(one.parent, type_in_code)
        if tag is None or rows is None or _holds(OutputType.of(tag.type_info), rows):
            continue
        columns = ", ".join(
            f"{name} {ddl_text(kind.arrow)}"
            for name, kind in zip(rows.columns.names, rows.columns.types, strict=True)
        )
        raise ConfigurationError(
            f"operator '{operator}': {argument} sends late rows to the side output '{tag.tag_id}', whose type is "
            f"{tag.type_info}, and the rows have another: declare OutputTag('{tag.tag_id}', '{columns}')"
        )


def _holds(given: OutputType, rows: OutputType) -> bool:
    """Whether the type of a side output holds all rows of another type; of nested types only a run can say."""
    if given.scalar and holds_pickles(given.columns):
        return True
    names, others = given.columns.names, rows.columns.names
    by_name = rows.columns.made_by == "row"
    if given.scalar != rows.scalar or len(names) != len(others) or (by_name and names != others):
        return False
    return all(
        pa.types.is_nested(one.arrow) or is_lossless(other.arrow, one.arrow)
        for one, other in zip(given.columns.types, rows.columns.types, strict=True)
        if one != other
    )


def check_late_outputs(job: str, sources: Iterable[SourceNode], operators: Sequence[OperatorNode]) -> None:
    """Refuse late elements that nobody could judge or divert, or whose side output is not where they go."""
    for operator in operators:
        _check_whole_streams(job, operator)
        _check_tags(job, operator)
    for source in sources:
        if source.late_to is None:
            continue
        if not source.timed:
            raise ConfigurationError(
                f"job '{job}', source '{source.name}': late_to needs event time, by which an element is late: give "
                "source(event_time=…), or assign_timestamps_and_watermarks(…)"
            )
        _check_place(job, source, source.late_to, operators)


def _check_whole_streams(job: str, operator: OperatorNode) -> None:
    whole = [one.parent for one in operator.inputs if one.broadcast or one.everywhere]
    for source in (end for parent in whole for end in stream_ends(parent) if isinstance(end, SourceNode)):
        if source.late_to is not None:
            raise ConfigurationError(
                f"job '{job}', operator '{operator.uid}': it gets the source '{source.name}' by broadcast, and every "
                "subtask would divert each late element: remove late_to and ask ctx.is_late(), or read the source "
                "twice, under two names"
            )


def _check_tags(job: str, operator: OperatorNode) -> None:
    for source, tag in late_outputs(operator).items():
        known = operator.side_outputs.get(tag.tag_id)
        if known is not None and known != tag:
            raise ConfigurationError(
                f"job '{job}', operator '{operator.uid}': the side output '{tag.tag_id}' is read as {known.type_info}, "
                f"and late_to of source '{source}' gives {tag.type_info}; use one tag, or another name"
            )


def _check_place(job: str, source: SourceNode, tag: OutputTag, operators: Sequence[OperatorNode]) -> None:
    """Refuse a side output that is read behind the operators that divert to it, while theirs is not."""
    reading = [one for one in operators if source in _read(one)]
    if any(tag.tag_id in one.side_outputs for one in reading):
        return
    for operator in operators:
        of_others = tag in late_outputs(operator).values()
        if tag in operator.side_outputs.values() and not of_others and source in upstream(operator):
            first = ", ".join(f"'{one.uid}'" for one in reading if one in upstream(operator))
            raise ConfigurationError(
                f"job '{job}', operator '{operator.uid}': its side output '{tag.tag_id}' gets no late elements of "
                f"source '{source.name}', because {first} reads that first: call get_side_output there, or use another "
                "tag for what the function yields"
            )


def _read(operator: OperatorNode) -> list[SourceNode]:
    ends = [end for one in operator.inputs for end in stream_ends(one.parent)]
    return [end for end in ends if isinstance(end, SourceNode)]
