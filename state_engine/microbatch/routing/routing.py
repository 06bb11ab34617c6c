"""Where rows are routed: by the driver where it has them and they are few, else by the tasks that read them.

These read files with Arrow where that gives what Spark would; else Spark reads, and hands them its rows. Whoever it is,
``arrow_router`` does it, so the results do not show who did. Only events are shuffled: a task cuts its rows into
blocks, one for each subtask, and these go through Spark's shuffle. A statically empty plan runs no task at all, and a
subtask without events still has functions to open and snapshots to take; so every subtask gets a block without rows,
too. A few subtasks read files on a disk themselves, see ``OwnRows``. Decision 0040.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.types.columns import one_chunk, to_bytes
from state_engine.job.graph import OperatorNode
from state_engine.microbatch.routing.arrow_router import (
    KeyFunction,
    OwnInput,
    OwnRows,
    by_subtask,
    routed_rows,
    stream_columns,
    unparsable_rows,
    with_watermarks,
    without_watermarks,
)
from state_engine.microbatch.routing.blocks import BLOCK, blocks_of, gathered, rows_of_blocks, unpacked
from state_engine.microbatch.routing.element_watermarks import (
    STEPS_SCHEMA,
    joined_steps,
    packed_arrivals,
    steps_in,
)
from state_engine.microbatch.routing.origins import NO_ORIGINS, Origins
from state_engine.microbatch.routing.routed import HASH, SUBTASK, InputLayout, RoutedInput, RoutedLayout
from state_engine.microbatch.routing.routed_columns import Edge, planned
from state_engine.sources.frames import EVENT_TIME, REFUSED, StreamFrame, order_name
from state_engine.sources.rows import Rows
from state_engine.sources.stream_columns import in_arrow
from state_engine.spark.pickled_code import copied
from state_engine.spark.placement import Placement, limits_of, placement_of
from state_engine.spark.shipped_code import shipped
from state_engine.spark.tasks import ArrowFunction, DriverTables, FramePartitions, OwnReads, TaskInput

Collect = Callable[[DataFrame], Sequence[Any]]
"""Runs a DataFrame and gives its rows."""
_BLOCKS_SCHEMA = f"{SUBTASK} int, {BLOCK} binary"

_NOTHING_NEW = RoutedLayout(
    inputs=(),
    order=(order_name(0), order_name(1)),  # timers have a time and a key
    named=1,
    timed_order=True,
    positioned=False,
    keys=(),
    key_schema=None,
    event_time=True,
    key_refusals=False,
    refused=False,
    sources=False,
)
"""Of the input of an operator whose streams have nothing new."""


def nothing_new(parallelism: int, *, event_time: bool, here: bool = False) -> Routed:
    """The input of an operator whose streams have nothing new.

    Args:
        here: whether this process runs subtasks itself.
    """
    layout = _NOTHING_NEW if event_time else replace(_NOTHING_NEW, event_time=False)
    columns = [HASH, *layout.order, *([EVENT_TIME] if event_time else []), SUBTASK]
    empty = pa.table({name: pa.array([], pa.int64()) for name in columns})
    return Routed(DriverTables([empty] * parallelism, here), layout)


def not_routed(columns: Sequence[str], places: Sequence[str]) -> RoutedLayout:
    """Of rows that pass through to a sink: columns of a user, and hidden ones that say where a row came from."""
    names = tuple(columns)
    return replace(
        _NOTHING_NEW, inputs=(InputLayout(names, names, scalar=False),), order=tuple(places), named=0,
        positioned=True, event_time=False,
    )  # fmt: skip


def newest_by_source(frame: StreamFrame, table: pa.Table, known: Mapping[str, int]) -> dict[str, int]:
    """The largest event time of the rows of each source, where it is above what is known; milliseconds."""
    times = in_arrow(frame.event_ms("a stream"), table)
    rows = pa.table({"source": in_arrow(frame.source_name, table), "at": times})
    newest = rows.group_by("source").aggregate([("at", "max")])
    pairs = zip(newest["source"].to_pylist(), newest["at_max"].to_pylist(), strict=True)
    return {n: at for n, at in pairs if n is not None and at is not None and at > known.get(n, at - 1)}


@dataclass(frozen=True)
class Routed:
    """The input of an operator.

    Attributes:
        rows: of each subtask; they are None where its block without rows did not arrive.
        steps: where the watermark moves, where the rows do not carry it themselves.
        newest_ms: newest event times by source, as far as they were looked for.
    """

    rows: TaskInput[pa.Table | None]
    layout: RoutedLayout
    steps: pa.Table | None = None
    newest_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyRows:
    """Rows of one key.

    Attributes:
        rows: the first of them in their order, with the columns that functions see.
    """

    count: int
    rows: pa.Table


@dataclass(frozen=True)
class _Input:
    """One input, how it is routed, what makes its keys, and whose these are, for messages."""

    given: RoutedInput
    edge: Edge
    key: KeyFunction | None
    keyed_for: str


class Router:
    """Routes the inputs of a job's operators."""

    def __init__(self, spark: SparkSession, *, max_parallelism: int) -> None:
        self._spark, self._max_parallelism = spark, max_parallelism
        self._markers: dict[tuple[bytes, int], DataFrame] = {}

    def route(
        self,
        inputs: Sequence[RoutedInput],
        operator: OperatorNode,
        *,
        parallelism: int,
        origins: Origins = NO_ORIGINS,
        collect: Collect | None = None,
    ) -> Routed:
        """The input of an operator: shuffled, read by each subtask, or where it is little a table a subtask.

        Args:
            collect: runs a DataFrame, to find out where the watermark moves; None where nobody needs to know.
        """
        refused = {source: rows for one in inputs for source, rows in one.frame.refused}
        ready = [replace(one, frame=one.frame.ordered()) for one in inputs]
        edges, layout = planned(ready, operator, refused=bool(refused))
        planned_inputs = [
            _Input(one, edge, KeyFunction.of(one, operator), f"key_by of operator '{operator.uid}'")
            for one, edge in zip(ready, edges, strict=True)
        ]
        limits, near = limits_of(self._spark), _readable_by_every_subtask(planned_inputs)
        tables = [one.frame.table for one in ready]
        unparsed = [rows.table for rows in refused.values() if rows.table is not None]
        place = placement_of(
            limits,
            held=len(unparsed) == len(refused) and all(table is not None for table in tables),
            readable=near is not None and not refused,
            subtasks=parallelism,
        )
        if place is Placement.DRIVER:
            parts = [
                self._routed(one, table, parallelism)
                for one, table in zip(planned_inputs, tables, strict=True)
            ]
            rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
            refusals = [unparsable_rows(one_chunk(table[REFUSED]), parallelism) for table in unparsed]
            every = [with_watermarks(rows, layout, origins), *refusals]
            together = pa.concat_tables(every, promote_options="default").combine_chunks()
            return Routed(DriverTables(by_subtask(together, parallelism), limits.in_process), layout)
        steps, newest = None, dict[str, int]()
        if collect is not None and layout.event_time and not layout.lead:
            steps, newest = _watermark_steps(planned_inputs, layout, origins, collect)
        empty = self._without_rows(planned_inputs, layout, parallelism)
        if place is Placement.READERS:
            assert near is not None
            own = OwnRows(near, empty, layout, parallelism, self._max_parallelism, limits.routed_at_once)
            return Routed(OwnReads(parallelism, own.of), layout, steps, newest)
        parts = [self._blocks(one, layout, parallelism) for one in planned_inputs]
        parts += [self._unparsable_blocks(rows, parallelism) for rows in refused.values()]
        parts.append(self._marker_blocks(empty, parallelism))
        shuffled = reduce(DataFrame.union, parts).repartitionById(parallelism, F.col(SUBTASK))
        return Routed(FramePartitions(shuffled, rows_of_blocks), layout, steps, newest)

    def rows_of_key(self, one: RoutedInput, operator: OperatorNode, key_hash: int, *, limit: int) -> KeyRows:
        """Of an input's rows those with one key; ``limit`` of them are given."""
        ready = replace(one, frame=one.frame.ordered())
        (edge,), layout = planned([ready], operator)
        function, max_parallelism = KeyFunction.of(ready, operator), self._max_parallelism
        order = [(name, "ascending") for name in edge.order]
        sent = shipped(function, [] if function is None else function.code, what=f"operator '{operator.uid}'")

        def find(rows: pa.Table, function: KeyFunction | None) -> pa.RecordBatch:
            keyed = rows if function is None else function.add_to(rows)
            routed = routed_rows(keyed, edge, parallelism=1, max_parallelism=max_parallelism)
            held = routed.filter(pc.equal(routed[HASH], key_hash)).sort_by(order)
            return pa.record_batch(
                {
                    SUBTASK: pa.array([held.num_rows], pa.int32()),
                    BLOCK: pa.array([to_bytes(held.slice(0, limit))], pa.binary()),
                }
            )

        def find_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            own = sent.unpacked()
            for rows in gathered(batches):
                yield find(rows, own)

        if ready.frame.table is not None:
            blocks = pa.Table.from_batches([find(ready.frame.table, sent.unpacked())])
        else:
            blocks = _where_read(ready.frame, edge, find_there, _BLOCKS_SCHEMA).toArrow()
        rows = unpacked(blocks[BLOCK].to_pylist())
        if rows is None:
            return KeyRows(0, pa.table({}))
        shown = layout.inputs[one.place]
        first = rows.sort_by(order).slice(0, limit).select(shown.columns).rename_columns(shown.names)
        return KeyRows(sum(blocks[SUBTASK].to_pylist()), first)

    def _routed(self, one: _Input, rows: pa.Table, parallelism: int) -> pa.Table:
        if one.key is not None:
            # A copy, as a task would have: what the function remembers ends with the batch.
            rows = copied(one.key, what=one.keyed_for).add_to(rows)
        return routed_rows(rows, one.edge, parallelism=parallelism, max_parallelism=self._max_parallelism)

    def _blocks(self, one: _Input, layout: RoutedLayout, parallelism: int) -> DataFrame:
        edge, key, max_parallelism = one.edge, one.key, self._max_parallelism
        sent = shipped(key, [] if key is None else key.code, what=one.keyed_for)

        def route_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            function = sent.unpacked()
            for rows in gathered(batches):
                keyed = rows if function is None else function.add_to(rows)
                routed = routed_rows(keyed, edge, parallelism=parallelism, max_parallelism=max_parallelism)
                yield blocks_of(by_subtask(without_watermarks(routed, layout), parallelism))

        return _where_read(one.given.frame, edge, route_there, _BLOCKS_SCHEMA)

    def _unparsable_blocks(self, refused: Rows, parallelism: int) -> DataFrame:
        def route_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in gathered(batches):
                yield blocks_of(
                    by_subtask(unparsable_rows(one_chunk(rows.column(0)), parallelism), parallelism)
                )

        return refused.mapped(self._spark, route_there, _BLOCKS_SCHEMA, columns=[REFUSED])

    def _without_rows(self, inputs: Sequence[_Input], layout: RoutedLayout, parallelism: int) -> pa.Table:
        parts = []
        for one in inputs:
            fields = [(name, one.given.frame.arrow_type(name)) for name in one.edge.needs]
            parts.append(self._routed(one, pa.schema(fields).empty_table(), parallelism))
        return without_watermarks(pa.concat_tables(parts, promote_options="default"), layout)

    def _marker_blocks(self, empty: pa.Table, parallelism: int) -> DataFrame:
        """For every subtask a block without rows."""
        at = to_bytes(empty), parallelism
        if at not in self._markers:
            columns = [F.col("id").cast("int").alias(SUBTASK), F.lit(at[0]).alias(BLOCK)]
            self._markers[at] = self._spark.range(0, parallelism, 1, 1).select(*columns)
        return self._markers[at]


