"""``KeyTypeChange``: gives the keyed state of an operator another type of key.

    read     all entries at the head, timers and what has expired included (``stored_entries``)
    convert  each key, by a cast that loses nothing or by a function of the user's: new hashes, new key groups
    write    a base, one sorted file a key group, in one Spark job; two keys that become one are refused there
    commit   one row of kind ``transform`` upon that very head, else ``StaleParentError``

Values, times and the order of lists and maps stay what they are; sources, sinks and operator state are not touched.
The old files stay with the checkpoints before, which code of the old key restores and goes on from. Flink needs its
State Processor API and a new savepoint for this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints import lineage
from state_engine.core.checkpoints.checkpoint import BaseRange, CheckpointRow, DataFile
from state_engine.core.checkpoints.resumption import TRANSFORM
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator_state.operator_state_ref import RAW_KEYED
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.type_parsing import from_spark_json
from state_engine.core.types.type_text import type_from_text
from state_engine.job.job_tables import JobTables
from state_engine.operations.head_moves import Operations
from state_engine.queries.state_rows import KEY, KEY_HASH, PLACE, STATE, WHY
from state_engine.queries.stored_entries import key_schema, stored_entries
from state_engine.spark.execution import execution
from state_engine.spark.key_columns import key_group_column, subtask_column
from state_engine.spark.shipped_code import running_driver_code
from state_engine.spark.task_reports import Report, reports_of, written_files
from state_engine.state_processor.key_conversion import OLD, Convert, converted
from state_engine.state_processor.state_writer import GROUP, name_of, whole_groups
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import changelog_schema
from state_engine.storage.state.base import BaseSpec, write_entries
from state_engine.storage.state.entry_codes import entry_codes

_EXAMPLES = 3


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
    """One change of the key of one operator.

    Attributes:
        job: name.
        tables: the job's tables.
        kernel: tells which columns tables have.
        operations: commits the row.
        spark: session.
        dry_run: check and count only.
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

    def run(self, uid: str, key: DeclaredKey, convert: Convert | None) -> KeyTypeReport:
        """See ``StateEngine.change_key_type``; ``key`` is that of today's code."""
        declared = key.schema
        rows, head = self.operations.settled()
        path, what = lineage.path(rows, head.checkpoint_id), f"job '{self.job}', operator '{uid}'"
        operator = head.operator(uid)
        if operator is None:
            known = [o.uid for o in head.operators]
            raise ConfigurationError(
                f"job '{self.job}': there is no keyed state of '{uid}'; there is of {known}"
            )
        _check_no_raw_state(head, uid, what)
        old = key_schema(operator)
        report = KeyTypeReport(self.job, uid, head.checkpoint_id, old.declared_text, declared.declared_text)
        if convert is None and declared.is_stored_like(old):
            return replace(report, is_needed=False)
        new = declared.stored_in(self._key_columns(uid))
        entries = stored_entries(self.spark, self.tables.layout, path, uid)
        spec = BaseSpec(
            uri=self.tables.layout.base(uid),
            base_id=self.attempt.write_id,
            key_type=new.storage,
            states=tuple(replace(s, ttl="") for s in operator.states),  # nothing is cleaned up on the way
            max_parallelism=operator.max_parallelism,
            clock_ms=head.clock_ms,
            watermark_ms=head.watermark_ms,
        )
        files, report = running_driver_code(
            self.spark,
            convert,
            lambda: self._write(
                converted(entries, old, new, convert and (convert, key), what=what),
                _Spec(spec, old, new, self.dry_run),
                report,
                what,
            ),
            job=self.tables.layout.job,
        )
        if self.dry_run:
            return report
        changed = replace(
            operator,
            key_schema=str(new),
            key_type=new.declared_text,
            changelog=[],
            changed_entries=0,
            bases=[BaseRange(0, operator.max_parallelism - 1, self.attempt.write_id, lineage.next_id(rows))],
            base_files=files,
        )
        self.tables.list_base(changed, files, self.attempt.write_id)

        def change(row: CheckpointRow) -> CheckpointRow:
            return replace(row, operators=[changed if o.uid == uid else o for o in row.operators])

        row = self.operations.commit(TRANSFORM, head, rows, change, attempt=self.attempt)
        return replace(report, committed_id=row.checkpoint_id)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _key_columns(self, uid: str) -> list[pa.DataType]:
        """The key columns that the operator's tables have, whoever made them."""
        found = []
        for uri in (self.tables.layout.base(uid), self.tables.layout.changelog(uid)):
            facts = self.kernel.facts(uri)
            fields = facts.schema["fields"] if facts is not None else []
            found += [from_spark_json(f["type"]).arrow for f in fields if f["name"] == KEY]
        return found

    def _write(
        self, made: DataFrame, whole: _Spec, report: KeyTypeReport, what: str
    ) -> tuple[list[DataFile], KeyTypeReport]:
        spec = whole.base
        tasks = min(spec.max_parallelism, self.spark.sparkContext.defaultParallelism)
        group = key_group_column(F.col(KEY_HASH), spec.max_parallelism)
        task = subtask_column(group, spec.max_parallelism, tasks)
        placed = made.withColumn(GROUP, group).withColumn("_task", task)
        sent = placed.repartitionById(tasks, F.col("_task")).drop("_task").sortWithinPartitions(GROUP, PLACE)
        with execution(self.spark, f"{what}: keys become {report.after}"):
            reports = reports_of(sent, partial(_write, whole), told=f"{what}: ")
        counts: Counter[str] = Counter()
        for one in reports:
            counts.update({name_of(spec.states, stored): n for stored, n in one["entries"].items()})
        keys = sum(one["keys"] for one in reports)
        return written_files(reports), replace(report, keys=keys, entries=dict(sorted(counts.items())))


