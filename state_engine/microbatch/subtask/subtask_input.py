"""The input of a subtask: its routed rows, in total order, as keys, values and event times.

Also checks what must hold of them: rows belong to this subtask, and every key to one of its key groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import StatelakeError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.keys.key_groups import key_group_range
from state_engine.core.operator.late_elements import LateElement
from state_engine.core.state.state_table import NO_KEY
from state_engine.core.time.watermarks import late_among, shifted
from state_engine.core.types.column_forms import in_form
from state_engine.core.types.columns import elements, one_chunk
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.microbatch.routing.element_watermarks import watermarks_by_steps
from state_engine.microbatch.routing.routed import HASH, INPUT, InputLayout, RoutedLayout
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport, SubtaskSpec
from state_engine.sources.frames import EVENT_TIME, RANK, SOURCE, WATERMARK
from state_engine.sources.stream_columns import kinds_of, with_kinds_of

Hashes = np.ndarray[Any, Any]
Flags = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Keys:
    """The keys of a batch.

    Attributes:
        index_of: for every key, a row (or added key) that has it.
    """

    of_rows: list[Any]
    index_of: dict[Any, int]
    columns: list[pa.Array]
    hashes: Hashes

    @property
    def touched(self) -> Hashes:
        hashes: Hashes = self.hashes[np.fromiter(self.index_of.values(), np.int64, len(self.index_of))]
        return hashes

    def and_also(self, keys: list[Any], columns: list[pa.Array], hashes: Hashes) -> Keys:
        index_of = self.index_of | {key: len(self.hashes) + i for i, key in enumerate(keys)}
        joined = [pa.concat_arrays([a.cast(b.type), b]) for a, b in zip(self.columns, columns, strict=True)]
        return Keys(self.of_rows, index_of, joined, np.concatenate([self.hashes, hashes]))


def keys_of(
    events: pa.Table, spec: SubtaskSpec, report: SubtaskReport, *, without: Collection[int] = ()
) -> Keys:
    """The keys of rows; raises StatelakeError where one is in another subtask's key group.

    Args:
        without: rows that have no key, or pass by the function: none is touched, and NO_KEY stands for it.
    """
    if without:
        kept = np.ones(events.num_rows, bool)
        kept[list(without)] = False
        of_kept = keys_of(events.filter(pa.array(kept)).combine_chunks(), spec, report)
        given = iter(of_kept.of_rows)
        return replace(of_kept, of_rows=[next(given) if one else NO_KEY for one in kept.tolist()])
    if spec.key_schema is None or not spec.routed.keys:
        stored = [] if spec.key_schema is None else list(spec.key_schema.storage)
        return Keys([], {}, [pa.array([], f.type) for f in stored], np.array([], np.int64))
    columns, hashes = key_columns_of(events, spec, report)
    keys = spec.key_schema.decode(columns)
    index_of = dict(zip(keys, range(len(keys)), strict=True))
    report.keys = len(index_of)
    return Keys(keys, index_of, columns, hashes)


def key_columns_of(
    events: pa.Table, spec: SubtaskSpec, report: SubtaskReport
) -> tuple[list[pa.Array], Hashes]:
    """Key columns and hashes of rows; raises StatelakeError where one is in another subtask's key group."""
    columns = [one_chunk(events[c]) for c in spec.routed.keys]
    hashes = events[HASH].to_numpy()
    own = key_group_range(spec.max_parallelism, spec.parallelism, report.subtask)
    groups = key_groups_of(hashes, spec.max_parallelism)
    if len(groups) and (groups.min() < own.start or groups.max() > own.end):
        raise StatelakeError(f"operator '{spec.uid}': subtask {report.subtask} got keys of another key group")
    counts = np.bincount(groups - own.start)
    present = np.flatnonzero(counts)
    report.group_rows = dict(zip((present + own.start).tolist(), counts[present].tolist(), strict=True))
    return columns, hashes


