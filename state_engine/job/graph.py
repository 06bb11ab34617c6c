"""The nodes of a job's graph: sources, DataFrame steps, unions, operators with their side outputs, and sinks.

A node names what it reads, so that the graph is read from its ends. Building one starts nothing. Mirrors Flink's
``Transformation`` and ``StreamGraph``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_engine.core.function import Function
from state_engine.core.functions.key_selector import KeySelector
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.time.time_plan import NO_POLICY, TimePolicy
from state_engine.core.time.watermark_strategy import TimestampAssigner, TimestampColumn
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.type_parsing import to_type
from state_engine.job.typed_by_input import Typed, TypedByInputs
from state_engine.sinks.base import Sink
from state_engine.sources.base import Source
from state_engine.sources.output_type import OutputType
from state_engine.state_tables.base import StateTable
from state_engine.state_tables.states import PublishedState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY_COLUMN = "key"
"""Column of the stored key where a key selector makes it."""


@dataclass(eq=False)
class SourceNode:
    """A source and how its rows are ordered and timed.

    Attributes:
        event_time: column of the event time; where there are ``timestamps``, of the time that the source itself gives.
        timestamps: gives the event times instead of that column.
        timed_at: the stream that they were declared on; None for the source's own.
        time_policy: how its event time goes on where no row moves it.
        late_to: tag of the side output that late elements go to, instead of the function; None where it gets them.
    """

    name: str
    source: Source
    order_by: tuple[str, ...] = ()
    event_time: str | None = None
    max_out_of_orderness_ms: int = 0
    scalar: bool = False
    declared: OutputType | None = None
    timestamps: TimestampAssigner | TimestampColumn | None = None
    timed_at: Node | None = None
    time_policy: TimePolicy = NO_POLICY
    late_to: OutputTag | None = None

    @property
    def timed(self) -> bool:
        return self.event_time is not None or self.timestamps is not None


@dataclass(frozen=True, eq=False)
class TransformNode:
    """Any DataFrame code between two streams.

    Attributes:
        order_by: names an order where the code loses the old one.
        output_type: of what the code gives; None where only Spark knows.
    """

    parent: Node
    function: Callable[[DataFrame], DataFrame]
    order_by: tuple[str, ...] | None = None
    output_type: OutputType | None = None


@dataclass(frozen=True, eq=False)
class UnionNode:
    """The rows of several streams with the same columns."""

    parents: tuple[Node, ...]


@dataclass(frozen=True)
class SelectedKey:
    """A key that a function makes of every element."""

    selector: KeySelector
    key_type: TypeInformation


@dataclass(frozen=True)
class OperatorInput:
    """A stream into an operator.

    Attributes:
        key: columns of the key, or what makes one; None on a stream without key.
        broadcast: whether every subtask sees all of it, as broadcast elements: before the elements of the other stream.
        ordered: whether broadcast elements stand at their places in the total order instead.
        everywhere: whether every subtask sees all of it, each element at its place in the total order.
        states: the broadcast states that the stream was broadcast for.
    """

    parent: Node
    key: tuple[str, ...] | SelectedKey | None = None
    broadcast: bool = False
    ordered: bool = False
    everywhere: bool = False
    states: tuple[MapStateDescriptor, ...] = ()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Names of the columns of the stored key; none without key."""
        if isinstance(self.key, SelectedKey):
            return DeclaredKey.of(KEY_COLUMN, self.key.key_type).names
        return self.key or ()


