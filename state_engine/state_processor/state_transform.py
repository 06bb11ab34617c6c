"""``StateTransform``: changes keyed state without any input: as DataFrame code says, or by taking keys away.

    read    the entries at the head, nothing hidden (``stored_entries``)
    change  what a function, a filter or a list of keys makes of them (``state_changes``)
    write   the net changes as files of a changelog, like those of a micro-batch, in one Spark job an operator
    commit  one row of kind ``transform`` upon that very head, else ``StaleParentError``

Sources and sinks stay where they are. Timers of keys that have no state left go with them. Plays the part of
``SavepointWriter.fromExistingSavepoint`` in Flink's State Processor API, without a savepoint and without a new job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.resumption import TRANSFORM
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import ConfigurationError
from state_engine.core.time.timers import TIMERS
from state_engine.job.job_tables import JobTables
from state_engine.operations.head_moves import Operations
from state_engine.queries.state_changes import (
    ADDED,
    CHANGED,
    DELETED,
    SAME,
    difference,
    keys_without_state,
    marked,
    taken_away,
)
from state_engine.queries.state_rows import KEY, KEY_HASH, STATE, StateForm, key_schema_of, state_rows
from state_engine.queries.stored_columns import spark_data_type
from state_engine.queries.stored_entries import form_of, key_schema, keys_frame, state_view, stored_entries
from state_engine.spark.shipped_code import ready_for_frames
from state_engine.state_processor.change_writer import ChangeSpec, WrittenChanges, write_changes
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import state_column

Keys = DataFrame | Iterable[Any]
"""A DataFrame with the key columns, or keys: as functions see them, or dicts by column."""
Map = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class StateChange:
    """What a transform did to one state, in entries: values, lists, or entries of maps.

    Attributes:
        operator, state: names; timers are the state ``_timers``.
        before, after: of all that was looked at: of keys that are taken away, only what their key groups hold.
        added, changed, deleted: of these.
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
    """One transform of one job.

    Attributes:
        job: name.
        tables: the job's tables.
        kernel: commits.
        operations: commits the row.
        spark: session.
        dry_run: only tell what would change.
    """

    job: str
    tables: JobTables
    kernel: DeltaKernel
    operations: Operations
    spark: SparkSession
    dry_run: bool = False

    @cached_property
    def attempt(self) -> WriteAttempt:
        """Names the row and the files; asked for when the first is written."""
        return self.tables.clock.attempt()

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
            found = map(view)
            if not isinstance(found, DataFrame) or set(found.columns) != set(view.columns):
                got = found.columns if isinstance(found, DataFrame) else repr(found)
                raise ConfigurationError(
                    f"{what}: map is to give a DataFrame with the columns {view.columns}, not {got}"
                )
        else:
            assert filter is not None
            found = view.where(filter)
        self._check_key(found, operator, what)
        made = state_rows(found, form, key.names, clock_ms=path[-1].clock_ms, what=what)
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
            groups = set(np.mod(hashes, operator.max_parallelism).tolist())
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

    def _path(self) -> tuple[lineage.Rows, list[CheckpointRow]]:
        rows, head = self.operations.settled()
        return rows, lineage.path(rows, head.checkpoint_id)

    def _operator(self, path: list[CheckpointRow], uid: str) -> OperatorCheckpoint:
        found = path[-1].operator(uid)
        if found is None:
            known = [o.uid for o in path[-1].operators]
            raise ConfigurationError(
                f"job '{self.job}': there is no keyed state of '{uid}'; there is of {known}"
            )
        return found

    def _entries(
        self, path: list[CheckpointRow], uid: str, groups: Collection[int] | None = None
    ) -> DataFrame:
        return stored_entries(self.spark, self.tables.layout, path, uid, key_groups=groups)

    def _check_key(self, found: DataFrame, operator: OperatorCheckpoint, what: str) -> None:
        """Whether keys are still of the stored types."""
        known = key_schema(operator)
        made = replace(key_schema_of(found, known.names, what=what), stored=known.stored)
        if str(made) != operator.key_schema:
            raise ConfigurationError(
                f"{what}: its key is stored as {operator.key_schema}, and made is {made}: cast it"
            )

    def _carry_out(
        self, rows: lineage.Rows, path: list[CheckpointRow], changes: Mapping[str, DataFrame]
    ) -> TransformReport:
        head, written = path[-1], {}
        for uid, frame in changes.items():
            operator = self._operator(path, uid)
            write_id = "" if self.dry_run else self.attempt.write_id
            spec = ChangeSpec(self.tables.layout.changelog(uid), write_id, operator, self.dry_run)
            what = f"job '{self.job}', operator '{uid}': transform of checkpoint {head.checkpoint_id}"
            written[uid] = write_changes(self.spark, frame, spec, what=what)
        report = TransformReport(
            self.job, head.checkpoint_id, [c for uid, w in written.items() for c in _counted(uid, w)]
        )
        if self.dry_run or not report.changes:
            return report
        made = {uid: self._changed(path, uid, one) for uid, one in written.items() if one.files}
        operators = [made.get(o.uid) for o in head.operators]

        def change(row: CheckpointRow) -> CheckpointRow:
            kept = zip(row.operators, operators, strict=True)
            return replace(row, operators=[old if new is None else new for old, new in kept])

        row = self.operations.commit(TRANSFORM, head, rows, change, attempt=self.attempt)
        return replace(report, committed_id=row.checkpoint_id)

    def _changed(self, path: list[CheckpointRow], uid: str, written: WrittenChanges) -> OperatorCheckpoint:
        """List the files of an operator's changes, and make its part of the row."""
        operator = self._operator(path, uid)
        self.tables.ensure_changelog(uid, operator.key_schema, operator.states)
        self.kernel.append(
            self.tables.layout.changelog(uid), written.files, partition={"write_id": self.attempt.write_id}
        )
        changed = replace(
            operator,
            changelog=written.files,
            changed_entries=sum(f.rows for f in written.files),
            base_files=[],
        )
        if not written.counts.get(TIMERS, Counter())[DELETED]:
            return changed
        row = replace(
            path[-1],
            checkpoint_id=path[-1].checkpoint_id + 1,
            write_id=self.attempt.write_id,
            operators=[changed],
        )
        return replace(changed, next_timers_ms=self._next_timers([*path, row], uid))

    def _next_timers(self, path: list[CheckpointRow], uid: str) -> dict[str, int]:
        """Time of the first timer that is left, by domain."""
        timers = stored_entries(self.spark, self.tables.layout, path, uid, states=[TIMERS])
        timer = F.col(state_column(TIMERS))["key"]
        first = timers.where(F.col(STATE) == TIMERS).groupBy(timer["domain"].alias("domain"))
        return {r["domain"]: r["at"] for r in first.agg(F.min(timer["time"]).alias("at")).collect()}


def _timers(operator: OperatorCheckpoint) -> StateForm:
    return next(StateForm.of(s) for s in operator.states if s.name == TIMERS)


def _counted(uid: str, written: WrittenChanges) -> list[StateChange]:
    found = []
    for state, n in sorted(written.counts.items()):
        before = n[SAME] + n[CHANGED] + n[DELETED]
        found.append(
            StateChange(uid, state, before, before + n[ADDED] - n[DELETED], n[ADDED], n[CHANGED], n[DELETED])
        )
    return found
