"""``KeyTypeChange``: gives the keyed state of an operator another type of key.

    read     all entries at the head, timers and what has expired included (``stored_entries``)
    convert  each key, by a cast that loses nothing or by a function of the user's: new hashes, new key groups
    write    a base (``entry_writer``); two keys that become one are refused there
    commit   one row of kind ``transform`` upon that very head, else ``StaleParentError``

Values, times and the order of lists and maps stay what they are; sources, sinks and operator state are not touched.
The old files stay with the checkpoints before, which code of the old key restores and goes on from. Flink needs its
State Processor API and a new savepoint for this.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.entry_codes import entry_codes
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator_state.operator_snapshot import RAW_KEYED
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import from_spark_json, to_type
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    SideOutputNode,
    SourceNode,
    TransformNode,
    UnionNode,
    declared_key,
    is_scalar,
    output_type_of,
    typing_inputs,
)
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.declarations import other_columns
from state_engine.microbatch.routing.assigned_time import with_assigned_time
from state_engine.operations.head_operations import HeadOperations
from state_engine.queries.state_changes import SAME
from state_engine.queries.state_rows import KEY, STATE, WHY, key_schema_of
from state_engine.queries.stored_entries import key_schema, operator_of, stored_entries
from state_engine.sources.frames import StreamFrame, from_source, order_name, united
from state_engine.sources.output_type import OutputType
from state_engine.sources.rows import DriverRows
from state_engine.spark.read_failures import reading
from state_engine.spark.shipped_code import attempts
from state_engine.state_processor.entry_writer import (
    Counts,
    EntryWriter,
    OperatorEntries,
    refused_row,
)
from state_engine.state_processor.key_conversion import OLD, Convert, converted
from state_engine.storage.delta.kernel import DeltaKernel

_EXAMPLES = 3
_KEYS = ""
"""Under which keys are counted, which no state is called."""


@dataclass(frozen=True)
class KeyTypeReport:
    """What a change of the type of a key did, or in a dry run would do.

    Attributes:
        job, operator: names.
        parent_id: the head whose state was read.
        before, after: columns of the key and their types.
        is_needed: whether anything had to be written: keys that only become wider are stored as they were.
        keys: how many there are.
        entries: values, lists and map entries by state; timers are the state ``_timers``.
        committed_id: the row; None in a dry run, and where nothing had to be written.
    """

    job: str
    operator: str
    parent_id: int
    before: str
    after: str
    is_needed: bool = True
    keys: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    committed_id: int | None = None


@dataclass(frozen=True)
class KeyTypeChange:
    """One change of the key of one operator."""

    job: str
    tables: JobTables
    kernel: DeltaKernel
    operations: HeadOperations
    spark: SparkSession
    dry_run: bool = False

    def run(self, uid: str, key: DeclaredKey, convert: Convert | None) -> KeyTypeReport:
        """See ``StateProcessor.change_key_type``; ``key`` is that of today's code."""
        declared = key.schema
        history, head = self.operations.published_head()
        path, what = history.path(head.checkpoint_id), f"job '{self.job}', operator '{uid}'"
        operator = operator_of(head, uid, job=self.job)
        _check_no_raw_state(head, uid, what)
        old = key_schema(operator)
        report = KeyTypeReport(self.job, uid, head.checkpoint_id, old.declared_text, declared.declared_text)
        if convert is None and declared.is_stored_like(old):
            return replace(report, is_needed=False)
        if convert is None and declared.names != old.names:
            raise ConfigurationError(
                f"{what}: its state is stored by {list(old.names)}, the job keys by {list(declared.names)}. "
                f"{other_columns(old.names, declared.names)}. Only convert=, from an old key to a new one, makes one "
                "key of another"
            )
        new = declared.stored_in(self._key_columns(uid))
        entries = stored_entries(self.spark, self.tables.layout, path, uid)
        writer = EntryWriter(self.spark, self.tables.layout, self.dry_run)
        changed = replace(operator, key_schema=str(new), key_type=new.declared_text)

        for attempt in attempts(self.spark, convert, job=self.job):
            with attempt:
                made = converted(entries, old, new, convert and (convert, key), what=what)
                produced = OperatorEntries(changed, made, partial(_counted, old, new), is_base=True)
                written = writer.write(produced, what=what, doing=f"keys become {report.after}")
        counts = {state: kinds.total() for state, kinds in sorted(written.counts.items())}
        report = replace(report, keys=counts.pop(_KEYS, 0), entries=counts)
        if self.dry_run:
            return report
        row = writer.commit(
            [written], operations=self.operations, tables=self.tables, history=history, head=head
        )
        return replace(report, committed_id=row.checkpoint_id)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _key_columns(self, uid: str) -> list[pa.DataType]:
        types = []
        for uri in (self.tables.layout.base(uid), self.tables.layout.changelog(uid)):
            facts = self.kernel.facts(uri)
            fields = facts.schema["fields"] if facts is not None else []
            types += [from_spark_json(f["type"]).arrow for f in fields if f["name"] == KEY]
        return types


