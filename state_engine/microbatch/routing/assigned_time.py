"""Event times that a ``WatermarkStrategy`` gives the elements of a source: evaluated in Python as rows are read.

They go into a hidden column, so that elements stay as they are. By the driver where it has the rows, with a copy of the
function, as a task would have; else by the tasks that read them. Plays the part of Flink's
``TimestampsAndWatermarksOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError
from state_engine.core.time.watermark_strategy import (
    TimestampAssigner,
    TimestampColumn,
    checked_timestamp,
    epoch_milliseconds,
)
from state_engine.core.types.beyond_python import undecodable
from state_engine.core.types.columns import elements
from state_engine.core.types.every_type import StructType
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import SourceNode, declared_columns
from state_engine.sources.frames import EVENT_TIME, TIME_REFUSAL, StreamFrame
from state_engine.sources.rows import DriverRows, Given, TaskRows
from state_engine.sources.stream_columns import in_arrow, in_spark, with_kinds_of
from state_engine.spark.spark_names import T
from state_engine.spark.tasks import ArrowFunction, mapped_in_arrow

Timed = tuple[pa.Array, pa.Array]
"""Event times in milliseconds, and for each row why it has none, where that is an error."""
Assign = Callable[[pa.RecordBatch], Timed]
NO_TIME = "TimestampError"
"""Begins the error of a row that a WatermarkStrategy gave no event time."""
_ADDED = pa.schema([(EVENT_TIME, pa.int64()), (TIME_REFUSAL, pa.string())])


def with_assigned_time(frame: StreamFrame, node: SourceNode) -> StreamFrame:
    """The frame of a source whose event times a strategy gives, with these."""
    given, payload = node.timestamps, frame.user_columns
    assert given is not None
    if isinstance(given, TimestampColumn):
        _check_column(frame, given, f"source '{node.name}'")
    declared = _declared(node, payload)
    if (by_tasks := frame.given.task_rows) is not None:
        return _timed(frame, _assigned_in_tasks(frame, by_tasks, node, payload), node.name)
    timed = _with_own_time(frame)
    if timed.table is not None:
        rows = timed.table.drop_columns([EVENT_TIME])
        added = _assigned_here(timed.table, node, payload)
        for name in _ADDED.names:
            rows = rows.append_column(name, added[name])
        return _timed(frame, rows, node.name)
    kept = [f for f in timed.schema.fields if f.name != EVENT_TIME]
    types = [pa.field(f.name, to_type(f.dataType, parameter=f.name).arrow) for f in kept]
    schema = pa.schema([*types, *_ADDED])
    assign_there = _sent(given, declared, payload, scalar=node.scalar, name=node.name)
    rows = mapped_in_arrow(timed.rows, assign_there, T.StructType.fromJson(spark_schema(schema)))
    return _timed(frame, rows, node.name)


def _sent(
    given: TimestampAssigner | TimestampColumn,
    declared: StructType | None,
    payload: list[str],
    *,
    scalar: bool,
    name: str,
) -> ArrowFunction:
    """What adds the columns in a task to rows with the source's own times, with the code of the driver."""
    from state_engine.spark.shipped_code import shipped  # PySpark is imported on first use

    sent = shipped((given, declared), [given, declared], what=f"source '{name}'")

    def assign_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        there, kind = sent.unpacked()
        yield from _run(_assigner(there, payload, scalar=scalar, declared=kind), batches)

    return assign_there


