"""``StatefulJob``: sources, keyed operators and sinks, wired into one graph; and the streams between them.

A job is configuration: building it reads nothing and starts nothing. Streams are immutable; every call returns a new
one. Mirrors Flink's ``StreamExecutionEnvironment``, ``DataStream`` and ``KeyedStream`` as far as they make sense in
micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from pyspark.sql import DataFrame

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions import KeyedProcessFunction
from state_engine.core.key_groups import check_parallelism, default_max_parallelism
from state_engine.core.names import check_name
from state_engine.core.type_parsing import to_type
from state_engine.core.types import StructType, TypeInformation
from state_engine.runtime.sinks.base import Sink
from state_engine.runtime.sources.base import Source

OnError = Literal["fail", "dead_letter"]

SCALAR_COLUMN = "value"
"""Column that a stream of scalars has."""


@dataclass(frozen=True)
class SourceNode:
    """A source and how its rows are ordered and timed."""

    name: str
    source: Source
    order_by: tuple[str, ...]
    event_time: str | None
    max_out_of_orderness_ms: int


@dataclass(frozen=True)
class TransformNode:
    """Any DataFrame code between two streams; ``order_by`` names an order where the code loses the old one."""

    parent: Node
    function: Callable[[DataFrame], DataFrame]
    order_by: tuple[str, ...] | None


@dataclass(frozen=True)
class OperatorNode:
    """A keyed operator."""

    parent: Node
    key_columns: tuple[str, ...]
    function: KeyedProcessFunction
    uid: str
    output_type: StructType
    scalar: bool


Node = SourceNode | TransformNode | OperatorNode


@dataclass(frozen=True)
class SinkNode:
    """A sink and the stream that it takes."""

    name: str
    parent: Node
    sink: Sink


class StatefulJob:
    """A job: a name, and a graph of sources, operators and sinks.

    Args:
        name: ``[a-z][a-z0-9_]*``; also the directory of its state.
        parallelism: number of subtasks of each operator.
        max_parallelism: number of key groups, fixed for the life of the state; by default what Flink would take.
        on_error: ``fail``: a bad row or a raising function fails the batch, nothing is committed; ``dead_letter``:
            the row and its error are kept in the table ``dead_letters`` and the batch goes on.
        code_version: recorded with every checkpoint.

    Example:
        >>> StatefulJob("plane_delays", parallelism=2).max_parallelism
        128
    """

    def __init__(
        self,
        name: str,
        *,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        on_error: OnError | str = "fail",
        code_version: str = "",
    ) -> None:
        self.name = check_name(name, what="job")
        if max_parallelism is None:
            max_parallelism = default_max_parallelism(parallelism)
        check_parallelism(max_parallelism=max_parallelism, parallelism=parallelism)
        if on_error not in ("fail", "dead_letter"):
            raise ConfigurationError(f"on_error must be 'fail' or 'dead_letter', not {on_error!r}")
        self.parallelism, self.max_parallelism = parallelism, max_parallelism
        self.on_error: OnError = on_error
        self.code_version = code_version
        self.sources: dict[str, SourceNode] = {}
        self.operators: dict[str, OperatorNode] = {}
        self.sinks: dict[str, SinkNode] = {}

    def source(
        self,
        name: str,
        source: Source,
        *,
        order_by: Sequence[str] = (),
        event_time: str | None = None,
        max_out_of_orderness: timedelta | int = 0,
    ) -> DataStream:
        """Add a source.

        Args:
            name: unique among sources and operators.
            source: where rows come from.
            order_by: columns of the total order of the rows, which must be there where the stream is keyed; ties
                are broken by file and row. Without it, the order of files and their rows.
            event_time: column (timestamp or date) that holds the event time, there where the stream is keyed.
            max_out_of_orderness: how late rows may come: a timedelta, or milliseconds.
        """
        self._new_name(check_name(name, what="source"))
        delay = max_out_of_orderness
        delay_ms = delay // timedelta(milliseconds=1) if isinstance(delay, timedelta) else int(delay)
        node = SourceNode(name, source, tuple(order_by), event_time, delay_ms)
        self.sources[name] = node
        return DataStream(self, node)

    def check(self) -> None:
        """Refuse a job that would read something and do nothing with it, or do nothing at all."""
        ends = [o.parent for o in self.operators.values()] + [s.parent for s in self.sinks.values()]
        if not ends:
            raise ConfigurationError(
                f"job '{self.name}' has neither operators nor sinks: there is nothing to run"
            )
        used = set()
        for node in ends:
            while isinstance(node, TransformNode):
                node = node.parent
            if isinstance(node, SourceNode):
                used.add(node.name)
        unused = sorted(set(self.sources) - used)
        if unused:
            raise ConfigurationError(
                f"job '{self.name}': nothing reads the sources {unused}: connect them to an operator or a sink, or "
                "remove them"
            )

    def _new_name(self, name: str) -> None:
        if name in self.sources or name in self.operators:
            raise ConfigurationError(
                f"job '{self.name}': '{name}' is taken: sources and operators need different names"
            )

    def __repr__(self) -> str:
        return f"StatefulJob({self.name!r}, operators={list(self.operators)}, sinks={list(self.sinks)})"


class DataStream:
    """Rows on their way through a job."""

    def __init__(self, job: StatefulJob, node: Node) -> None:
        self._job, self._node = job, node

    def transform(
        self, function: Callable[[DataFrame], DataFrame], *, order_by: Sequence[str] | None = None
    ) -> DataStream:
        """Apply DataFrame code to every micro-batch.

        It must treat rows one by one (select, filter, join with a static table, explode); what it keeps of other
        rows must go through state.

        Args:
            function: DataFrame to DataFrame.
            order_by: names the total order of the result; needed where the result lost the source's hidden order
                columns and the source declares no ``order_by``.
        """
        if not callable(function):
            raise ConfigurationError(
                f"transform takes a function from DataFrame to DataFrame, not {function!r}"
            )
        node = TransformNode(self._node, function, None if order_by is None else tuple(order_by))
        return DataStream(self._job, node)

    def key_by(self, *columns: str) -> KeyedStream:
        """Partition the stream by columns: one gives scalar keys, several give tuples."""
        if not columns or not all(isinstance(c, str) for c in columns):
            raise ConfigurationError(
                f"key_by takes names of columns, not {columns!r}; compute a key with transform(...) first"
            )
        return KeyedStream(self._job, self._node, columns)

    def sink(self, name: str, sink: Sink) -> DataStream:
        """Write the stream to a sink; returns the stream itself."""
        check_name(name, what="sink")
        if name == "dead_letters":
            raise ConfigurationError(
                "a sink cannot be named 'dead_letters': that is the job's own; rename it"
            )
        if name in self._job.sinks:
            raise ConfigurationError(f"job '{self._job.name}' has two sinks named '{name}': rename one")
        if not isinstance(sink, Sink):
            raise ConfigurationError(
                f"sink '{name}': {sink!r} is not a sink; use DeltaSink(path) or FileSink(path)"
            )
        self._job.sinks[name] = SinkNode(name, self._node, sink)
        return self


class KeyedStream:
    """A stream partitioned by key: the only place where keyed state exists."""

    def __init__(self, job: StatefulJob, node: Node, columns: tuple[str, ...]) -> None:
        self._job, self._node, self._columns = job, node, columns

    def process(self, function: KeyedProcessFunction, *, uid: str, output_type: Any) -> DataStream:
        """Run a function over every element, with the state of its key.

        Args:
            function: sees elements in total order.
            uid: identity of the operator and of its state, across versions of the job.
            output_type: of the outputs: DDL, Spark, Arrow or Python types; see ``type_parsing.to_type``.
        """
        self._job._new_name(check_name(uid, what="operator"))
        if not isinstance(function, KeyedProcessFunction):
            raise ConfigurationError(
                f"operator '{uid}': process takes a KeyedProcessFunction, not {function!r}"
            )
        declared = to_type(output_type, parameter=f"output_type of operator '{uid}'")
        scalar = not isinstance(declared, StructType)
        columns = as_columns(declared)
        node = OperatorNode(self._node, self._columns, function, uid, columns, scalar)
        self._job.operators[uid] = node
        return DataStream(self._job, node)


def as_columns(declared: TypeInformation) -> StructType:
    """The columns of a stream of this type: a record's own, or one column for scalars. Made of plain tuples."""
    if isinstance(declared, StructType):
        return StructType(declared.names, declared.types)
    return StructType([SCALAR_COLUMN], [declared])
