"""What happened to one key, checkpoint by checkpoint: its inputs, its state before and after, its timers, its outputs.

    inputs   the rows of the recorded slices that have the key, read from the sources again
    state    the entries of the key as of a checkpoint and as of the one before it; only files of its key group are read
    timers   those that came and went
    outputs  rows that were staged for sinks and have the columns of the key with its values

What cannot be known is said, and the rest is shown: a source that lost a slice, files of expired checkpoints, a sink
without the columns. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint, StagedSink
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.time_travel import DeclaredState, declared_states
from state_engine.core.errors import ConfigurationError, StatelakeError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.types.beyond_python import python_rows
from state_engine.core.types.ddl import quoted
from state_engine.job.graph import declared_key
from state_engine.publishing.output_reader import OutputReader
from state_engine.queries.history_views import instant
from state_engine.queries.spark_sql import plain_message
from state_engine.queries.state_rows import KEY, KEY_HASH
from state_engine.queries.state_table import key_columns, read_state_of_key
from state_engine.queries.stored_columns import spark_data_type
from state_engine.queries.stored_entries import key_schema, keys_frame
from state_engine.replay.key_inputs import KeyInputs, RowsOfKey
from state_engine.replay.key_recording import keyed_like
from state_engine.spark.key_columns import key_hash_column
from state_engine.state_tables.states import published_in
from state_engine.storage.layout import JobLayout


@dataclass(frozen=True)
class StateOfKey:
    """What a checkpoint did to one state of the key.

    Attributes:
        operator, state: names.
        before, after: the value; a list; pairs of key and value of a map; None where there is nothing.
        tables: names of the published tables that show the state.
    """

    operator: str
    state: str
    before: Any
    after: Any
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimersOfKey:
    """What a checkpoint did to the timers of the key, each as its domain and time.

    Attributes:
        operator: its uid.
        set: that there were not before.
        gone: that fired or were deleted.
    """

    operator: str
    set: list[str]
    gone: list[str]


@dataclass(frozen=True)
class KeyEvent:
    """What happened to the key in one checkpoint.

    Attributes:
        checkpoint_id, kind, created_at, partition: of the checkpoint.
        inputs, outputs: rows of the key.
        states: those that changed.
        timers: by operator, where any came or went.
        problems: what is not known of it, and why.
    """

    checkpoint_id: int
    kind: str
    created_at: datetime
    partition: str
    inputs: list[RowsOfKey] = field(default_factory=list)
    states: list[StateOfKey] = field(default_factory=list)
    timers: list[TimersOfKey] = field(default_factory=list)
    outputs: list[RowsOfKey] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known to have happened."""
        known = any(one.count for one in (*self.inputs, *self.outputs))
        return not (known or self.states or self.timers or self.problems)


@dataclass(frozen=True)
class KeyHistory:
    """What happened to one key.

    Attributes:
        job: name.
        keys: the key as each operator that has it shows it, by uid.
        events: of checkpoints on the path of the head, oldest first; those in which nothing happened are left out.
        looked_at: ids of all checkpoints that were looked at.
        notes: what is not looked at, and why.
    """

    job: str
    keys: dict[str, dict[str, Any]]
    events: list[KeyEvent]
    looked_at: list[int]
    notes: list[str]


@dataclass(frozen=True)
class _Key:
    uid: str
    schema: KeySchema
    stored: Mapping[str, Any]
    hash: int

    @property
    def shown(self) -> dict[str, Any]:
        stored = pa.array([self.stored], self.schema.storage)
        return {
            n: c[0].as_py()
            for n, c in zip(self.schema.names, key_columns(stored, self.schema.shown), strict=True)
        }


_CHANGE_STATE = frozenset(
    (CheckpointKind.CHECKPOINT, CheckpointKind.TRANSFORM, CheckpointKind.BOOTSTRAP, CheckpointKind.IMPORT)
)
OnEvent = Callable[[CheckpointRow], object]


