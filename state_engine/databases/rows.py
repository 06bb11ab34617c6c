"""Rows on their way into a table of a database, inside of the caller's transaction.

In a table that shows a keyed state, every row carries the checkpoint that wrote it. A row goes, or is replaced, only
where that is one that the table has shown; what is left shows that somebody else was there.

A key of several columns may hold null. Databases take two nulls for different, so rows with null in their identity are
deleted before they come, one statement for each pattern of nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import TableChangedError
from state_engine.databases.columns import CHECKPOINT_ID
from state_engine.databases.ledger import insert_into

BATCH_ROWS = 10_000
_VALUES = 500
"""So many values go into one condition: databases take some thousands."""


@dataclass(frozen=True)
class RowWriter:
    """Writes the rows of one table for one checkpoint.

    Attributes:
        connection: with an open transaction that nobody else publishes beside.
        table: with the types that the columns are made with.
        since: the checkpoint that the table showed; its rows were written by this or an earlier one.
        checkpoint_id: that it shows afterwards.
        changed: the error for a row that somebody else wrote, given what is wrong with it.
        refused: the error for rows that the database refuses for what they hold.
    """

    connection: sa.Connection
    table: sa.Table
    identity: tuple[str, ...]
    since: int
    checkpoint_id: int
    changed: Callable[[str], TableChangedError]
    refused: Callable[[DBAPIError, pa.Table], Exception]

    def delete(self, rows: pa.Table) -> None:
        """Delete the rows that have these values, in all columns that are given; not all need to be there.

        Raises:
            TableChangedError: one was written by somebody else.
        """
        for condition in self._conditions(rows):
            self.connection.execute(sa.delete(self.table).where(condition, self._ours))
            self._refuse_others(condition)

    def count(self, rows: pa.Table) -> int:
        """How many rows have these values, in all columns that are given, whoever wrote them."""
        query = sa.select(sa.func.count()).select_from(self.table)
        return sum(self.connection.execute(query.where(one)).scalar_one() for one in self._conditions(rows))

    def put(self, rows: pa.Table) -> None:
        """Insert rows, or put them in the place of those with their identity.

        Raises:
            TableChangedError: one of those was written by somebody else.
        """
        for nulls, part in _by_nulls(rows, self.identity):
            if nulls:
                self.delete(part.select(self.identity))
                self.insert(part)
                continue
            for batch in part.combine_chunks().to_batches(BATCH_ROWS):
                self._upsert(batch)

    def date_back(self) -> None:
        """Have rows of later checkpoints count as those of this one, which takes the place of them."""
        mark = self.table.c[CHECKPOINT_ID]
        later = sa.and_(mark > self.checkpoint_id, mark <= self.since)
        self.connection.execute(
            sa.update(self.table).where(later).values({CHECKPOINT_ID: self.checkpoint_id})
        )

    def insert(self, rows: pa.Table) -> None:
        for batch in rows.to_batches(BATCH_ROWS):
            if batch.num_rows:
                self._execute(insert_into(self.connection, self.table), batch)

    def _upsert(self, batch: pa.RecordBatch) -> None:
        insert = insert_into(self.connection, self.table)
        put = insert.on_conflict_do_update(
            index_elements=list(self.identity),
            set_={c.name: insert.excluded[c.name] for c in self.table.c if c.name not in self.identity},
            where=self._ours,
        )
        done = self._execute(put, batch)
        if done != batch.num_rows:
            rows = pa.Table.from_batches([batch]).select(self.identity)
            for condition in self._conditions(rows):
                # the others of this batch have been written by now
                self._refuse_others(
                    condition & self.table.c[CHECKPOINT_ID].is_distinct_from(self.checkpoint_id)
                )
            raise self.changed(
                f"it took {done:,} of {counted(batch.num_rows, 'row')} (a trigger, or a rule?)"
            )

    def _execute(self, insert: Any, batch: pa.RecordBatch) -> int:
        """Run an insert for the rows of a batch; how many were written. Raises ``refused`` for what rows hold."""
        mark = pa.repeat(pa.scalar(self.checkpoint_id, pa.int64()), batch.num_rows)
        try:
            return insert_batch(self.connection, insert, self.table, batch.append_column(CHECKPOINT_ID, mark))
        except (IntegrityError, DataError) as error:
            raise self.refused(error, pa.Table.from_batches([batch])) from error

    def _conditions(self, rows: pa.Table) -> Iterator[sa.ColumnElement[bool]]:
        """Conditions that select the rows with these values, each of a bounded size."""
        names = rows.column_names
        for nulls, part in _by_nulls(rows, names):
            null = [self.table.c[n].is_(None) for n in nulls]
            columns = [self.table.c[n] for n in names if n not in nulls]
            if not columns:
                yield sa.and_(*null)
                continue
            for batch in part.to_batches(max(1, _VALUES // len(columns))):
                plain = driver_values(batch, self.connection.dialect.name)
                values = [plain[c.name].to_pylist() for c in columns]
                if len(columns) == 1:
                    yield sa.and_(*null, columns[0].in_(values[0]))
                else:
                    yield sa.and_(*null, sa.tuple_(*columns).in_(list(zip(*values, strict=True))))

    @property
    def _ours(self) -> sa.ColumnElement[bool]:
        """Whether a row was written by a checkpoint that the table has shown."""
        return self.table.c[CHECKPOINT_ID].between(0, self.since)

    def _refuse_others(self, condition: sa.ColumnElement[bool]) -> None:
        """Refuse a row of those that a condition selects; all that are ours have been dealt with."""
        written = self.table.c[CHECKPOINT_ID]
        key = [self.table.c[n] for n in self.identity]
        others = sa.or_(written.is_(None), ~self._ours)
        row = self.connection.execute(sa.select(*key, written).where(condition, others).limit(1)).first()
        if row is not None:
            shown = ", ".join(f"{n}={v!r}" for n, v in zip(self.identity, row, strict=False))
            by = "has no" if row[-1] is None else "has another"
            raise self.changed(f"the row with {shown} {by} {CHECKPOINT_ID} than this job wrote")


def _by_nulls(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Rows by which of some columns are null: the names of those, and the rows."""
    some = [n for n in names if rows[n].null_count]
    if not some:
        if rows.num_rows:
            yield (), rows
        return
    masks = pa.table({n: pc.is_null(rows[n]) for n in some})
    for pattern in masks.group_by(some).aggregate([]).to_pylist():
        at = reduce(pc.and_, [pc.equal(masks[n], pattern[n]) for n in some])
        yield tuple(n for n in some if pattern[n]), rows.filter(at)


def insert_batch(connection: sa.Connection, insert: Any, table: sa.Table, batch: pa.RecordBatch) -> int:
    """Run an insert for the rows of a batch, in the transaction that is open; how many were written.

    PostgreSQL gets each column as an array, in one statement, which takes a third of the time.

    Args:
        insert: into the table, without values.
        table: with the types that the columns are made with.
    """
    values, once = driver_values(batch, connection.dialect.name), {"preserve_rowcount": True}
    if connection.dialect.name == "sqlite":
        return connection.execute(insert, values.to_pylist(), execution_options=once).rowcount
    names = values.column_names
    arrays = [sa.literal(values[n].to_pylist(), sa.ARRAY(table.c[n].type)) for n in names]
    columns = (sa.column(n, table.c[n].type) for n in names)
    rows = sa.func.unnest(*arrays).table_valued(*columns).render_derived()
    return connection.execute(insert.from_select(names, sa.select(*rows.c)), execution_options=once).rowcount


def driver_values(batch: pa.RecordBatch, dialect: str) -> pa.Table:
    """Values as the driver takes them, see the table in ``columns``."""
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