@dataclass(frozen=True)
class _Spec:
    """What all tasks are told: the base, and the keys before and after."""

    base: BaseSpec
    old: KeySchema
    new: KeySchema
    dry_run: bool


def _write(spec: _Spec, batches: Iterable[pa.RecordBatch], task: int, attempt: int) -> Report:
    """What a task does: converted rows come in, sorted by key group, and files go out."""
    written: list[DataFile] = []
    counts: Counter[str] = Counter()
    keys = 0
    for table in whole_groups(batches):
        keys += _checked(spec, table)
        found = table[STATE].value_counts()
        counts.update(dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True)))
        if not spec.dry_run:
            written += write_entries(spec.base, _stored(spec.base, table), task=task, attempt=attempt)
    return {"files": written, "keys": keys, "entries": counts}


def _checked(spec: _Spec, table: pa.Table) -> int:
    """The number of keys in some key groups; refuses keys that cannot be one, and two that became one."""
    why, old_keys = table[WHY], one_chunk(table[OLD])
    if why.null_count < len(why):
        at = int(np.flatnonzero(pc.is_valid(why).to_numpy())[0])
        (key,) = spec.old.decode_struct(old_keys.slice(at, 1))
        raise InvalidKeyError(f"{why[at]}, for the key {key!r}")
    new = entry_codes([one_chunk(table[KEY])])
    both = entry_codes([pa.array(new), old_keys])
    _, first = np.unique(both, return_index=True)  # a row of every old key
    kept, counts = np.unique(new[first], return_counts=True)
    if len(kept) < len(first):
        told = []
        for code in kept[counts > 1][:_EXAMPLES]:
            at = pa.array(first[new[first] == code][:_EXAMPLES])
            several = ", ".join(map(repr, spec.old.decode_struct(old_keys.take(at))))
            (one,) = spec.new.decode_struct(one_chunk(table[KEY]).take(at.slice(0, 1)))
            told.append(f"{several} would be {one!r}")
        raise ConfigurationError(
            f"several keys would become one: {'; '.join(told)}. Nothing was changed. Convert them otherwise, or first "
            "merge their state or delete all keys but one by transform_state"
        )
    return len(kept)


def _stored(spec: BaseSpec, table: pa.Table) -> pa.Table:
    """Rows as a changelog has them."""
    types = {s.column_name: type_from_text(s.type).storage for s in spec.states}
    schema = changelog_schema(spec.key_type, types)
    schema = schema.remove(schema.get_field_index("key_group"))
    have = set(table.schema.names)
    arrays = [
        table[f.name].cast(f.type) if f.name in have else pa.nulls(table.num_rows, f.type) for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _check_no_raw_state(head: CheckpointRow, uid: str, what: str) -> None:
    """Raise ConfigurationError where the function keeps bytes by key group."""
    states = [s for ref in head.operator_state if ref.operator == uid for s in ref.states]
    raw = sorted(s.name for s in states if s.scheme == RAW_KEYED and any(p.elements for p in s.parts))
    if raw:
        raise ConfigurationError(
            f"{what}: it has raw keyed state ({', '.join(raw)}), bytes of a key group that only its function can "
            "take apart, and its keys would go to other key groups. Run a version that moves the bytes into keyed state"
        )
