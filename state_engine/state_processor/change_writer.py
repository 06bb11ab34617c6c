"""Writes changes of keyed state, which a DataFrame holds, as files of a changelog: one Spark job, one task a subtask.

The files are like those of a micro-batch: each of one subtask's key groups, sorted, a key's clear in front of what is
put after it. Entries that stay are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import DataFile, OperatorCheckpoint
from state_engine.core.errors import InvalidKeyError, ValueTypeError
from state_engine.core.state.state_table import CLEAR
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.type_text import type_from_text
from state_engine.queries.state_changes import COUNTS, KIND
from state_engine.queries.state_rows import KEY, KEY_HASH, OP, STATE, WHY
from state_engine.spark.execution import execution
from state_engine.spark.key_columns import key_group_column, subtask_column
from state_engine.spark.task_reports import Report, reports_of, written_files
from state_engine.state_processor.state_writer import GROUP, name_of, whole_groups
from state_engine.storage.files import join, write_parquet
from state_engine.storage.layout import changelog_schema, file_name, partition_path, state_column

_FILES_OF_A_TASK = 10_000


@dataclass(frozen=True)
class ChangeSpec:
    """Where changes go; the same object for all tasks.

    Attributes:
        uri: of the changelog.
        write_id: of the attempt.
        operator: whose changes.
        dry_run: check and count only.
    """

    uri: str
    write_id: str
    operator: OperatorCheckpoint
    dry_run: bool


@dataclass(frozen=True)
class WrittenChanges:
    """Files of a changelog that no reader sees yet; none in a dry run.

    Attributes:
        files: one or more a subtask that has changes.
        counts: entries by state and kind (same, added, changed, deleted).
    """

    files: list[DataFile]
    counts: dict[str, Counter[str]]


def write_changes(spark: SparkSession, changes: DataFrame, spec: ChangeSpec, *, what: str) -> WrittenChanges:
    """Write changes as ``state_changes`` gives them.

    Raises:
        InvalidKeyError, ValueTypeError: what is to be put cannot be; names an example.
    """
    operator = spec.operator
    group = key_group_column(F.col(KEY_HASH), operator.max_parallelism)
    subtask = subtask_column(group, operator.max_parallelism, operator.parallelism)
    placed = changes.withColumn(GROUP, group).withColumn("_subtask", subtask)
    sent = placed.repartitionById(operator.parallelism, F.col("_subtask")).drop("_subtask")
    with execution(spark, what):
        reports = reports_of(sent.sortWithinPartitions(GROUP), partial(_write_all, spec), told=f"{what}: ")
    counts: dict[str, Counter[str]] = {}
    for state, kind, number in (found for report in reports for found in report["counts"]):
        counts.setdefault(name_of(operator.states, state), Counter())[kind] += number
    return WrittenChanges(written_files(reports), counts)


def _write_all(spec: ChangeSpec, batches: Iterable[pa.RecordBatch], subtask: int, attempt: int) -> Report:
    """What a task does: changes come in, sorted by key group, and files go out."""
    counts: Counter[tuple[str, str]] = Counter()
    files: list[DataFile] = []
    for number, table in enumerate(whole_groups(batches)):
        rows = _checked(spec, table, counts)
        if rows.num_rows and not spec.dry_run:
            files.append(_write(spec, rows, subtask, attempt * _FILES_OF_A_TASK + number))
    return {"files": files, "counts": [[*at, number] for at, number in counts.items()]}


def _checked(spec: ChangeSpec, table: pa.Table, counts: Counter[tuple[str, str]]) -> pa.Table:
    """The rows to write, in the order of a changelog; counts all."""
    why = table[WHY]
    if why.null_count < len(why):
        at = int(np.flatnonzero(pc.is_valid(why).to_numpy())[0])
        kind = InvalidKeyError if "the key" in why[at].as_py() else ValueTypeError
        name = name_of(spec.operator.states, table[STATE][at].as_py())
        raise kind(f"state '{name}': {why[at]}: {table[KEY][at].as_py()}")
    counted = table.filter(table[COUNTS])
    for row in counted.group_by([STATE, KIND]).aggregate([([], "count_all")]).to_pylist():
        counts[row[STATE], row[KIND]] += row["count_all"]
    rows = table.filter(pc.is_valid(table[OP]))
    used: dict[str, pa.DataType] = {}
    for state in spec.operator.states:
        column, declared = state_column(state.column_name), type_from_text(state.type)
        if column in rows.schema.names:
            used[state.column_name] = declared.storage
        if declared.arrow != declared.storage and column in rows.schema.names:
            try:
                one_chunk(rows[column]).cast(declared.arrow)
            except pa.ArrowInvalid as error:
                raise ValueTypeError(
                    f"state '{state.name}': a value is not of the declared type: {error}"
                ) from None
    schema = changelog_schema(parse_ddl(spec.operator.key_schema).arrow, used)
    rows = pa.Table.from_arrays([rows[f.name].cast(f.type) for f in schema], schema=schema)
    later = pc.not_equal(rows[OP], CLEAR).to_numpy()
    return rows.take(pa.array(np.lexsort((later, rows[KEY_HASH].to_numpy(), rows[GROUP].to_numpy()))))


def _write(spec: ChangeSpec, rows: pa.Table, subtask: int, attempt: int) -> DataFile:
    path = partition_path(spec.write_id, file_name(spec.write_id, subtask, attempt))
    groups, hashes = rows[GROUP].to_numpy(), rows[KEY_HASH].to_numpy()
    file = write_parquet(rows, join(spec.uri, path))
    return DataFile(
        path=path,
        bytes=file.bytes,
        rows=rows.num_rows,
        subtask=subtask,
        key_group_min=int(groups[0]),
        key_group_max=int(groups[-1]),
        key_hash_min=int(hashes.min()),
        key_hash_max=int(hashes.max()),
        footer=file.footer,
    )
