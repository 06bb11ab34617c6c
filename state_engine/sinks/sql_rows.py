"""Rows of staged files on their way into a database table, and out of it, inside of the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import SinkError
from state_engine.sinks.base import WRITE_ID, write_ids
from state_engine.sinks.sql_columns import table_for
from state_engine.sinks.sql_target import SqlTarget, lineage_of
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import open_recorded

BATCH_ROWS = 10_000
VALUES = 500
"""So many values go into one condition: databases take some thousands."""


def staged_schema(staged: StagedSink) -> pa.Schema:
    """Columns of the staged files, of which there is at least one."""
    first = staged.files[0]
    return open_recorded(
        join(staged.path, first.path), first, of=f"sink '{staged.name}'"
    ).schema.remove_metadata()


def check_lineage(connection: sa.Connection, target: SqlTarget, staged: StagedSink) -> None:
    """Refuse to withdraw rows that were written before the table had a lineage column."""
    table, written = _lineage(target), sum(f.rows for f in staged.withdrawn)
    count = sa.select(sa.func.count()).select_from(table)
    there = connection.execute(count.where(_is_withdrawn(table, staged))).scalar_one()
    unknown = connection.execute(count.where(table.c[WRITE_ID].is_(None))).scalar_one()
    if there < written and unknown:
        raise SinkError(
            f"sink '{staged.name}': outputs cannot be withdrawn from {target.shown}: "
            f"{written - there:,} of {counted(written, 'row is', 'rows are')} not known by {WRITE_ID}, which "
            f"{counted(unknown, 'row lacks', 'rows lack')} there. Fill it in, or keep the outputs with "
            'outputs="keep" (--outputs keep)'
        )


def delete_rows(connection: sa.Connection, target: SqlTarget, staged: StagedSink) -> None:
    """Delete the withdrawn rows, which their lineage column identifies."""
    table = _lineage(target)
    connection.execute(sa.delete(table).where(_is_withdrawn(table, staged)))


def write_rows(connection: sa.Connection, target: SqlTarget, staged: StagedSink) -> None:
    """Insert the staged rows, some at a time."""
    dialect = connection.dialect.name
    table = table_for(target, staged_schema(staged), dialect)
    for batch in _batches(staged):
        connection.execute(sa.insert(table), driver_values(batch, dialect).to_pylist())


def _lineage(target: SqlTarget) -> sa.TableClause:
    return sa.table(target.table, sa.column(WRITE_ID), schema=target.schema)


def _is_withdrawn(table: sa.TableClause, staged: StagedSink) -> sa.ColumnElement[bool]:
    return table.c[WRITE_ID].in_([lineage_of(w, staged.name) for w in write_ids(staged.withdrawn)])


def _batches(staged: StagedSink) -> Iterator[pa.RecordBatch]:
    for file in staged.files:
        yield from open_recorded(join(staged.path, file.path), file, of=f"sink '{staged.name}'").batches(
            BATCH_ROWS
        )


def driver_values(batch: pa.RecordBatch, dialect: str) -> pa.Table:
    """Values as the driver takes them, see the table in ``sql_columns``."""
    table = pa.Table.from_batches([batch])
    if dialect != "sqlite":
        return table
    for index, column in enumerate(table.schema):
        if pa.types.is_decimal(column.type):
            table = table.set_column(index, column.name, pc.cast(table[index], pa.string()))
        elif pa.types.is_timestamp(column.type) and column.type.tz is not None:
            table = table.set_column(index, column.name, pc.cast(table[index], pa.timestamp("us")))
    return driver_floats(table)


def driver_floats(table: pa.Table) -> pa.Table:
    """Values as SQLite holds them: null in the place of NaN."""
    for index, column in enumerate(table.schema):
        if pa.types.is_floating(column.type):
            values = pc.if_else(pc.is_nan(table[index]), pa.scalar(None, column.type), table[index])
            table = table.set_column(index, column.name, values)
    return table
