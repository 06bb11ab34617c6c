"""``Origins``: what moves the watermark of an operator: its sources, and the outputs of operators that it reads.

Rows that come straight from a source move the watermark by their event times. Rows that another operator put out carry
how far the watermark was there; they count for all the sources behind that operator together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from state_engine.core.functions.function_calls import sees_time
from state_engine.core.time.watermarks import slowest
from state_engine.job.graph import (
    Node,
    OperatorNode,
    SideOutputNode,
    SourceNode,
    UnionNode,
    parents,
    upstream,
)
from state_engine.job.typed_by_input import TypedByInput

_AND = "\x1f"


@dataclass(frozen=True)
class Origins:
    """What moves the watermark of one operator in one batch.

    Attributes:
        names: of the origins; see ``origin_of``.
        start_ms: watermark of each before the batch.
        delays_ms: out-of-orderness of those that are sources, by their number.
    """

    names: tuple[str, ...] = ()
    start_ms: tuple[int | None, ...] = ()
    delays_ms: Mapping[int, int] | None = None


NO_ORIGINS = Origins()


def origin_of(node: SourceNode | OperatorNode | SideOutputNode) -> str | None:
    """Name of the origin of a stream's rows: the sources with event time behind it; None where there are none."""
    return _AND.join(sorted(timed_sources(node))) or None


def timed_sources(node: Node) -> dict[str, SourceNode]:
    """The sources with event time behind a node."""
    return {n.name: n for n in upstream(node) if isinstance(n, SourceNode) and n.timed}


def origins_of(operator: OperatorNode, watermarks_ms: Mapping[str, int | None]) -> Origins:
    """The origins of an operator's rows.

    Args:
        watermarks_ms: of the sources before the batch.
    """
    by_name: dict[str, tuple[int | None, int | None]] = {}
    for one in operator.inputs:
        for node in _ends(one.parent):
            name = origin_of(node)
            if name is None:
                continue
            start = slowest(watermarks_ms.get(source) for source in timed_sources(node))
            delay = node.max_out_of_orderness_ms if isinstance(node, SourceNode) else None
            by_name[name] = (start, delay if delay is not None else by_name.get(name, (None, None))[1])
    delays = {at: delay for at, (_, delay) in enumerate(by_name.values()) if delay is not None}
    return Origins(tuple(by_name), tuple(start for start, _ in by_name.values()), delays)


def that_need_watermarks(operators: Iterable[OperatorNode]) -> set[str]:
    """Uids of the operators that see time, and of those whose outputs they read."""
    seeing = [o for o in operators if not isinstance(o.function, TypedByInput) and sees_time(o.function)]
    return {n.uid for n in upstream(*seeing) if isinstance(n, OperatorNode)}


def merged_ends(node: Node) -> list[SourceNode | OperatorNode | SideOutputNode]:
    """The sources and operators whose rows a node merges with those of others; none where it reads one stream."""
    return [end for parent in parents(node) for end in _ends(parent)] if len(parents(node)) > 1 else []


def _ends(node: Node) -> list[SourceNode | OperatorNode | SideOutputNode]:
    """The sources and operators whose rows a stream consists of."""
    if isinstance(node, SourceNode | OperatorNode | SideOutputNode):
        return [node]
    ends = []
    for parent in node.parents if isinstance(node, UnionNode) else parents(node):
        ends += _ends(parent)
    return ends
