"""``EntryWriter``: the one way in which keyed state is written without input, whoever produced the entries.

    produce  bootstrap, transform and change of key type give rows of an operator (``OperatorEntries``)
    place    Catalyst sends each row to the task that holds its key group
    check    a task looks at whole key groups: the producer refuses or counts rows, then values must be of their types
    write    all entries as a base, one sorted file a key group; or changes, in files like those of a micro-batch
    list     the files go into the operator's table, and its part of the row of ``checkpoints`` says where they lie

The producer commits that row. A crash before it leaves files that nobody lists. Plays the part of ``SavepointWriter``
in Flink's State Processor API. Decision 0030.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import (
    BaseFile,
    BaseRange,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.updates import SetOperators
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import InvalidKeyError, ValueTypeError
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.type_text import type_from_text
from state_engine.job.job_tables import JobTables
from state_engine.operations.head_operations import HeadOperations
from state_engine.queries.state_changes import SAME
from state_engine.queries.state_rows import KEY, KEY_HASH, OP, PLACE, STATE, WHY
from state_engine.queries.stored_entries import stored_entries
from state_engine.spark.key_columns import key_group_column, subtask_column
from state_engine.spark.tasks import FramePartitions, Report, TaskAttempt, run, written_files
from state_engine.storage.layout import JobLayout, changelog_schema, state_column
from state_engine.storage.state.base import NOTHING_EXPIRES_MS, BaseSpec, write_entries
from state_engine.storage.state.changelog_write import in_file_order, write_changes
from state_engine.storage.stores.store_clock import StoreClock

GROUP = "key_group"
_TASK = "_task"
_ROWS_AT_ONCE = 200_000
"""Rows that a task holds in memory, where no single key group has more."""
_FILES_OF_A_TASK = 10_000

Counts = Counter[tuple[str, str]]
"""Entries by the stored name of their state and by kind; what is no entry has an empty name."""
Check = Callable[[pa.Table], Counts]
"""Counts the rows of whole key groups; raises InvalidKeyError, ValueTypeError or ConfigurationError to refuse them."""


@dataclass(frozen=True)
class OperatorEntries:
    """What a producer gives of one operator.

    Attributes:
        operator: as the row to commit records it, but for the files that are still to be written.
        rows: ``key``, ``key_hash``, ``state``, ``op``, ``updated_at``, ``why`` a row is refused, a column for each
            state, and what ``check`` needs; of all entries also ``place``, their order.
        is_base: whether the rows are all entries of the operator; else they are changes of those at the head.
        expired_at_ms: clock by which expired entries are left out of a base; by default all stay.
    """

    operator: OperatorCheckpoint
    rows: DataFrame
    check: Check
    is_base: bool = False
    expired_at_ms: int = NOTHING_EXPIRES_MS

    @property
    def states(self) -> list[StateSchema]:
        """The states of which there may be rows."""
        columns = set(self.rows.columns)
        return [s for s in self.operator.states if state_column(s.column_name) in columns]

    @property
    def tasks(self) -> int:
        """Number of tasks that write: files of changes hold key groups of one subtask each."""
        if not self.is_base:
            return self.operator.parallelism
        return min(self.operator.max_parallelism, self.rows.sparkSession.sparkContext.defaultParallelism)


@dataclass(frozen=True)
class WrittenEntries:
    """Files that no reader sees yet.

    Attributes:
        base_files, changelog: in order of key groups; none of the other kind, and none at all in a dry run.
    """

    entries: OperatorEntries
    base_files: list[BaseFile]
    changelog: list[DataFile]
    counts: dict[str, Counter[str]]


@dataclass(frozen=True)
class EntryWriter:
    """Writes entries of one job."""

    spark: SparkSession
    layout: JobLayout
    dry_run: bool = False

    @cached_property
    def attempt(self) -> WriteAttempt:
        """Names the row and the files; asked for when the first is written."""
        return StoreClock(self.layout.root).attempt()

    def write(self, entries: OperatorEntries, *, what: str, doing: str) -> WrittenEntries:
        """Check the rows of an operator, and write their files; one Spark job."""
        operator, tasks = entries.operator, entries.tasks
        group = key_group_column(F.col(KEY_HASH), operator.max_parallelism)
        task = subtask_column(group, operator.max_parallelism, tasks)
        placed = entries.rows.withColumn(GROUP, group).withColumn(_TASK, task)
        order = [GROUP, PLACE] if entries.is_base else [GROUP]
        sent = placed.repartitionById(tasks, F.col(_TASK)).drop(_TASK).sortWithinPartitions(*order)
        work = partial(_write, self._spec(entries), entries.check, entries.is_base, self.dry_run)
        reports = run(
            self.spark, FramePartitions(sent, iter), work, label=f"{what}: {doing}", prefix=f"{what}: "
        )
        counts: dict[str, Counter[str]] = {}
        for stored, kind, number in (count for report in reports for count in report["counts"]):
            counts.setdefault(name_of(operator.states, stored), Counter())[kind] += number
        if entries.is_base:
            return WrittenEntries(entries, written_files(reports, BaseFile), [], counts)
        return WrittenEntries(entries, [], written_files(reports, DataFile), counts)

    def listed(
        self, written: WrittenEntries, *, tables: JobTables, path: Sequence[CheckpointRow]
    ) -> OperatorCheckpoint:
        """List files in the table of their operator; the operator's part of the row that will name them.

        Args:
            path: ends with the row to commit, of which only the operators are still to come.
        """
        entries, (*before, row) = written.entries, path
        if not entries.is_base and not written.changelog:
            return entries.operator.unwritten()
        changed = replace(entries.operator.unwritten(), entries={}, first_timers=[])
        if entries.is_base:
            whole = BaseRange(0, changed.max_parallelism - 1, row.write_id, row.checkpoint_id)
            changed = replace(changed, bases=[whole], base_files=written.base_files)
            tables.list_base(changed, written.base_files, row.write_id)
        else:
            rows = sum(file.rows for file in written.changelog)
            changed = replace(changed, changelog=written.changelog, changed_entries=rows)
            of_operator = changed.uid, changed.key_schema, changed.states
            tables.list_changes(*of_operator, changed.changelog, row.write_id)
        if set(written.counts.get(TIMERS, ())) <= {SAME}:
            return changed
        as_of = [*before, replace(row, operators=[changed])]
        return replace(changed, next_timers_ms=self._next_timers_ms(as_of, changed.uid))

    def commit(
        self,
        written: Sequence[WrittenEntries],
        *,
        operations: HeadOperations,
        tables: JobTables,
        history: History,
        head: CheckpointRow,
    ) -> CheckpointRow:
        """List what was written, and commit it as a transform of the head.

        Raises:
            StaleParentError: the job went on meanwhile; nothing was done.
        """
        row = replace(head, checkpoint_id=history.next_id, write_id=self.attempt.write_id)
        path = [*history.path(head.checkpoint_id), row]
        changed = SetOperators([self.listed(one, tables=tables, path=path) for one in written])
        return operations.commit(CheckpointKind.TRANSFORM, head, history, changed, attempt=self.attempt)

    def _next_timers_ms(self, path: Sequence[CheckpointRow], uid: str) -> dict[str, int]:
        """Time of the first timer that there is at the end of a path, by domain."""
        timers = stored_entries(self.spark, self.layout, path, uid, states=[TIMERS])
        timer = F.col(state_column(TIMERS))["key"]
        first = timers.where(F.col(STATE) == TIMERS).groupBy(timer["domain"].alias("domain"))
        return {r["domain"]: r["at"] for r in first.agg(F.min(timer["time"]).alias("at")).collect()}

    def _spec(self, entries: OperatorEntries) -> BaseSpec:
        operator = entries.operator
        table = self.layout.base if entries.is_base else self.layout.changelog
        return BaseSpec(
            uri=table(operator.uid),
            base_id="" if self.dry_run else self.attempt.write_id,
            key_type=parse_ddl(operator.key_schema).arrow,
            states=tuple(entries.states),
            max_parallelism=operator.max_parallelism,
            clock_ms=entries.expired_at_ms,
        )


# -- tasks -------------------------------------------------------------------------------------------------------------


def _write(
    spec: BaseSpec,
    check: Check,
    is_base: bool,
    dry_run: bool,
    batches: Iterable[pa.RecordBatch],
    attempt: TaskAttempt,
    *,
    at_once: int = _ROWS_AT_ONCE,
) -> Report:
    """What a task does: rows come in, sorted by key group, and files go out."""
    counts: Counts = Counter()
    files: list[DataFile] = []
    for number, table in enumerate(_whole_groups(batches, at_once)):
        counts.update(check(table))
        rows = _stored(spec, table if is_base else table.filter(pc.is_valid(table[OP])))
        if dry_run or not rows.num_rows:
            continue
        if is_base:
            files += write_entries(spec, rows, task=attempt.task, attempt=attempt.attempt_id)
        else:
            # the name must differ from those of the task's other files
            name = attempt.attempt_id * _FILES_OF_A_TASK + number
            rows, uri = in_file_order(rows), spec.uri
            files.append(write_changes(rows, uri, write_id=spec.base_id, subtask=attempt.task, attempt=name))
    return {"files": files, "counts": [[*at, number] for at, number in counts.items()]}


def _whole_groups(batches: Iterable[pa.RecordBatch], at_once: int) -> Iterator[pa.Table]:
    """Rows that are sorted by key group, a few groups at a time, none of them divided."""
    held: list[pa.RecordBatch] = []
    for batch in (b for b in batches if b.num_rows):
        groups, enough = batch[GROUP].to_numpy(), sum(b.num_rows for b in held) >= at_once
        if enough and groups[-1] != held[-1][GROUP][-1].as_py():
            last = int(np.searchsorted(groups, groups[-1]))
            yield pa.Table.from_batches([*held, batch.slice(0, last)])
            held = [batch.slice(last)]
        else:
            held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def _stored(spec: BaseSpec, table: pa.Table) -> pa.Table:
    """Rows as a changelog has them. Raises ValueTypeError where a value is not of its declared type."""
    types = {}
    for state in spec.states:
        declared = type_from_text(state.type)
        types[state.column_name] = declared.storage
        if declared.arrow != declared.storage:
            try:
                one_chunk(table[state_column(state.column_name)]).cast(declared.arrow)
            except pa.ArrowInvalid as error:
                raise ValueTypeError(
                    f"state '{state.name}': a value is not of the declared type: {error}"
                ) from None
    schema = changelog_schema(spec.key_type, types)
    return pa.Table.from_arrays([table[f.name].cast(f.type) for f in schema], schema=schema)


# -- for producers -----------------------------------------------------------------------------------------------------


def refused_row(table: pa.Table) -> int | None:
    """The first row that says why it is refused, if any."""
    why = table[WHY]
    return None if why.null_count == len(why) else int(np.flatnonzero(pc.is_valid(why).to_numpy())[0])


def check_given(states: Sequence[StateSchema], table: pa.Table) -> None:
    """Raise InvalidKeyError or ValueTypeError for the first row of a user's that is refused."""
    at = refused_row(table)
    if at is None:
        return
    why, name = table[WHY][at].as_py(), name_of(states, table[STATE][at].as_py())
    kind = InvalidKeyError if "the key" in why else ValueTypeError
    raise kind(f"state '{name}': {why}, for the key {table[KEY][at].as_py()}")


def name_of(states: Iterable[StateSchema], stored: str) -> str:
    """What a state is called today, by what its rows bear; empty for what is of no state."""
    return next((s.name for s in states if s.column_name == stored), "")
