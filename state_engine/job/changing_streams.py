"""Streams that change: which ones hold updates and deletes beside inserts, and who refuses them when a job is built.

A stream changes where its source does, or where a process function that ``emits_changes`` makes it; ``map``,
``filter``, ``flat_map``, ``transform`` and unions pass that on. Known from the graph alone, without Spark. Mirrors
``ChangelogMode`` and the check of it in Flink's planner (``FlinkChangelogModeInferenceProgram``). Decision 0060.
"""

from __future__ import annotations

from collections.abc import Sequence

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.function_calls import emits_changes, refusal_of_changes, takes_changes
from state_engine.core.functions.map_functions import FilterFunction
from state_engine.core.functions.output_tag import OutputTag
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    SideOutputNode,
    SourceNode,
    parents,
    stream_ends,
)
from state_engine.job.typed_by_input import Typed, TypedByInput
from state_engine.sinks.base import Sink
from state_engine.sources.base import Source
from state_engine.sources.changes.decoded_source import DecodedSource

_SHORTCUTS = ("map_with_state", "aggregate")


def is_changing(node: Node) -> bool:
    """Whether a stream holds updates and deletes beside inserts."""
    return bool(origins_of_changes(node))


def origins_of_changes(node: Node) -> list[str]:
    """What makes a stream change, for messages: sources, and operators whose function emits changes."""
    names = (
        f"source '{origin.name}'" if isinstance(origin, SourceNode) else f"operator '{origin.uid}'"
        for origin in _origins(node)
    )
    return list(dict.fromkeys(names))


def _origins(node: Node) -> list[SourceNode | OperatorNode]:
    """The nodes that make a stream change; one that it reads in several ways comes several times."""
    if isinstance(node, SourceNode):
        return [node] if node.source.changing else []
    if isinstance(node, SideOutputNode):
        function = node.operator.function
        passed_on = node.tag in (function.late_to, function.late_right_to)
        of: Sequence[Node] = parents(node.operator) if passed_on else (node.operator,)
        return [origin for one in of for origin in _origins(one)]
    if isinstance(node, OperatorNode) and not emits_changes(node.function, changing=True):
        return []
    if isinstance(node, OperatorNode) and emits_changes(node.function, changing=False):
        return [node]
    return [origin for parent in parents(node) for origin in _origins(parent)]


def sequence_of_feeds(node: Node) -> str | None:
    """The column that orders the changes of a stream's sources, if all are feeds of that order."""
    ends = [end.source if isinstance(end, SourceNode) else None for end in stream_ends(node)]
    named = {end.format.sequence if isinstance(end, DecodedSource) else None for end in ends}
    return named.pop() if len(named) == 1 else None


def check_operator(
    function: Function, inputs: Sequence[OperatorInput], *, operator: str, method: str
) -> None:
    """Refuse a function that takes inserts only, on a stream that changes."""
    origins = [origin for one in inputs for origin in origins_of_changes(one.parent)]
    keyed = inputs[0].key is not None
    if not origins or takes_changes(function, keyed=keyed):
        return
    shortcut = method if isinstance(function, Typed) or method in _SHORTCUTS else None
    raise ConfigurationError(
        refusal_of_changes(
            function, operator=operator, keyed=keyed, of=from_origins(origins), shortcut=shortcut
        )
    )


def check_no_running_results(inputs: Sequence[OperatorInput], *, operator: str, method: str) -> None:
    """Refuse to count each running result of a key beside those before it. Raises ConfigurationError."""
    running = [uid for one in inputs for uid in _running_results(one.parent)]
    if running and method in _COUNTING:
        raise ConfigurationError(
            f"operator '{operator}': its stream has the running results of operator '{running[0]}'. Each of them is "
            f"the newest result of its key, and {method} would count it beside those before it. Make them with "
            "aggregate(…, emit='changes'), so that each takes the one before back; or, if each of them is an event of "
            "its own, put a map in between"
        )


_COUNTING = (
    "aggregate", "aggregates", "join without within", "over", "reduce", "sequence", "sum", "top_n", "window",
)  # fmt: skip
"""Methods that count each row of a stream."""


def _running_results(node: Node) -> list[str]:
    """Uids of the operators whose running results a stream consists of, as they are."""
    return [made.uid for made in _made_by(node) if made.function.gives_running_results]


def _made_by(node: Node) -> list[OperatorNode]:
    """The operators whose outputs a stream consists of, as they are; filters and unions pass them on."""
    if isinstance(node, SourceNode | SideOutputNode):
        return []
    if isinstance(node, OperatorNode) and not isinstance(node.function, FilterFunction):
        return [node]
    return [made for parent in parents(node) for made in _made_by(parent)]


def check_sink(sink: Sink, node: Node, *, name: str) -> None:
    """Refuse a sink that takes inserts only, on a stream that changes. Raises ConfigurationError."""
    origins = origins_of_changes(node)
    if origins and not sink.accepts_changes:
        of_windows = any(isinstance(one, OperatorNode) and _windows_differ_in(one) for one in _origins(node))
        once = "Give the window emit='final', which puts each result out once. Or a" if of_windows else "A"
        raise ConfigurationError(
            f"sink '{name}': a {type(sink).__name__} takes inserts only, and its stream holds updates and deletes, too"
            f"{from_origins(origins)}. {once} DeltaSink or SqlSink with key=[…] applies them: it shows the last row of "
            "each key. Or put a process function in front that says accepts_changes = True and makes inserts of them, "
            "or give the stream to ForeachBatchSink(…, accepts_changes=True)"
        )


def check_key_of_windows(key: Sequence[str], node: Node, *, name: str) -> None:
    """Refuse a key of a sink that two windows can have whose results change. Raises ConfigurationError."""
    for made in _made_by(node):
        columns = _windows_differ_in(made)
        if columns and not set(columns) & set(key):
            raise ConfigurationError(
                f"sink '{name}': several windows of operator '{made.uid}' can have the same key {list(key)}, so each "
                f"of them would replace others. Add '{columns[0]}' to the key; or use emit='final', for the last "
                "window that is closed; or say with sequence=[…] which row stays"
            )


def _windows_differ_in(operator: OperatorNode) -> tuple[str, ...]:
    function = operator.function
    return function.windows_differ_in if isinstance(function, TypedByInput) else ()


def check_late_to(source: Source, late_to: OutputTag | None, *, name: str) -> None:
    """Refuse to divert late rows of a source that changes: half an update may be late. Raises ConfigurationError."""
    if late_to is not None and source.changing:
        raise ConfigurationError(
            f"source '{name}': late_to would separate updates: a row that is replaced or deleted has its old event "
            "time, so it may be late although its replacement is not. Leave late_to out, and ask ctx.is_late() in "
            "the function"
        )


def from_origins(origins: Sequence[str]) -> str:
    """What makes a stream change, for messages; empty where nothing does."""
    if not origins:
        return ""
    return f" (from {', '.join(dict.fromkeys(origins))})"