@dataclass(eq=False)
class OperatorNode:
    """A function on one stream or two.

    Attributes:
        inputs: streams, in the order in which the function knows them; a broadcast one is last.
        output_type: of the outputs; None where it is that of the first input, or follows from it.
        parallelism: number of subtasks; None for the job's.
        name: for people; the uid where there is none.
        dropped_states, kept_states: names of states that are dropped, and that are kept though nothing asks for them.
    """

    inputs: tuple[OperatorInput, ...]
    function: Function
    uid: str
    output_type: OutputType | None
    parallelism: int | None = None
    explicit_uid: bool = True
    name: str | None = None
    side_outputs: dict[str, OutputTag] = field(default_factory=dict)
    dropped_states: tuple[str, ...] = ()
    kept_states: tuple[str, ...] = ()

    @property
    def keyed(self) -> bool:
        return self.inputs[0].key is not None

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.inputs[0].key_columns

    @property
    def second_key(self) -> tuple[str, ...]:
        """Names of the key's columns in the second of two connected streams; none where it has no key."""
        return self.inputs[1].key_columns if len(self.inputs) > 1 else ()

    @property
    def by_event_time(self) -> bool:
        """Whether event time orders the elements of all inputs, because a broadcast stream is ordered."""
        return any(one.ordered for one in self.inputs)


@dataclass(frozen=True, eq=False)
class SideOutputNode:
    """What an operator sends to one tag."""

    operator: OperatorNode
    tag: OutputTag


Node = SourceNode | TransformNode | UnionNode | OperatorNode | SideOutputNode


@dataclass(frozen=True)
class SinkNode:
    """A sink and the stream that it takes."""

    name: str
    parent: Node
    sink: Sink


@dataclass(frozen=True)
class PublishedNode:
    """A table that shows a state of an operator.

    Attributes:
        sink_key: of a keyed sink, the columns of its key; empty of other tables.
    """

    name: str
    operator: OperatorNode
    state: str
    table: StateTable
    map_key: str | None = "map_key"
    sink_key: tuple[str, ...] = ()

    @property
    def recorded(self) -> PublishedState:
        table = self.table
        return PublishedState(
            self.name,
            table.kind,
            table.place,
            self.operator.uid,
            self.state,
            self.map_key,
            table.options(),
            sink_key=self.sink_key,
        )


def parents(node: Node) -> tuple[Node, ...]:
    if isinstance(node, TransformNode):
        return (node.parent,)
    if isinstance(node, UnionNode):
        return node.parents
    if isinstance(node, OperatorNode):
        return tuple(i.parent for i in node.inputs)
    if isinstance(node, SideOutputNode):
        return (node.operator,)
    return ()


def upstream(*ends: Node) -> Iterator[Node]:
    """Nodes and everything that they read, directly or not, each once."""
    seen: set[int] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(parents(node))


def has_event_time(node: Node) -> bool:
    return any(isinstance(one, SourceNode) and one.timed for one in upstream(node))


def stream_ends(node: Node) -> list[SourceNode | OperatorNode | SideOutputNode]:
    """The sources and operators whose rows a stream consists of."""
    if isinstance(node, SourceNode | OperatorNode | SideOutputNode):
        return [node]
    return [end for parent in parents(node) for end in stream_ends(parent)]


def merged_ends(node: Node) -> list[SourceNode | OperatorNode | SideOutputNode]:
    """The sources and operators whose rows a node merges with those of others; none where it reads one stream."""
    return [end for parent in parents(node) for end in stream_ends(parent)] if len(parents(node)) > 1 else []


def operator_of(node: OperatorNode | SideOutputNode) -> OperatorNode:
    return node.operator if isinstance(node, SideOutputNode) else node


MAIN_OUTPUT = ""
"""Stands for the tag of an operator's main output."""


def output_of(node: Node) -> tuple[str, str] | None:
    """The operator's uid and the tag, if a node is an output of an operator."""
    if isinstance(node, OperatorNode):
        return node.uid, MAIN_OUTPUT
    if isinstance(node, SideOutputNode):
        return node.operator.uid, node.tag.tag_id
    return None


def type_in_code(node: SourceNode, source: Source | None = None) -> OutputType | None:
    """The type of a source's rows as far as code shows it: what is declared, or the schema of files or records.

    Args:
        source: what reads the rows, where that is not the node's source as it stands.
    """
    schema = (source or node.source).schema_in_code
    if node.declared is not None or schema is None:
        return node.declared
    return OutputType.of(to_type(schema, parameter=f"type of source '{node.name}'"))


