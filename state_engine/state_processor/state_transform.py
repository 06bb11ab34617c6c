"""``StateTransform``: changes keyed state without any input: as DataFrame code says, or by taking keys away.

    read    the entries at the head, nothing hidden (``stored_entries``)
    change  what a function, a filter or a list of keys makes of them (``state_changes``)
    write   the net changes, in files like those of a micro-batch (``entry_writer``)
    commit  one row of kind ``transform`` upon that very head, else ``StaleParentError``

Sources and sinks stay where they are. Timers of keys that have no state left go with them. Plays the part of
``SavepointWriter.fromExistingSavepoint`` in Flink's State Processor API, without a savepoint and without a new job.
Decision 0014.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_arrays import key_groups_in
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.job.job_tables import JobTables
from state_engine.operations.head_operations import HeadOperations
from state_engine.queries.spark_sql import plain_message
from state_engine.queries.state_changes import (
    ADDED,
    CHANGED,
    COUNTS,
    DELETED,
    KIND,
    SAME,
    difference,
    keys_without_state,
    marked,
    taken_away,
)
from state_engine.queries.state_rows import KEY, KEY_HASH, STATE, StateForm, key_schema_of, state_rows
from state_engine.queries.stored_columns import spark_data_type
from state_engine.queries.stored_entries import (
    form_of,
    key_schema,
    keys_frame,
    operator_of,
    state_view,
    stored_entries,
)
from state_engine.spark.engine_session import own_frame
from state_engine.spark.frame_code import frame_code
from state_engine.spark.shipped_code import ready_for_frames
from state_engine.state_processor.entry_writer import (
    Counts,
    EntryWriter,
    OperatorEntries,
    WrittenEntries,
    check_given,
)

Keys = DataFrame | Iterable[Any]
"""A DataFrame with the key columns, or keys: as functions see them, or dicts by column."""
Map = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class StateChange:
    """What a transform did to one state, in entries: values, lists, or entries of maps.

    Attributes:
        before, after: of all that was looked at: of keys that are taken away, only what their key groups hold.
    """

    operator: str
    state: str
    before: int
    after: int
    added: int
    changed: int
    deleted: int


@dataclass(frozen=True)
class TransformReport:
    """What a transform did, or in a dry run would do.

    Attributes:
        job: name.
        parent_id: the head whose state was transformed.
        states: those that were looked at.
        committed_id: the row; None in a dry run, and where nothing changed.
    """

    job: str
    parent_id: int
    states: list[StateChange]
    committed_id: int | None = None

    @property
    def changes(self) -> int:
        """Entries that are added, changed or deleted."""
        return sum(s.added + s.changed + s.deleted for s in self.states)


@dataclass(frozen=True)
class StateTransform:
    """One transform of one job."""

    job: str
    tables: JobTables
    operations: HeadOperations
    spark: SparkSession
    dry_run: bool = False

    def one_state(
        self, uid: str, state: str, *, map: Map | None = None, filter: Column | str | None = None
    ) -> TransformReport:
        """Transform one state by DataFrame code, or keep some of its entries."""
        rows, path = self._path()
        operator, what = self._operator(path, uid), f"job '{self.job}', operator '{uid}', state '{state}'"
        form, key = form_of(operator, state, what=what), key_schema(operator)
        entries = self._entries(path, uid)
        old = entries.where(F.col(STATE) == form.name)
        view = state_view(entries, form, key)
        if map is not None:
            ready_for_frames(self.spark, [map])
            with frame_code():
                mapped = map(view)
            if isinstance(mapped, DataFrame):
                mapped = own_frame(mapped, self.spark, what=f"{what}: map")
            if not isinstance(mapped, DataFrame) or set(mapped.columns) != set(view.columns):
                got = mapped.columns if isinstance(mapped, DataFrame) else repr(mapped)
                raise ConfigurationError(
                    f"{what}: map is to give a DataFrame with the columns {view.columns}, not {got}"
                )
        else:
            assert filter is not None
            try:
                mapped = view.where(filter)
            except PySparkException as error:
                raise ConfigurationError(
                    f"{what}: filter {filter!r} does not fit the columns {view.columns}: {plain_message(error)}"
                ) from error
        self._check_key(mapped, operator, what)
        made = state_rows(mapped, form, key.names, clock_ms=path[-1].clock_ms, what=what)
        if key.stored:
            made = made.withColumn(KEY, F.col(KEY).cast(spark_data_type(key.storage)))
        changes = difference(old, made, form)
        if any(s.name == TIMERS for s in operator.states):
            others = entries.where(F.col(STATE) != form.name)
            lost = keys_without_state(changes, others)
            timers, gone = marked(entries.where(F.col(STATE) == TIMERS), lost)
            changes = changes.unionByName(
                taken_away(timers, [_timers(operator)], gone), allowMissingColumns=True
            )
        return self._carry_out(rows, path, {uid: changes})

    def without_keys(self, keys: Mapping[str, Keys], state: str | None = None) -> TransformReport:
        """Take keys out of operators: all of their states and timers, or one state."""
        rows, path = self._path()
        changes = {}
        for uid, given in keys.items():
            operator, what = self._operator(path, uid), f"job '{self.job}', operator '{uid}'"
            stored = None if state is None else form_of(operator, state, what=what).name
            wanted = keys_frame(self.spark, given, key_schema(operator), what=what).localCheckpoint()
            hashes = wanted.select(KEY_HASH).toArrow()[KEY_HASH].to_numpy()
            groups = key_groups_in(hashes, operator.max_parallelism)
            entries, named = marked(self._entries(path, uid, groups), wanted)
            forms = [StateForm.of(s) for s in operator.states]
            if stored is None:
                changes[uid] = taken_away(entries, forms, named)
                continue
            gone = named & (F.col(STATE) == stored)
            if any(f.schema.name == TIMERS for f in forms):
                lost = keys_without_state(taken_away(entries, forms, gone), None)
                held, of_lost = marked(entries.withColumn("_named", gone).drop("_gone"), lost)
                entries, gone = held, F.col("_named") | (of_lost & (F.col(STATE) == TIMERS))
            changes[uid] = taken_away(entries, forms, gone)
        return self._carry_out(rows, path, changes)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _path(self) -> tuple[History, list[CheckpointRow]]:
        history, head = self.operations.published_head()
        return history, history.path(head.checkpoint_id)

    def _operator(self, path: list[CheckpointRow], uid: str) -> OperatorCheckpoint:
        return operator_of(path[-1], uid, job=self.job)

    def _entries(
        self, path: list[CheckpointRow], uid: str, groups: Collection[int] | None = None
    ) -> DataFrame:
        return stored_entries(self.spark, self.tables.layout, path, uid, key_groups=groups)

    def _check_key(self, mapped: DataFrame, operator: OperatorCheckpoint, what: str) -> None:
        """Whether keys are still of the stored types."""
        known = key_schema(operator)
        made = replace(key_schema_of(mapped, known.names, what=what), stored=known.stored)
        if str(made) != operator.key_schema:
            raise ConfigurationError(
                f"{what}: its key is stored as {operator.key_schema}, and made is {made}: cast it"
            )

    def _carry_out(
        self, history: History, path: list[CheckpointRow], changes: Mapping[str, DataFrame]
    ) -> TransformReport:
        head, writer = path[-1], EntryWriter(self.spark, self.tables.layout, self.dry_run)
        written = [
            writer.write(
                self._produced(path, uid, frame),
                what=f"job '{self.job}', operator '{uid}'",
                doing=f"transform of checkpoint {head.checkpoint_id}",
            )
            for uid, frame in changes.items()
        ]
        report = TransformReport(self.job, head.checkpoint_id, [c for one in written for c in _counted(one)])
        if self.dry_run or not report.changes:
            return report
        changed = [one for one in written if one.base_files or one.changelog]
        row = writer.commit(
            changed, operations=self.operations, tables=self.tables, history=history, head=head
        )
        return replace(report, committed_id=row.checkpoint_id)

    def _produced(self, path: list[CheckpointRow], uid: str, changes: DataFrame) -> OperatorEntries:
        operator = self._operator(path, uid)
        return OperatorEntries(operator, changes, partial(_kinds, tuple(operator.states)))


def _kinds(states: Sequence[StateSchema], table: pa.Table) -> Counts:
    """In a task: what becomes of the entries of whole key groups."""
    check_given(states, table)
    kinds = table.filter(table[COUNTS]).group_by([STATE, KIND]).aggregate([([], "count_all")])
    return Counter({(row[STATE], row[KIND]): row["count_all"] for row in kinds.to_pylist()})


def _timers(operator: OperatorCheckpoint) -> StateForm:
    return next(StateForm.of(s) for s in operator.states if s.name == TIMERS)


def _counted(written: WrittenEntries) -> list[StateChange]:
    changes, uid = [], written.entries.operator.uid
    for state, n in sorted(written.counts.items()):
        before = n[SAME] + n[CHANGED] + n[DELETED]
        changes.append(
            StateChange(uid, state, before, before + n[ADDED] - n[DELETED], n[ADDED], n[CHANGED], n[DELETED])
        )
    return changes