def _assigned_in_tasks(frame: StreamFrame, given: TaskRows, node: SourceNode, payload: list[str]) -> TaskRows:
    """Rows that tasks read, with the columns that are added, where they are read."""
    assert node.timestamps is not None
    assign_there = _sent(
        node.timestamps, _declared(node, payload), payload, scalar=node.scalar, name=node.name
    )
    own, names, read = frame.event_ms("a source"), tuple(given.schema.names), given.read

    def with_own_time(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            times = in_arrow(own, pa.Table.from_batches([batch]))
            yield pa.RecordBatch.from_arrays([*batch.columns, times], [*batch.schema.names, EVENT_TIME])

    def read_timed(task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in assign_there(with_own_time(read(task, names))):
            yield batch.select(list(columns))

    return TaskRows(pa.schema([*given.schema, *_ADDED]), given.tasks, read_timed)


def with_missing_times(frame: StreamFrame, node: SourceNode) -> StreamFrame:
    """A table of a source's rows that have event times, where those without one have what the strategy gives."""
    table, given = frame.table, node.timestamps
    if given is None or table is None:
        return frame
    if isinstance(given, TimestampColumn):
        _check_column(frame, given, f"source '{node.name}'")
    own, bare = table[EVENT_TIME], table.drop_columns([EVENT_TIME])
    theirs = _own_times(replace(frame, given=DriverRows(bare), event_time=node.event_time), bare)
    added = _assigned_here(bare.append_column(EVENT_TIME, theirs), node, frame.user_columns)
    reasons = pc.if_else(pc.is_valid(own), pa.scalar(None, pa.string()), added[TIME_REFUSAL])
    rows = bare.append_column(EVENT_TIME, pc.coalesce(own, added[EVENT_TIME]))
    return replace(frame, given=DriverRows(rows.append_column(TIME_REFUSAL, reasons)))


def _declared(node: SourceNode, payload: list[str]) -> StructType | None:
    columns = declared_columns(node)
    return columns if columns is not None and list(columns.names) == payload else None


def _assigned_here(table: pa.Table, node: SourceNode, payload: list[str]) -> pa.Table:
    """The columns that are added to a table with the source's own times; by a copy of the function, as in a task."""
    from state_engine.spark.pickled_code import copied  # PySpark is imported on first use

    own = copied(node.timestamps, what=f"source '{node.name}'")
    assign = _assigner(own, payload, scalar=node.scalar, declared=_declared(node, payload))
    batches = list(_run(assign, table.to_batches()))
    return pa.Table.from_batches([b.select(_ADDED.names) for b in batches], _ADDED)


def _timed(frame: StreamFrame, rows: Given, source: str) -> StreamFrame:
    return frame.with_rows(rows, event_time=EVENT_TIME, timed_order=False, origin=source)


def _with_own_time(frame: StreamFrame) -> StreamFrame:
    """With the time that the source itself gives, where it names a column of it."""
    table = frame.table
    if table is not None:
        return frame.with_rows(table.append_column(EVENT_TIME, _own_times(frame, table)))
    return frame.with_rows(frame.rows.withColumn(EVENT_TIME, in_spark(frame.event_ms("a source"))))


def _own_times(frame: StreamFrame, table: pa.Table) -> pa.Array:
    return in_arrow(frame.event_ms("a source"), table)


def _check_column(frame: StreamFrame, column: TimestampColumn, what: str) -> None:
    frame.require((column.name,), what=f"with_timestamp_column of {what}")
    kind = to_type(frame.schema[column.name].dataType, parameter=column.name).arrow
    try:
        epoch_milliseconds(pa.array([], kind), column.unit)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{what}: with_timestamp_column('{column.name}', …): {error}; a timestamp or a date is named by "
            "source(event_time=…)"
        ) from None


def _run(assign: Assign, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        kept = [n for n in batch.schema.names if n != EVENT_TIME]
        arrays = [*(batch[n] for n in kept), *assign(batch)]
        yield pa.RecordBatch.from_arrays(arrays, [*kept, *_ADDED.names])


def _assigner(
    given: TimestampAssigner | TimestampColumn,
    payload: list[str],
    *,
    scalar: bool,
    declared: StructType | None,
) -> Assign:
    if isinstance(given, TimestampColumn):
        return lambda batch: _from_column(given, batch)
    return lambda batch: _from_function(given, batch, payload, scalar=scalar, declared=declared)


def _from_column(column: TimestampColumn, batch: pa.RecordBatch) -> Timed:
    times, wrong = epoch_milliseconds(batch[column.name], column.unit)
    text = f"{NO_TIME}: the number in the column '{column.name}' is not a time in {column.unit} since 1970"
    return times, pc.if_else(wrong, pa.scalar(text), pa.scalar(None, pa.string()))


def _from_function(
    assigner: TimestampAssigner,
    batch: pa.RecordBatch,
    payload: list[str],
    *,
    scalar: bool,
    declared: StructType | None,
) -> Timed:
    times: list[int | None] = [None] * batch.num_rows
    reasons: list[str | None] = [None] * batch.num_rows
    bad = undecodable({name: batch[name] for name in payload})  # the subtask refuses it
    good = [row for row in range(batch.num_rows) if row not in bad]
    rows = batch.take(pa.array(good, pa.int64())) if bad else batch
    own = rows[EVENT_TIME].to_pylist()
    values = with_kinds_of(rows, elements(rows, payload, scalar=scalar, declared=declared))
    for row, value, at in zip(good, values, own, strict=True):
        try:
            times[row] = checked_timestamp(
                assigner.extract_timestamp(value, MIN_TIMESTAMP if at is None else at)
            )
        except MemoryError:  # no fault of the row
            raise
        except Exception as error:  # a user's function may raise anything
            reasons[row] = f"{NO_TIME}: the timestamp assigner: {type(error).__name__}: {error}"
    return pa.array(times, pa.int64()), pa.array(reasons, pa.string())