def _counted(old: KeySchema, new: KeySchema, table: pa.Table) -> Counts:
    """In a task: keys and entries of whole key groups; refuses keys that cannot be one, and two that became one."""
    at, old_keys = refused_row(table), one_chunk(table[OLD])
    if at is not None:
        (key,) = old.decode_struct(old_keys.slice(at, 1))
        raise InvalidKeyError(f"{table[WHY][at]}, for the key {key!r}")
    codes = entry_codes([one_chunk(table[KEY])])
    both = entry_codes([pa.array(codes), old_keys])
    _, first = np.unique(both, return_index=True)  # a row of every old key
    kept, counts = np.unique(codes[first], return_counts=True)
    if len(kept) < len(first):
        examples = []
        for code in kept[counts > 1][:_EXAMPLES]:
            at_keys = pa.array(first[codes[first] == code][:_EXAMPLES])
            several = ", ".join(map(repr, old.decode_struct(old_keys.take(at_keys))))
            (one,) = new.decode_struct(one_chunk(table[KEY]).take(at_keys.slice(0, 1)))
            examples.append(f"{several} would be {one!r}")
        raise ConfigurationError(
            f"several keys would become one: {'; '.join(examples)}. Nothing was changed. Convert them otherwise, or "
            "first merge their state or delete all keys but one by transform_state"
        )
    entries = table[STATE].value_counts().to_pylist()
    return Counter({(_KEYS, SAME): len(kept)} | {(e["values"], SAME): e["counts"] for e in entries})


def _check_no_raw_state(head: CheckpointRow, uid: str, what: str) -> None:
    """Raise ConfigurationError where the function keeps bytes by key group."""
    states = [s for ref in head.operator_state if ref.operator == uid for s in ref.states]
    raw = sorted(s.name for s in states if s.scheme == RAW_KEYED and any(p.elements for p in s.parts))
    if raw:
        raise ConfigurationError(
            f"{what}: it has raw keyed state ({', '.join(raw)}), bytes of a key group that only its function can "
            "take apart, and its keys would go to other key groups. Run a version that moves the bytes into keyed state"
        )


def known_key(
    spark: SparkSession, job: StatefulJob, operator: OperatorNode, key_type: TypeLike | None = None
) -> DeclaredKey:
    """Names and types of an operator's key, known without running the job.

    Where the job does not declare it, Spark knows the columns without reading a row: of a source from the input that is
    there, of DataFrame code from its plan.

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
    return DeclaredKey(schema.names, schema.kinds)


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
        # a transform sees the hidden column
        return frame if node.timestamps is None else with_assigned_time(frame, node)
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
    inputs = typing_inputs(node)
    frames = [given for one in inputs if (given := _frame(spark, job, one.parent)) is not None]
    if len(frames) < len(inputs):
        return None
    kinds = [_kind(node, one, frame) for one, frame in zip(inputs, frames, strict=True)]
    made = output_type_of(node, kinds)
    return frames[0] if made is kinds[0] else _empty(spark, made)


def _kind(node: OperatorNode, given: OperatorInput, frame: StreamFrame) -> OutputType:
    columns = to_type(frame.user_schema, parameter=f"input of operator '{node.uid}'")
    assert isinstance(columns, StructType)
    return OutputType(columns, scalar=is_scalar(given.parent))


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