def _readable_by_every_subtask(inputs: Sequence[_Input]) -> list[OwnInput] | None:
    """Rows that all subtasks may read; None where a row should be read by one of them only.

    So it is where a function of the user makes its key: it would be called once more in each of them.
    """
    given = [(one.given.frame.given.task_rows, one.edge) for one in inputs if one.key is None]
    near = [OwnInput(rows.read, rows.tasks, edge) for rows, edge in given if rows is not None and rows.near]
    return near if len(near) == len(inputs) else None


def _where_read(frame: StreamFrame, edge: Edge, run: ArrowFunction, schema: str) -> DataFrame:
    """What a function makes of the rows of each task that reads some, with the columns that an edge needs."""
    return frame.given.mapped(frame.spark, run, schema, columns=edge.needs)


def _watermark_steps(
    inputs: Sequence[_Input], layout: RoutedLayout, origins: Origins, collect: Collect
) -> tuple[pa.Table | None, dict[str, int]]:
    """Where in the order of these rows the watermark moves, and the newest event times by source.

    One Spark job; two where rows may have come in another order.
    """

    def of_all_tasks(find: Callable[[pa.Table], pa.RecordBatch]) -> tuple[list[bytes], Sequence[Any]]:
        parts = [_in_tasks(find, one.given.frame, one.edge.for_watermarks) for one in inputs]
        rows = collect(reduce(DataFrame.union, parts))
        return [bytes(row["steps"]) for row in rows], rows

    arrivals, order, broadcast = None, layout.order, layout.broadcast
    if layout.reordered:
        arrivals = unpacked(of_all_tasks(lambda rows: packed_arrivals(rows, origins))[0])
    steps, rows = of_all_tasks(
        lambda rows: steps_in(rows, order, origins, broadcast=broadcast, arrivals=arrivals)
    )
    newest: dict[str, int] = {}
    for row in rows:
        for source, at in json.loads(row["newest"]).items():
            newest[source] = max(at, newest.get(source, at))
    return joined_steps(steps, order, origins), newest


def _in_tasks(find: Callable[[pa.Table], pa.RecordBatch], frame: StreamFrame, edge: Edge) -> DataFrame:
    def find_there(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if given:
            yield find(pa.table(stream_columns(pa.Table.from_batches(given), edge)))

    return _where_read(frame, edge, find_there, STEPS_SCHEMA)
