"""Writes rows of keyed state, of several states of one operator, as the files of a base: one Spark job.

Catalyst groups the rows by key group and sorts them; a task holds the rows of some key groups at a time, checks them as
a whole, and folds and writes them as a compaction does. Only the list of files and counts come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import DataFile, StateSchema
from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from state_engine.core.types.columns import one_chunk
from state_engine.queries.state_rows import KEY, KEY_HASH, PLACE, STATE, WHOLE, WHY, StateForm
from state_engine.spark.execution import execution
from state_engine.spark.key_columns import key_group_column, subtask_column
from state_engine.spark.task_reports import Report, reports_of, written_files
from state_engine.storage.layout import changelog_schema, state_column
from state_engine.storage.state.base import BaseSpec, write_entries
from state_engine.storage.state.entry_codes import entry_codes

GROUP = "key_group"
_ROWS_AT_ONCE = 200_000
"""Rows that a task holds in memory, where no single key group has more."""


@dataclass(frozen=True)
class WrittenStates:
    """Files of a base that no reader sees yet.

    Attributes:
        files: in order of key groups; none in a dry run.
        entries: values, map entries or lists, by state.
    """

    files: list[DataFile]
    entries: dict[str, int]


def write_states(
    spark: SparkSession, rows: DataFrame, spec: BaseSpec, *, what: str, dry_run: bool = False
) -> WrittenStates:
    """Check rows that ``state_rows`` made, and write them as a base.

    Args:
        rows: of one state or of several, united by name.
        spec: of the base; also which states there are.
        what: names job and operator, for messages.
        dry_run: check and count only.

    Raises:
        InvalidKeyError: a key is null or NaN.
        ValueTypeError: a value is null or out of range.
        ConfigurationError: a key has two values. Each names an example.
    """
    tasks = min(spec.max_parallelism, spark.sparkContext.defaultParallelism)
    group = key_group_column(F.col(KEY_HASH), spec.max_parallelism)
    placed = rows.withColumn(GROUP, group).withColumn(
        "_task", subtask_column(group, spec.max_parallelism, tasks)
    )
    grouped = placed.repartitionById(tasks, F.col("_task")).drop("_task").sortWithinPartitions(GROUP, PLACE)
    with execution(spark, f"{what}: state from DataFrames"):
        reports = reports_of(grouped, partial(_write, spec, dry_run), told=f"{what}, ")
    given = [s for s in spec.states if state_column(s.column_name) in rows.columns]
    return WrittenStates(
        written_files(reports),
        {s.name: sum(r["entries"].get(s.name, 0) for r in reports) for s in given},
    )


def _write(
    spec: BaseSpec, dry_run: bool, batches: Iterable[pa.RecordBatch], task: int, attempt: int
) -> Report:
    """What a task does: rows come in, sorted by key group, and files go out."""
    written: list[DataFile] = []
    entries: dict[str, int] = {}
    for table in whole_groups(batches):
        rows = _checked(spec, table, entries)
        if not dry_run:
            written += write_entries(spec, rows, task=task, attempt=attempt)
    return {"files": written, "entries": entries}


def whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows that are sorted by key group, a few groups at a time, none of them divided."""
    held: list[pa.RecordBatch] = []
    for batch in (b for b in batches if b.num_rows):
        groups, enough = batch[GROUP].to_numpy(), sum(b.num_rows for b in held) >= _ROWS_AT_ONCE
        if enough and groups[-1] != held[-1][GROUP][-1].as_py():
            last = int(np.searchsorted(groups, groups[-1]))
            yield pa.Table.from_batches([*held, batch.slice(0, last)])
            held = [batch.slice(last)]
        else:
            held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def name_of(states: Iterable[StateSchema], stored: str) -> str:
    """What a state is called today, by what its rows bear."""
    return next(s.name for s in states if s.column_name == stored)


def _checked(spec: BaseSpec, table: pa.Table, entries: dict[str, int]) -> pa.Table:
    """The rows of some key groups as rows of a changelog; counts what they are."""
    given = [s for s in spec.states if state_column(s.column_name) in table.schema.names]
    why = table[WHY]
    if why.null_count < len(why):
        at = int(np.flatnonzero(pc.is_valid(why).to_numpy())[0])
        kind = InvalidKeyError if "the key" in why[at].as_py() else ValueTypeError
        name = name_of(spec.states, table[STATE][at].as_py())
        raise kind(f"state '{name}': {why[at]}, for the key {table[KEY][at].as_py()}")
    for state in given:
        form = StateForm.of(state)
        mine = table.filter(pc.equal(table[STATE], state.column_name))
        found = _count(form, mine)
        if found:
            entries[state.name] = entries.get(state.name, 0) + found
    types = {s.column_name: StateForm.of(s).column.storage for s in spec.states}
    schema = changelog_schema(spec.key_type, types)
    schema = schema.remove(schema.get_field_index("key_group"))
    arrays = [
        table[f.name].cast(f.type) if f.name in table.schema.names else pa.nulls(table.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _count(form: StateForm, rows: pa.Table) -> int:
    """Number of entries of one state; refuses two of one place, and values that are out of range."""
    if not rows.num_rows:
        return 0
    name, column = form.schema.name, one_chunk(rows[form.column_name])
    if form.column.arrow != form.column.storage:
        try:
            column.cast(form.column.arrow)
        except pa.ArrowInvalid as error:
            raise ValueTypeError(f"state '{name}': a value is not of the declared type: {error}") from None
    parts: list[pa.Array] = [one_chunk(rows[KEY])]
    if form.shape == "map":
        parts.append(column.field("key"))
    codes = entry_codes(parts)
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    if rows[WHOLE][0].as_py() and len(counts) < rows.num_rows:
        twice = int(first[counts > 1][0])
        told = f", map key {column.field('key')[twice]}" if form.shape == "map" else ""
        raise ConfigurationError(
            f"state '{name}': {int(counts.max())} rows have the key {rows[KEY][twice].as_py()}{told}: a "
            f"{form.shape} has one; aggregate the DataFrame first"
        )
    if form.shape != "list":
        return rows.num_rows
    filled = pc.greater(column.value_lengths(), 0).to_numpy(zero_copy_only=False)
    return len(np.unique(codes[filled]))