def values_of(events: pa.Table, routed: RoutedLayout) -> list[Any]:
    """Elements as functions see them; pairs of stream and element, where rows of two streams are in one order."""
    plain = _in_order(routed)
    if len(plain) == 1:
        return _decoded(events, routed.inputs[plain[0]]) if events.num_rows else []
    if not events.num_rows:
        return []
    which = events[INPUT].to_numpy()
    values: list[Any] = [None] * len(which)
    for at in plain:
        rows = np.flatnonzero(which == at)
        if not len(rows):
            continue
        for index, value in zip(
            rows.tolist(), _decoded(events.take(pa.array(rows)), routed.inputs[at]), strict=True
        ):
            values[index] = (at, value)
    return values


def columns_of(events: pa.Table, one: InputLayout) -> pa.Table:
    columns = [one_chunk(events[c]) for c in one.columns]
    if one.declared is not None:
        kinds = one.declared.types
        columns = [
            c if c.type == kind.arrow else in_form(c, kind) for c, kind in zip(columns, kinds, strict=True)
        ]
    return pa.table(columns, names=list(one.names))


def broadcast_rows(table: pa.Table, routed: RoutedLayout) -> tuple[pa.Table, pa.Table]:
    at = routed.broadcast
    if at is None:
        return table, table.slice(0, 0)
    of_broadcast = pc.equal(table[INPUT], at)
    return table.filter(pc.invert(of_broadcast)).combine_chunks(), table.filter(of_broadcast).combine_chunks()


def counted_rows(events: pa.Table, routed: RoutedLayout, subtask: int) -> pa.Table:
    """The rows that this subtask counts: of those that all subtasks have, the first one does."""
    everywhere = [at for at, one in enumerate(routed.inputs) if one.everywhere or one.ordered]
    if not everywhere or not subtask:
        return events
    if len(routed.inputs) == 1:
        return events.slice(0, 0)
    return events.filter(pc.invert(pc.is_in(events[INPUT], pa.array(everywhere, pa.int32()))))


def among_broadcast(events: pa.Table, routed: RoutedLayout) -> Flags | None:
    """Which rows are broadcast elements that stand among those of the other stream; None where none ever does."""
    at = routed.ordered_broadcast
    if at is None or INPUT not in events.column_names:
        return None
    which: Flags = events[INPUT].to_numpy() == at
    return which


def broadcast_values(events: pa.Table, routed: RoutedLayout) -> list[Any]:
    """Broadcast elements as functions see them."""
    return _decoded(events, next(one for one in routed.inputs if one.broadcast))


def with_watermarks(rows: pa.Table, spec: SubtaskSpec) -> pa.Table:
    """Rows in total order with the watermark before each and its rank, where there is event time.

    They carry it already where the driver routed them. Where one other operator put them out, they carry what it would
    be if no operator held it back.
    """
    routed, start_ms = spec.routed, spec.clocks.watermark_ms
    if not routed.event_time:
        return rows
    if spec.watermark_steps is not None:
        watermarks = watermarks_by_steps(
            rows, routed.order, spec.watermark_steps, start_ms=start_ms, broadcast=routed.broadcast
        )
        rows = rows.drop_columns([WATERMARK]) if WATERMARK in rows.column_names else rows
        rows = rows.append_column(WATERMARK, watermarks)
    elif WATERMARK not in rows.column_names:
        rows = rows.append_column(WATERMARK, pa.array(np.full(len(rows), start_ms, np.int64)))
    elif routed.lead and spec.clocks.held_back_ms:
        place = rows.column_names.index(WATERMARK)
        rows = rows.set_column(place, WATERMARK, shifted_column(rows[WATERMARK], -spec.clocks.held_back_ms))
    if RANK not in rows.column_names:
        rows = rows.append_column(RANK, pa.array(np.zeros(len(rows), np.int64)))
    return rows


