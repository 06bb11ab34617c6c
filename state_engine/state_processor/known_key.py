"""The type of an operator's key, known without running the job.

Where a function makes the key, or the stream is declared, the job says it (``graph.declared_key``). Else Spark knows
the columns without reading a row: of a source from the input that is there, of DataFrame code from its plan. Plays the
part of the key's ``TypeInformation`` in a Flink job graph.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import arrow_type, to_type
from state_engine.job.graph import (
    Node,
    OperatorNode,
    SideOutputNode,
    SourceNode,
    TransformNode,
    UnionNode,
    declared_key,
    is_scalar,
    output_type_of,
)
from state_engine.job.job import StatefulJob
from state_engine.microbatch.routing.assigned_time import with_assigned_time
from state_engine.queries.state_rows import key_schema_of
from state_engine.sources.frames import StreamFrame, from_source, order_name, united
from state_engine.sources.output_type import OutputType
from state_engine.sources.rows import DriverRows
from state_engine.spark.read_failures import reading


def known_key(
    spark: SparkSession, job: StatefulJob, operator: OperatorNode, key_type: TypeLike | None = None
) -> DeclaredKey:
    """Names and types of an operator's key, declared or not.

    Args:
        key_type: as a user gives it, where there is no input yet that would show it: a type, or of several columns a
            record of them.
    """
    what, names = f"job '{job.name}', operator '{operator.uid}'", operator.key_columns
    if not operator.keyed:
        raise ConfigurationError(f"{what}: its stream has no key, so it has no keyed state: use key_by")
    if (declared := declared_key(operator)) is not None:
        return declared
    if key_type is not None:
        return _given(names, key_type, what)
    frame = _frame(spark, job, operator.inputs[0].parent)
    if frame is None:
        raise ConfigurationError(
            f"{what}: its sources have no input that would show the types of {list(names)}: give key_type, such as "
            f"key_type='{names[0]} string'"
        )
    schema = key_schema_of(frame.rows, names, what=what)
    return DeclaredKey(schema.names, tuple(arrow_type(kind) for kind in schema.types))


def _given(names: tuple[str, ...], key_type: TypeLike, what: str) -> DeclaredKey:
    declared = to_type(key_type, parameter="key_type")
    if not isinstance(declared, StructType) or (len(names) == 1 and tuple(declared.names) != names):
        return DeclaredKey(names, (declared,))
    if tuple(declared.names) != names:
        raise ConfigurationError(
            f"{what}: key_type has the columns {list(declared.names)}, the key {list(names)}"
        )
    return DeclaredKey(names, declared.types)


def _frame(spark: SparkSession, job: StatefulJob, node: Node) -> StreamFrame | None:
    """The stream with its columns, of whose rows none is read; None where there is no input yet."""
    if isinstance(node, SourceNode):
        part = node.source.plan(spark, [])
        if part is None:
            return None
        with reading(node.name, job=job.name, into="the driver"):
            read = node.source.read(spark, part, keep_refused=True)
        frame = from_source(
            spark, read, order_by=node.order_by, event_time=node.event_time, source=node.name, labels=(),
            changing=node.source.changing,
        )  # fmt: skip
        return with_assigned_time(frame, node)  # a transform sees the hidden column
    if isinstance(node, TransformNode):
        parent = _frame(spark, job, node.parent)
        return None if parent is None else parent.transformed(node)
    if isinstance(node, UnionNode):
        parts = [f for p in node.parents if (f := _frame(spark, job, p)) is not None]
        return united(parts) if parts else None
    if isinstance(node, SideOutputNode):
        return _empty(spark, OutputType.of(node.tag.type_info))
    if node.output_type is not None:
        return _empty(spark, node.output_type)
    given = _frame(spark, job, node.inputs[0].parent)
    if given is None:
        return None
    columns = to_type(given.user_schema, parameter=f"input of operator '{node.uid}'")
    assert isinstance(columns, StructType)
    kind = OutputType(columns, scalar=is_scalar(node.inputs[0].parent))
    made = output_type_of(node, kind)
    return given if made is kind else _empty(spark, made)


def _empty(spark: SparkSession, kind: OutputType) -> StreamFrame:
    schema = pa.schema([*kind.columns.arrow, (order_name(0), pa.int64())])
    return StreamFrame(
        spark,
        DriverRows(schema.empty_table()),
        order_by=(),
        hidden_order=(order_name(0),),
        named=0,
        event_time=None,
    )
