"""Rows to subtasks, over Arrow tables: the one implementation of routing, run wherever the rows are.

On keyed streams a row goes to the subtask that owns its key group, by the hash of the canonical key; without a key it
goes where its place in the order sends it, so that a replay sends it there again; a broadcast row goes to all. Plays
the part of Flink's ``KeyGroupStreamPartitioner``, ``RebalancePartitioner`` and ``BroadcastPartitioner``.

To read a row of a file on a disk and to hash its key takes a fraction of what it takes to send the row through Spark's
shuffle. So as long as they are few, subtasks all read the same files and leave out the rows of others (``OwnRows``); of
more of them, each row is read once and shuffled. Plays the part of Flink's local channels, through which rows go
without the network. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.key_arrays import canonical_array, hash_columns, key_groups_of, key_refusals
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.types.beyond_python import undecodable
from state_engine.core.types.columns import elements, one_chunk
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.job.graph import KEY_COLUMN, OperatorNode, SelectedKey
from state_engine.microbatch.routing.blocks import gathered, joined
from state_engine.microbatch.routing.element_watermarks import element_watermarks
from state_engine.microbatch.routing.origins import Origins
from state_engine.microbatch.routing.routed import (
    HASH,
    KEY_REFUSAL,
    SUBTASK,
    RoutedInput,
    RoutedLayout,
    selected_name,
)
from state_engine.microbatch.routing.routed_columns import Edge, EdgeKey
from state_engine.microbatch.routing.total_order import order_indices
from state_engine.sources.frames import ARRIVAL, ORIGIN, REFUSED, WATERMARK
from state_engine.sources.rows import Read
from state_engine.sources.stream_columns import in_arrow, with_kinds_of


def routed_rows(rows: pa.Table, edge: Edge, *, parallelism: int, max_parallelism: int) -> pa.Table:
    """The routed rows of one input, in the order in which they came; a SUBTASK of null stands for all subtasks.

    Args:
        rows: of the stream, with the columns of a key that a function makes.
    """
    columns, key = stream_columns(rows, edge), edge.key
    nowhere = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    if edge.everywhere:
        return pa.table(columns | {HASH: nowhere, SUBTASK: pa.nulls(rows.num_rows, pa.int32())})
    if key is None:
        subtasks = np.mod(hash_columns([columns[name] for name in edge.order]), parallelism)
        columns[HASH] = nowhere
    else:
        columns |= _key_columns(rows, key)
        of_groups = np.arange(max_parallelism) * parallelism // max_parallelism
        subtasks = of_groups[key_groups_of(columns[HASH].to_numpy(), max_parallelism)]
    return pa.table(columns | {SUBTASK: pa.array(subtasks.astype(np.int32))})


def stream_columns(rows: pa.Table, edge: Edge) -> dict[str, pa.Array]:
    """What the rows of one input have before anything is known of their keys."""
    return {name: in_arrow(rule, rows) for name, rule in edge.columns}


def _key_columns(rows: pa.Table, key: EdgeKey) -> dict[str, pa.Array]:
    own = [one_chunk(rows[name]) for name in key.columns]
    canonical = [canonical_array(column) for column in own]
    columns = dict(zip(key.routed, canonical, strict=True)) | {HASH: pa.array(hash_columns(canonical))}
    if key.refusals:
        why = key_refusals(key.columns, own)
        columns[KEY_REFUSAL] = pc.coalesce(one_chunk(rows[KEY_REFUSAL]), why) if key.selected else why
    return columns


def with_watermarks(rows: pa.Table, layout: RoutedLayout, origins: Origins) -> pa.Table:
    """All rows of a batch with the watermark before each, which those of a single operator's outputs carry already."""
    if not layout.event_time:
        return rows
    if not layout.lead:
        before = element_watermarks(rows, layout.order, origins, broadcast=layout.broadcast)
        rows = rows.set_column(rows.column_names.index(WATERMARK), WATERMARK, before)
    return rows.drop_columns([ORIGIN, *(ARRIVAL if layout.reordered else ())])


def without_watermarks(rows: pa.Table, layout: RoutedLayout) -> pa.Table:
    """Some rows of a batch: their subtasks find the watermark before each, unless the rows carry it."""
    if not layout.event_time:
        return rows
    computed = [] if layout.lead else [WATERMARK, *(ARRIVAL if layout.reordered else ())]
    return rows.drop_columns([ORIGIN, *computed])


def unparsable_rows(refused: pa.Array, parallelism: int) -> pa.Table:
    """Rows that could not be parsed, spread over the subtasks."""
    subtasks = np.mod(hash_columns([refused]), parallelism).astype(np.int32)
    return pa.table({REFUSED: refused, SUBTASK: pa.array(subtasks)})