def shifted_column(watermarks: pa.ChunkedArray, by_ms: int) -> pa.Array:
    """Watermarks so much later, or earlier; a letter's row may have none."""
    moved = shifted(pc.fill_null(watermarks, MIN_TIMESTAMP).to_numpy(), by_ms)
    return pa.array(moved, mask=watermarks.is_null().to_numpy())


def watermarks_of(events: pa.Table, routed: RoutedLayout) -> list[int] | None:
    """The watermark before every element, in milliseconds; None without event time."""
    return events[WATERMARK].to_pylist() if routed.event_time else None


def timestamps_of(events: pa.Table, routed: RoutedLayout) -> Iterable[int | None]:
    if not routed.event_time:
        return repeat(None, events.num_rows)
    timestamps: list[int | None] = events[EVENT_TIME].to_pylist()
    return timestamps


def row_kinds_of(events: pa.Table, routed: RoutedLayout) -> list[RowKind] | None:
    """Kinds of the elements; None where all are inserts."""
    return kinds_of(events) if routed.changing else None


def count_sources(events: pa.Table, spec: SubtaskSpec, report: SubtaskReport) -> None:
    """Report how many rows came straight from each source, how many were late, and the largest event time."""
    routed = spec.routed
    parts: list[tuple[str, pa.Table]] = []
    if routed.sources:
        names = pc.unique(events[SOURCE]).drop_null().to_pylist()
        parts = [(name, events.filter(pc.equal(events[SOURCE], name))) for name in names]
    elif spec.source is not None:
        parts.append((spec.source, events))
    for name, rows in parts:
        report.rows_by_source[name] = report.rows_by_source.get(name, 0) + rows.num_rows
        if spec.judges_lateness:
            late = int(late_rows(rows, routed).sum())
            report.behind_watermark[name] = report.behind_watermark.get(name, 0) + late
        newest = pc.max(rows[EVENT_TIME]).as_py() if routed.event_time else None
        if newest is not None:
            report.max_event_ms[name] = max(newest, report.max_event_ms.get(name, newest))


def late_rows(events: pa.Table, routed: RoutedLayout) -> Flags:
    """Whether each row is late; none is without event time."""
    if not routed.event_time:
        return np.zeros(events.num_rows, bool)
    times, before = (pc.fill_null(events[name], MIN_TIMESTAMP).to_numpy() for name in (EVENT_TIME, WATERMARK))
    return late_among(times, before)


def late_tags(events: pa.Table, spec: SubtaskSpec) -> dict[int, OutputTag | None]:
    """The late rows that do not reach the function, by index: the tag that each goes to; None where nobody reads it."""
    if not spec.late_to:
        return {}
    tags = {output.name: output.tag for output in spec.outputs}
    rows = np.flatnonzero(late_rows(events, spec.routed)).tolist()
    names = (
        events[SOURCE].take(pa.array(rows, pa.int64())).to_pylist()
        if spec.routed.sources
        else [spec.source] * len(rows)
    )
    return {
        row: tags.get(spec.late_to[name])
        for row, name in zip(rows, names, strict=True)
        if name in spec.late_to
    }


def with_late(values: list[Any], tags: Mapping[int, OutputTag | None], routed: RoutedLayout) -> list[Any]:
    """Elements as ``values_of`` gives them, with a ``LateElement`` in place of each that passes by the function."""
    paired = len(_in_order(routed)) > 1
    for row, tag in tags.items():
        values[row] = LateElement(tag, values[row][1] if paired else values[row])
    return values


def _in_order(routed: RoutedLayout) -> list[int]:
    """The inputs whose rows are in one order: all but a broadcast one that comes first."""
    return [at for at in range(len(routed.inputs)) if at != routed.broadcast]


def _decoded(events: pa.Table, one: InputLayout) -> list[Any]:
    values = elements(events, one.columns, names=one.names, scalar=one.scalar, declared=one.declared)
    return with_kinds_of(events, values)