@dataclass(frozen=True)
class KeyExplainer:
    """Explains keys of one job.

    Attributes:
        inputs: reads recorded slices; None where the job's code is not known.
    """

    spark: SparkSession
    layout: JobLayout
    history: History
    outputs: OutputReader
    inputs: KeyInputs | None
    limit: int

    def explain(
        self,
        key: Any,
        *,
        operator: str | None,
        first: int | None,
        last: int | None,
        newest: int,
        on_progress: OnEvent | None,
    ) -> KeyHistory:
        path = self.history.main_path
        chosen = self._chosen(path, first, last, newest)
        keys = self._keys(path, key, operator)
        notes = [] if self.inputs is not None else ["inputs: the job's code is not known here"]
        for one in keys:
            notes += self.inputs.notes(one.uid) if self.inputs is not None else []
        events = []
        for row in chosen:
            if on_progress is not None:
                on_progress(row)
            event = self._event(path[: path.index(row) + 1], keys)
            if not event.is_empty:
                events.append(event)
        shown = {one.uid: self._as_declared(one) for one in keys}
        return KeyHistory(self.layout.job, shown, events, [r.checkpoint_id for r in chosen], notes)

    def _as_declared(self, key: _Key) -> dict[str, Any]:
        """A key as the job declares it, where its code is known: a time of day is stored as a number."""
        operator = self.inputs.job.operators.get(key.uid) if self.inputs is not None else None
        declared = declared_key(operator) if operator is not None else None
        return key.shown if declared is None else declared.shown(key.shown)

    # -- what to look at -------------------------------------------------------------------------------------------

    def _chosen(
        self, path: Sequence[CheckpointRow], first: int | None, last: int | None, newest: int
    ) -> list[CheckpointRow]:
        known = [row.checkpoint_id for row in path]
        for asked in (first, last):
            if asked is not None and asked not in known:
                raise ConfigurationError(
                    f"job '{self.layout.job}': checkpoint {asked} is not on the path of the head, which is {known}"
                )
        begin = 0 if first is None else known.index(first)
        end = len(path) if last is None else known.index(last) + 1
        changing = [row for row in path[begin:end] if row.kind in _CHANGE_STATE]
        return changing if first is not None else changing[-newest:]

    def _keys(self, path: Sequence[CheckpointRow], key: Any, only: str | None) -> list[_Key]:
        newest: dict[str, OperatorCheckpoint] = {}
        for row in path:
            newest |= {o.uid: o for o in row.operators}
        schemas = {uid: schema for uid, o in sorted(newest.items()) if (schema := key_schema(o)).names}
        fitting = keyed_like(key, schemas, only, job=self.layout.job, known="operators and their keys")
        return [self._stored(newest[uid], key) for uid in fitting]

    def _stored(self, operator: OperatorCheckpoint, key: Any) -> _Key:
        what = f"job '{self.layout.job}', operator '{operator.uid}'"
        schema = key_schema(operator)
        (row,) = python_rows(keys_frame(self.spark, [key], schema, what=what).toArrow())
        return _Key(operator.uid, schema, row[KEY], row[KEY_HASH])

    # -- one checkpoint --------------------------------------------------------------------------------------------

    def _event(self, path: Sequence[CheckpointRow], keys: Sequence[_Key]) -> KeyEvent:
        row = path[-1]
        event = KeyEvent(row.checkpoint_id, str(row.kind), row.created_at, row.partition)
        for key in keys:
            self._add_states(event, path, key)
            if row.kind.is_micro_batch and self.inputs is not None:
                event.inputs.extend(self.inputs.rows(path, key.uid, key.hash, limit=self.limit))
        if row.source(LETTERS) is not None:
            event.problems.append(
                "inputs: the micro-batch sent dead letters again; they are not read again here"
            )
        for sink in row.sinks:
            event.outputs.extend(self._outputs(sink, keys))
        return event

    def _add_states(self, event: KeyEvent, path: Sequence[CheckpointRow], key: _Key) -> None:
        try:
            before, after = (self._values(part, key) for part in (path[:-1], path))
        except StatelakeError as error:
            event.problems.append(f"state of {key.uid}: {error}")
            return
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if repr(old) == repr(new):  # NaN equals itself here
                continue
            if name == TIMERS:
                there, then = ([_timer(one["key"]) for one in side or []] for side in (old, new))
                event.timers.append(
                    TimersOfKey(key.uid, sorted(set(then) - set(there)), sorted(set(there) - set(then)))
                )
            else:
                published = published_in(path[-1])
                shown = tuple(one.name for one in published if (one.operator, one.state) == (key.uid, name))
                event.states.append(StateOfKey(key.uid, name, old, new, shown))

    def _values(self, path: Sequence[CheckpointRow], key: _Key) -> dict[str, Any]:
        """The states of the key at the end of a path, by name; those without anything are absent."""
        values: dict[str, Any] = {}
        for declared in declared_states(path):
            if declared.operator.uid == key.uid and not set(key.stored) - set(declared.key_type.names):
                rows = python_rows(read_state_of_key(self.layout, path, declared, key.stored, key.hash))
                if rows:
                    values[declared.schema.name] = _value(declared, rows)
        return values

    def _outputs(self, sink: StagedSink, keys: Sequence[_Key]) -> Iterator[RowsOfKey]:
        if not sink.files:
            return
        try:
            frame = self.outputs.read(sink, sink.files)
            fitting = next((k for k in keys if set(k.schema.names) <= set(frame.columns)), None)
            if fitting is None:
                columns = ", ".join(sorted({name for k in keys for name in k.schema.names}))
                yield RowsOfKey("", sink.name, 0, [], f"it has no columns {columns}")
                return
            held = frame.where(_has(fitting))
            rows = python_rows(held.limit(self.limit).toArrow())
            count = held.count() if len(rows) == self.limit else len(rows)
            yield RowsOfKey("", sink.name, count, rows)
        except (StatelakeError, PySparkException) as error:
            yield RowsOfKey("", sink.name, 0, [], _message(error))


def _value(declared: DeclaredState, rows: list[dict[str, Any]]) -> Any:
    if declared.shape == "map":
        pairs = [{"key": row["map_key"], "value": row["value"]} for row in rows]
        return sorted(pairs, key=repr)
    return rows[0]["value"]


def _timer(key: Mapping[str, Any]) -> str:
    """A timer as text.

    Example:
        >>> _timer({"time": 1_772_368_200_000, "domain": "event"})
        'event time 2026-03-01T12:30:00+00:00'
    """
    at = instant(key["time"])
    return (
        f"{key['domain']} time {key['time']} ms" if at is None else f"{key['domain']} time {at.isoformat()}"
    )


def _has(key: _Key) -> Column:
    """Whether a row has the values of a key in its columns."""
    types = map(spark_data_type, key.schema.types)
    values = [(F.col(quoted(n)).try_cast(t), t) for n, t in zip(key.schema.names, types, strict=True)]
    return key_hash_column(values) == F.lit(key.hash)


def _message(error: Exception) -> str:
    return plain_message(error) if isinstance(error, PySparkException) else str(error)
