"""What checkpoints say, as tables for SQL: one row a checkpoint, a source, a sink or a rule of it; and states.

The rows of the ``checkpoints`` table are deep; these are flat, with times as timestamps and numbers summed. Flink shows
the like in its web interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.entry_counts import entry_counts
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.checkpoints.time_travel import LAST_MS, moment
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.type_text import shown_storage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", "UTC")

_Columns = Mapping[str, tuple[pa.DataType, Callable[[Any], Any]]]
"""By name, the type of a column, and its value of a record."""

_CHECKPOINTS: _Columns = {
    "id": (pa.int64(), lambda row: row.checkpoint_id),
    "parent": (pa.int64(), lambda row: row.parent_id),
    "branch": (pa.string(), lambda row: row.branch),
    "kind": (pa.string(), lambda row: shown_kind(row)),
    "created_at": (_TIME, lambda row: moment(row.created_at)),
    "clock": (_TIME, lambda row: instant(row.clock_ms)),
    "watermark": (_TIME, lambda row: instant(row.watermark_ms)),
    "rows_in": (pa.int64(), lambda row: row.rows_in),
    "rows_refused": (pa.int64(), lambda row: row.rows_refused),
    "rows_out": (pa.int64(), lambda row: sum(sink.rows for sink in row.sinks)),
    "changed_entries": (pa.int64(), lambda row: sum(o.changed_entries for o in row.operators)),
    "duration_ms": (pa.int64(), lambda row: sum(row.durations_ms.values())),
    "requested_by": (pa.string(), lambda row: row.requested_by),
    "code_version": (pa.string(), lambda row: row.code_version),
}
_SOURCES: _Columns = {
    "source": (pa.string(), lambda source: source.name),
    "position_from": (pa.string(), lambda source: source.position_from),
    "position_to": (pa.string(), lambda source: source.position_to),
    "rows": (pa.int64(), lambda source: source.rows),
    "watermark": (_TIME, lambda source: instant(source.watermark_ms)),
    "behind_watermark": (pa.int64(), lambda source: source.behind_watermark),
}
_SINKS: _Columns = {
    "sink": (pa.string(), lambda sink: sink.name),
    "kind": (pa.string(), lambda sink: sink.kind),
    "path": (pa.string(), lambda sink: sink.path),
    "rows_staged": (pa.int64(), lambda sink: sink.rows),
    "rows_withdrawn": (pa.int64(), lambda sink: sum(f.rows for f in sink.withdrawn)),
    "files_staged": (pa.int64(), lambda sink: len(sink.files)),
    "files_withdrawn": (pa.int64(), lambda sink: len(sink.withdrawn)),
    "bytes_staged": (pa.int64(), lambda sink: sum(f.bytes for f in sink.files)),
}
_EXPECTATIONS: _Columns = {
    "expectation": (pa.string(), lambda one: one.name),
    "rule": (pa.string(), lambda one: one.rule),
    "otherwise": (pa.string(), lambda one: one.otherwise),
    "rows": (pa.int64(), lambda one: one.rows),
    "broken": (pa.int64(), lambda one: one.broken),
}
_GATES: _Columns = {
    "gate": (pa.string(), lambda one: one.name),
    "bound": (pa.string(), lambda one: one.bound),
    "otherwise": (pa.string(), lambda one: one.otherwise),
    "broken": (pa.string(), lambda one: one.broken or None),
}
_ID, _ON_PATH = ("checkpoint_id", pa.int64()), ("on_path", pa.bool_())


def _types(columns: _Columns) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name, (kind, _) in columns.items()]


CHECKPOINTS = pa.schema([*_types(_CHECKPOINTS), _ON_PATH, ("retired", pa.bool_())])
SOURCES = pa.schema([_ID, *_types(_SOURCES), _ON_PATH])
SINKS = pa.schema([_ID, *_types(_SINKS), _ON_PATH])
GATES = pa.schema([_ID, *_types(_GATES), ("branch", pa.string()), _ON_PATH])
EXPECTATIONS = pa.schema([_ID, *_types(_EXPECTATIONS), _ON_PATH])
STATES = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("kind", pa.string()),
        ("type", pa.string()),
        ("entries", pa.int64()),
        ("asked_for", pa.string()),
    ]
)
KEY_GROUPS = pa.schema(
    [
        ("operator", pa.string()),
        ("key_group", pa.int64()),
        ("subtask", pa.int64()),
        ("entries", pa.int64()),
        ("bytes", pa.int64()),
        ("skew", pa.float64()),
    ]
)


def checkpoints_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    """All checkpoints of all branches; ``on_path`` marks those on the given path."""
    on_path, expired = _ids(path), history.expired
    records = [
        (*_values(_CHECKPOINTS, row), i in on_path, i in expired) for i, row in sorted(history.items())
    ]
    return _table(records, CHECKPOINTS)


def sources_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    """What every checkpoint consumed of every source; positions are JSON."""
    return _flat(history, path, _SOURCES, SOURCES, lambda row: row.sources)


def sinks_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    return _flat(history, path, _SINKS, SINKS, lambda row: row.sinks)


def expectations_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    return _flat(history, path, _EXPECTATIONS, EXPECTATIONS, lambda row: row.expectations)


def gates_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    """What every gate said of every checkpoint, of any branch; ``broken`` is null where it was met."""
    on_path, rows = _ids(path), sorted(history.items())
    records = [(i, *_values(_GATES, one), row.branch, i in on_path) for i, row in rows for one in row.gates]
    return _table(records, GATES)


def _flat(
    history: History,
    path: Sequence[CheckpointRow],
    columns: _Columns,
    schema: pa.Schema,
    parts: Callable[[CheckpointRow], Sequence[Any]],
) -> pa.Table:
    on_path, rows = _ids(path), sorted(history.items())
    records = [(i, *_values(columns, one), i in on_path) for i, row in rows for one in parts(row)]
    return _table(records, schema)


def states_table(path: Sequence[CheckpointRow]) -> pa.Table:
    """All states at the end of a path, and whether the code asks for them; timers are no state of the code's."""
    return _table([record for row in path[-1:] for record in (*_keyed(path, row), *_own(row))], STATES)