def by_subtask(rows: pa.Table, parallelism: int) -> list[pa.Table]:
    """The rows of every subtask, those for all of them included."""
    subtasks = one_chunk(rows[SUBTASK])
    if subtasks.null_count:
        parts = by_subtask(rows.filter(pc.is_valid(subtasks)), parallelism)
        return [_copies(rows.filter(pc.is_null(subtasks)), part, number) for number, part in enumerate(parts)]
    numbers = subtasks.to_numpy()
    in_order = np.argsort(numbers, kind="stable")
    bounds: Sequence[int] = np.searchsorted(numbers[in_order], np.arange(parallelism + 1)).tolist()
    if parallelism > 1:
        rows = rows.take(pa.array(in_order))
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


def of_subtask(rows: pa.Table, subtask: int) -> pa.Table:
    """The rows of one subtask, those for all of them included."""
    subtasks = one_chunk(rows[SUBTASK])
    own = rows.filter(pc.equal(subtasks, subtask))
    return _copies(rows.filter(pc.is_null(subtasks)), own, subtask) if subtasks.null_count else own


def _copies(everywhere: pa.Table, rows: pa.Table, subtask: int) -> pa.Table:
    numbers = pa.repeat(pa.scalar(subtask, pa.int32()), everywhere.num_rows)
    place = everywhere.column_names.index(SUBTASK)
    return pa.concat_tables([rows, everywhere.set_column(place, SUBTASK, numbers)]).combine_chunks()


@dataclass(frozen=True)
class KeyFunction:
    """Makes the key of every row of one input."""

    get_key: Callable[[Any], Any]
    key_type: TypeInformation
    payload: tuple[str, ...]
    scalar: bool
    declared: StructType | None

    @classmethod
    def of(cls, one: RoutedInput, operator: OperatorNode) -> KeyFunction | None:
        key = operator.inputs[one.place].key
        if not isinstance(key, SelectedKey):
            return None
        payload = tuple(one.frame.user_columns)
        return cls(key.selector.get_key, key.key_type, payload, one.scalar, one.fitting)

    @property
    def code(self) -> list[Any]:
        return [self.get_key, self.key_type, self.declared]

    def add_to(self, rows: pa.Table) -> pa.Table:
        """Rows with the columns of the key and, where the function raised, the reason."""
        keys: list[Any] = [None] * rows.num_rows
        reasons: list[str | None] = [None] * rows.num_rows
        bad = undecodable({name: rows[name] for name in self.payload})  # the subtask refuses it
        good = [row for row in range(rows.num_rows) if row not in bad] if bad else range(rows.num_rows)
        readable = rows.take(pa.array(good, pa.int64())) if bad else rows
        given = elements(readable, self.payload, scalar=self.scalar, declared=self.declared) if good else []
        given = with_kinds_of(readable, given)
        for row, element in zip(good, given, strict=True):
            try:
                key = self.get_key(element)
                keys[row] = None if key is None else self.key_type.normalise(key)
            except MemoryError:  # no fault of the row
                raise
            except Exception as error:  # a user's function may raise anything
                reasons[row] = f"the key selector raised {type(error).__name__}: {error}"
        for place, column in enumerate(DeclaredKey.of(KEY_COLUMN, self.key_type).columns(keys)):
            rows = rows.append_column(selected_name(place), column)
        return rows.append_column(KEY_REFUSAL, pa.array(reasons, pa.string()))


@dataclass(frozen=True)
class OwnInput:
    """One input of an operator.

    Attributes:
        read: gives the rows that a task would read.
    """

    read: Read
    tasks: int
    edge: Edge

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, with the columns that routing needs."""
        for task in range(self.tasks):
            yield from self.read(task, self.edge.needs)


@dataclass(frozen=True)
class OwnRows:
    """The input of an operator, for its subtasks to read; so many rows are routed at once."""

    inputs: Sequence[OwnInput]
    empty: pa.Table
    layout: RoutedLayout
    parallelism: int
    max_parallelism: int
    at_once: int

    def of(self, subtask: int) -> pa.Table:
        """The routed rows of one subtask; each column is one chunk.

        What tasks would read side by side is put into order by its first rows. So rows that are in order in what each
        task reads are so here, and need not be sorted.
        """
        order = self.layout.whole_order
        parts = [part for part in self._routed(subtask) if part.num_rows]
        firsts = [part.slice(0, 1).select(order) for part in parts]
        places = order_indices(joined(firsts), order) if len(parts) > 1 else range(len(parts))
        return joined([self.empty, *(parts[place] for place in places)])

    def _routed(self, subtask: int) -> Iterator[pa.Table]:
        for one in self.inputs:
            for gathered_rows in gathered(one.batches(), enough=self.at_once):
                for start in range(0, gathered_rows.num_rows, self.at_once):
                    routed = routed_rows(
                        gathered_rows.slice(start, self.at_once),
                        one.edge,
                        parallelism=self.parallelism,
                        max_parallelism=self.max_parallelism,
                    )
                    yield of_subtask(without_watermarks(routed, self.layout), subtask)
