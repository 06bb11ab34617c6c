"""A job's graph as it runs in memory: the same operators, sources that are given rows, and sinks that collect.

Published tables keep their names and places; ``MemoryTables`` writes to none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import (
    Node,
    OperatorNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    type_in_code,
)
from state_engine.job.job import StatefulJob
from state_engine.job.stream_shortcuts import Projection
from state_engine.sinks.files import PrivateFileSink
from state_engine.sources.base import Element, Slice, Source, SourceFrame, summary
from state_engine.sources.changes.decoded_source import DecodedSource
from state_engine.sources.collection import CollectionSource
from state_engine.sources.frames import TableCode
from state_engine.sources.function import FunctionSource
from state_engine.sources.local_rows import local_frame, normal_elements
from state_engine.sources.output_type import OutputType
from state_engine.sources.partitioned_input import PartitionedSource
from state_engine.spark.catalog import at_path, unknown_place
from state_engine.state_tables.base import StateTable
from state_engine.state_tables.delta import DeltaStateTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

N = TypeVar("N", bound=Node)
Transforms = Mapping[Any, Callable[[pa.Table], pa.Table]]
"""By the function that ``transform`` was given: code over tables that stands for it."""


@dataclass
class GivenRows(Source):
    """A source that gives the rows that a test hands to the next micro-batch.

    Args:
        kind: type of its elements; None where nobody says.
    """

    name: str
    kind: OutputType | None
    changing: bool = False
    _waiting: list[Any] = field(default_factory=list)
    _kinds: list[RowKind] | None = None

    @property
    def schema_in_code(self) -> TypeLike | None:
        return None if self.kind is None else self.kind.element if self.kind.scalar else self.kind.columns

    def give(self, rows: Sequence[Any]) -> None:
        """Have rows wait for the next micro-batch, instead of those that waited."""
        if not rows:
            self._waiting = []
            return
        if self.kind is None:
            raise ConfigurationError(
                f"source '{self.name}': it does not declare its columns, so they must be said here: "
                f"run_in_memory(job, types={{'{self.name}': 'k string, v bigint'}})"
            )
        self._waiting, self._kinds = normal_elements(
            rows, self.kind, changing=self.changing, source=self.name
        )

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        if not self._waiting:
            return None
        start = int(elements[-1]["position"]) if elements else 0
        new: list[Element] = [{"split": "given", "position": start + len(self._waiting)}]
        return Slice(
            new, summary(elements), summary([*elements, *new]), ["given rows"],
            (start, self._waiting, self._kinds),
        )  # fmt: skip

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        first, rows, kinds = part.detail
        assert self.kind is not None
        return local_frame(rows, self.kind, first=first, kinds=kinds)


@dataclass(frozen=True)
class MemoryJob:
    """A job as it runs in memory.

    Attributes:
        job: a copy of the user's graph, whose sinks write below a directory.
    """

    job: StatefulJob
    given: Mapping[str, GivenRows]

    @classmethod
    def of(
        cls, job: StatefulJob, directory: str, types: Mapping[str, Any], transforms: Transforms
    ) -> MemoryJob:
        """Copy a job.

        Args:
            types: of the rows of sources that do not declare theirs, by name.
        """
        if unknown := sorted(set(types) - set(job.sources)):
            raise ConfigurationError(
                f"job '{job.name}' has no source {unknown}; its sources: {sorted(job.sources)}"
            )
        copied = StatefulJob(
            job.name,
            parallelism=job.parallelism,
            max_parallelism=job.max_parallelism,
            on_error=job.on_error,
            state_backend=job.state_backend,
            max_dead_letters=job.max_dead_letters,
            code_version=job.code_version,
            compaction=None,  # which runs in Spark tasks, and changes no result
        )
        copies = _Copies(job.name, types, transforms)
        copied.sources = {name: copies.of(node) for name, node in job.sources.items()}
        copied.operators = {uid: copies.of(node) for uid, node in job.operators.items()}
        copied.sinks = {
            name: SinkNode(name, copies.of(node.parent), PrivateFileSink(f"{directory}/{name}"))
            for name, node in job.sinks.items()
        }
        copied.published = {
            name: replace(node, operator=copies.of(node.operator), table=_in_memory(node.table))
            for name, node in job.published.items()
        }
        copied.gates = dict(job.gates)
        copied.check()
        return cls(copied, copies.given)


def type_in_memory(node: SourceNode) -> OutputType | None:
    """The type of a copied source's rows, as far as somebody says it."""
    source = node.source
    reads = source.inner if isinstance(source, DecodedSource) else source
    kind = type_in_code(node, reads)
    if kind is None or not isinstance(source, DecodedSource):
        return kind
    columns = source.format.decoded(pa.schema(list(kind.columns.arrow)))
    return OutputType.of(to_type(pa.struct(list(columns)), parameter=f"type of source '{node.name}'"))


def _in_memory(table: StateTable) -> StateTable:
    """A published table that no catalog is asked for."""
    if isinstance(table, DeltaStateTable) and table.table:
        return at_path(table, unknown_place(table.table))
    return table


class _Copies:
    """Copies nodes, each once, so that the copied graph has the shape of the first."""

    def __init__(self, job: str, types: Mapping[str, Any], transforms: Transforms) -> None:
        self._job, self._types, self._transforms = job, types, transforms
        self._made: dict[int, Any] = {}
        self.given: dict[str, GivenRows] = {}

    def of(self, node: N) -> N:
        """The copy of a node. Raises ConfigurationError for DataFrame code."""
        if id(node) not in self._made:
            self._made[id(node)] = self._copied(node)
        made: N = self._made[id(node)]
        return made

    def _copied(self, node: Node) -> Node:
        if isinstance(node, SourceNode):
            return replace(node, source=self._source(node))
        if isinstance(node, OperatorNode):
            return replace(node, inputs=tuple(replace(i, parent=self.of(i.parent)) for i in node.inputs))
        if isinstance(node, SideOutputNode):
            return replace(node, operator=self.of(node.operator))
        if isinstance(node, UnionNode):
            return UnionNode(tuple(map(self.of, node.parents)))
        return replace(node, parent=self.of(node.parent), function=self._table_code(node))

    def _table_code(self, node: TransformNode) -> Any:
        code, what = node.function, f"{node.function!r}"
        if isinstance(code, Projection):
            return TableCode(code.of_table, what)
        stand_in = self._transforms.get(code, self._transforms.get(getattr(code, "func", None)))
        if stand_in is None:
            raise ConfigurationError(
                f"job '{self._job}': {what} is DataFrame code, which only Spark runs. Give a replacement: "
                "run_in_memory(job, transforms={function: code over a pyarrow.Table}); or test the job with a "
                "StateEngine on a temporary root"
            )
        return TableCode(stand_in, what)

    def _source(self, node: SourceNode) -> Source:
        """The source itself where it holds its rows; else one that is given rows."""
        source = node.source.source if isinstance(node.source, PartitionedSource) else node.source
        if isinstance(source, DecodedSource):
            return replace(source, source=self._held(node, source.inner))
        return self._held(node, source)

    def _held(self, node: SourceNode, inner: Source) -> Source:
        if isinstance(inner, CollectionSource | FunctionSource) and node.name not in self._types:
            return inner
        self.given[node.name] = GivenRows(node.name, self._kind(node, inner), changing=inner.changing)
        return self.given[node.name]

    def _kind(self, node: SourceNode, source: Source) -> OutputType | None:
        if node.name in self._types:
            return OutputType.of(to_type(self._types[node.name], parameter=f"type of source '{node.name}'"))
        return type_in_code(node, source)