def _keyed(path: Sequence[CheckpointRow], row: CheckpointRow) -> Iterator[tuple[Any, ...]]:
    for operator in row.operators:
        counts = entry_counts(path, operator.uid)
        for state in operator.states:
            count = counts.get(state.name)
            entries = count.entries if count and count.checkpoint_id == row.checkpoint_id else None
            if state.name != TIMERS:
                asked = _asked_for(row, operator.uid, state.name, operator.asked_late)
                yield (
                    operator.uid,
                    state.name,
                    state.kind,
                    ddl_text(shown_storage(state.type)),
                    entries,
                    asked,
                )


def _own(row: CheckpointRow) -> Iterator[tuple[Any, ...]]:
    for ref in row.operator_state:
        for state in ref.states:
            elements = sum(part.elements for part in state.parts)
            asked = _asked_for(row, ref.operator, state.name, ref.asked_late)
            yield ref.operator, state.name, state.scheme, ddl_text(shown_storage(state.type)), elements, asked


def _asked_for(row: CheckpointRow, uid: str, state: str, asked_late: Sequence[str]) -> str:
    if state in row.kept_states.get(uid, ()):
        return "kept"
    return "later" if state in asked_late else "open"


def instant(at_ms: int | None) -> datetime | None:
    """A recorded time; the end of the year 9999 for a stream that has ended, None for one that has not begun."""
    if at_ms is None or at_ms < -62_135_596_800_000:
        return None
    return _EPOCH + timedelta(milliseconds=min(at_ms, LAST_MS))


def _values(columns: _Columns, record: object) -> Iterator[Any]:
    return (value(record) for _, value in columns.values())


def _ids(path: Sequence[CheckpointRow]) -> set[int]:
    return {row.checkpoint_id for row in path}


def _table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