def as_declared(node: SourceNode) -> OutputType | None:
    return node.declared


OfSource = Callable[[SourceNode], OutputType | None]


def declared_type(node: Node, of_source: OfSource = as_declared) -> OutputType | None:
    """The type of a stream's elements, where it is declared: not of files and tables, for instance.

    Args:
        of_source: gives that of a source; with ``type_in_code`` for those who show columns and read no rows.
    """
    if isinstance(node, SourceNode):
        return of_source(node)
    if isinstance(node, TransformNode):
        return node.output_type
    if isinstance(node, SideOutputNode):
        return OutputType.of(node.tag.type_info)
    if isinstance(node, OperatorNode):
        if node.output_type is not None:
            return node.output_type
        kinds = declared_inputs(node, of_source)
        return None if kinds is None else output_type_of(node, kinds)
    if isinstance(node, UnionNode):
        types = [declared_type(parent, of_source) for parent in node.parents]
        same = all(f == types[0] and f is not None and _made_by(f) is _made_by(types[0]) for f in types)
        return types[0] if same else None
    return None


def typing_inputs(operator: OperatorNode) -> tuple[OperatorInput, ...]:
    """The inputs whose elements say what an operator emits, and what its function is: the first one, or both."""
    return operator.inputs if isinstance(operator.function, TypedByInputs) else operator.inputs[:1]


def declared_inputs(
    operator: OperatorNode, of_source: OfSource = as_declared
) -> tuple[OutputType, ...] | None:
    kinds = [declared_type(one.parent, of_source) for one in typing_inputs(operator)]
    known = tuple(kind for kind in kinds if kind is not None)
    return known if len(known) == len(kinds) else None


def output_type_of(operator: OperatorNode, kinds: Sequence[OutputType]) -> OutputType:
    """What an operator emits that declares no type, for elements of these kinds in ``typing_inputs``."""
    return operator.function.gives(*kinds) if isinstance(operator.function, Typed) else kinds[0]


def function_for(operator: OperatorNode, of_source: OfSource = as_declared) -> Function | None:
    """The function that an operator runs; None where the kinds of elements make it, and those are not declared."""
    if not isinstance(operator.function, Typed):
        return operator.function
    kinds = declared_inputs(operator, of_source)
    return None if kinds is None else operator.function.bound(*kinds)


def declared_columns(node: Node, of_source: OfSource = as_declared) -> StructType | None:
    """The columns of a stream as it declares them; None where it does not."""
    output_type = declared_type(node, of_source)
    return None if output_type is None else output_type.columns


def declared_key(operator: OperatorNode, of_source: OfSource = as_declared) -> DeclaredKey | None:
    """What keys are, where the job declares it: a function that makes them its type, or a stream its columns."""
    first = operator.inputs[0]
    if isinstance(first.key, SelectedKey):
        return DeclaredKey.of(KEY_COLUMN, first.key.key_type)
    declared = declared_columns(first.parent, of_source)
    if declared is None or first.key is None or not set(first.key) <= set(declared.names):
        return None
    types = tuple(declared.types[declared.names.index(name)] for name in first.key)
    return DeclaredKey(first.key, types)


def _made_by(kind: OutputType | None) -> object:
    return None if kind is None else kind.columns.made_by


def is_scalar(node: Node) -> bool:
    """Whether the elements of a stream are bare values. DataFrame code makes rows, unless it declares otherwise."""
    if isinstance(node, SourceNode):
        return node.scalar
    if isinstance(node, TransformNode):
        return node.output_type is not None and node.output_type.scalar
    if isinstance(node, UnionNode):
        return all(is_scalar(p) for p in node.parents)
    if isinstance(node, OperatorNode):
        if node.output_type is not None:
            return node.output_type.scalar
        keeps_type = not isinstance(node.function, Typed) or node.function.keeps_type
        return keeps_type and is_scalar(node.inputs[0].parent)
    if isinstance(node, SideOutputNode):
        return OutputType.of(node.tag.type_info).scalar
    return False
