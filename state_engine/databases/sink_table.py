"""The table of a ``SqlSink`` in its database: made, checked, and written to in one transaction with the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import CommitFailedError, SinkError, SinkIdentityError
from state_engine.databases.columns import check_table, rules_of, sql_checks, table_for
from state_engine.databases.ledger import LedgerRow, Published, create, insert_into, remembered
from state_engine.databases.rows import BATCH_ROWS, insert_batch
from state_engine.databases.table import DatabaseTable
from state_engine.databases.target import SqlTarget, lineage_of
from state_engine.databases.trial import Trial
from state_engine.sinks.base import DROP_ROWS, FROM_INPUT, MAKE_AGAIN, WRITE_ID, write_ids
from state_engine.sinks.row_rules import RowRule
from state_engine.sinks.spark_writer import note_of
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import open_recorded


@dataclass(frozen=True)
class SinkTable(DatabaseTable):
    """One table, over one connection."""

    ways_out = DROP_ROWS

    # -- before a batch --------------------------------------------------------------------------------------------

    def prepare(self, schema: pa.Schema, *, known: bool = True) -> str:
        """Make the table, or check it; its identity.

        Args:
            known: whether a checkpoint of the job may have rows for it. Else an empty table that the job made itself,
                in this root or another, for a first batch that failed, is made again where its columns do not fit.
        """
        table = table_for(self.target, schema, self.dialect)
        self.ledger.prepare()
        if not self.is_there():
            self._make(table)
        elif not known and not self._takes(schema) and self._is_left_over():
            self._claim(is_made=True)
            table.drop(self.connection)
            create(self.connection, table)
        self._check_columns(schema)
        self._claim(anew=False)
        self.connection.commit()
        row = self.ledger.row()
        assert row is not None
        return row.identity

    def check_existing(self, schema: pa.Schema, *, known: bool) -> None:
        """Refuse a table that is there and not to be made again for these columns, without writing anything."""
        if self.is_there() and (known or self.has_rows()):
            self._check_columns(schema)

    def _make(self, table: sa.Table) -> None:
        """Make the table, with a new identity, in one transaction; unless another runner made it in between.

        What the ledger says of a table of this name went with that one.
        """
        self._claim(is_made=True)
        self.ledger.forget_other_writers()
        if self.is_there():
            self.connection.rollback()
        else:
            create(self.connection, table)

    def _claim(self, *, anew: bool = True, is_made: bool = False) -> None:
        """Begin a transaction that gives the table an identity."""
        identity = f"{uuid4().hex} {self.target.table}"
        self.ledger.claim(self.app, at=datetime.now(UTC), anew=anew, identity=identity, is_made=is_made)

    def _takes(self, schema: pa.Schema) -> bool:
        try:
            self._check_columns(schema)
        except SinkError:
            return False
        return True

    def _is_left_over(self) -> bool:
        """Whether the sink of this name made the table, in this root or another, and nobody has written to it."""
        rows = self._writers()
        return (
            any(row.is_made for row in rows)
            and {_sink_of(row.app) for row in rows} == {_sink_of(self.app)}
            and not any(row.newest.checkpoint_id for row in rows)
            and not self.has_rows()
        )

    def writers(self) -> list[str]:
        """All applications that published to the table; not one whose first batch failed."""
        return [row.app for row in self._writers() if row.newest.checkpoint_id]

    def _writers(self) -> list[LedgerRow]:
        return [row for row in self.ledger.rows() if row.writer == row.app]

    def seen(self) -> int:
        """The highest checkpoint that the application published to the table; 0 also where that is gone."""
        row = self.ledger.row() if self.is_there() else None
        return 0 if row is None or row.is_replaced else row.newest.checkpoint_id

    # -- checks ----------------------------------------------------------------------------------------------------

    def loss(self, staged: StagedSink) -> str:
        """Why the table that files were staged for is not there any more, and the ways out; empty where it is."""
        row = next((row for row in self._writers() if row.identity == staged.identity), None)
        if row is None or not self.is_there():
            return f"is gone, or was recreated, since rows were staged for it. Put the old one back; {MAKE_AGAIN}"
        if not row.is_replaced:
            return ""
        job = row.app.split("/")[1]
        return (
            "was dropped and created again since rows were published to it, so nothing says which of them it holds. If "
            f"it holds all of them, accept it with `statelake accept-table {job} {staged.name}`. Else put the old one "
            f"back; or drop this one, and {FROM_INPUT}"
        )

    def check_same(self, staged: StagedSink) -> None:
        """Refuse another table than the one that files were staged for.

        Raises:
            SinkIdentityError: it is gone, or was made anew.
        """
        if loss := self.loss(staged):
            raise SinkIdentityError(f"{self.who}: {self.target.shown} {loss}; or {DROP_ROWS}")

    def check(self, staged: StagedSink) -> None:
        """Refuse a table that is not the one that files were staged for, or that cannot take them.

        Raises:
            SinkIdentityError: see ``check_same``.
            SinkError: it cannot take these rows any more.
        """
        self.check_same(staged)
        if staged.files:
            self._check_columns(_schema_of(staged))

    def check_withdrawable(self, staged: StagedSink) -> None:
        """Refuse to withdraw rows that were written before the table had a lineage column; raises SinkError."""
        if not staged.withdrawn:
            return
        table, written = _lineage(self.target), sum(f.rows for f in staged.withdrawn)
        count = sa.select(sa.func.count()).select_from(table)
        there = self.connection.execute(count.where(_is_withdrawn(table, staged))).scalar_one()
        unknown = self.connection.execute(count.where(table.c[WRITE_ID].is_(None))).scalar_one()
        if there < written and unknown:
            raise SinkError(
                f"{self.who}: outputs cannot be withdrawn from {self.target.shown}: "
                f"{written - there:,} of {counted(written, 'row is', 'rows are')} not known by {WRITE_ID}, which "
                f"{counted(unknown, 'row lacks', 'rows lack')} there. Fill it in, or keep the outputs with "
                'outputs="keep" (--outputs keep)'
            )

    def check_seen(self, staged: StagedSink, checkpoint_id: int) -> None:
        """Refuse where the ledger has other files for this checkpoint; one that it has forgotten counts as this one.

        Raises:
            SinkIdentityError: see ``is_published``.
        """
        row = self.ledger.row()
        if row is None or not row.has_forgotten(checkpoint_id):
            self.is_published(staged, checkpoint_id)

    def is_published(self, staged: StagedSink, checkpoint_id: int) -> bool:
        """Whether the ledger has a checkpoint; raises SinkIdentityError where it has another, or later ones only."""
        row = self.ledger.row()
        if row is None:
            return False
        recorded, newest = row.digests.get(checkpoint_id), row.newest.checkpoint_id
        if recorded == note_of(staged):
            self.check_same(staged)
            return True
        if recorded is not None or newest > checkpoint_id:
            held = f"other rows of checkpoint {checkpoint_id}" if recorded else f"rows of checkpoint {newest}"
            raise SinkIdentityError(
                f"{self.who}: {self.target.shown} already holds {held} by '{self.app}': a copy of this root, or a "
                "re-created job, writes to the same table. Give each its own table, or restore the checkpoint's parent"
            )
        return False

    def accept(self, staged: StagedSink) -> None:
        """Take the table as it is for the one that the application published to; SinkIdentityError without one."""
        if not self.is_there() or self.ledger.row() is None:
            self.check_same(staged)
        self.ledger.note_table()
        self.connection.commit()

    def _check_columns(self, schema: pa.Schema) -> None:
        check_table(self.target, schema, sa.inspect(self.connection))
        self.connection.rollback()

    # -- single rows -----------------------------------------------------------------------------------------------

    def row_rules(self, schema: pa.Schema) -> tuple[list[RowRule], list[tuple[str, str]]]:
        """Rules of the table for single rows: those that Arrow judges, and CHECK constraints."""
        checks = sql_checks(self.target, sa.inspect(self.connection))
        return rules_of(self.connection, self.target, schema), checks

    def broken_checks(
        self, files: Iterable[tuple[str, Iterable[pa.RecordBatch]]]
    ) -> dict[str, dict[int, str]]:
        """Rows that break CHECK constraints, see ``Sink.broken_checks``: tried on an empty copy of the table."""
        trial = Trial.of(self.connection, self.target)
        try:
            return {path: broken for path, rows in files if (broken := trial.broken(rows))}
        finally:
            trial.drop()

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, staged: StagedSink, checkpoint_id: int) -> None:
        """Write a checkpoint's rows and its row of the ledger in one transaction; nothing where that was done.

        Raises:
            CommitFailedError: another writer, or the connection, was in the way; nothing was written.
            CommitUnknownError: the connection broke while committing, and the ledger cannot be read.
        """
        self.check(staged)
        row = self.ledger.row()
        assert row is not None  # or the check fails
        self.connection.rollback()
        if row.newest.checkpoint_id >= checkpoint_id:
            self._check_overtaken(staged, checkpoint_id)
            return
        with self.writing(checkpoint_id, lambda again: again.is_published(staged, checkpoint_id)):
            to, earlier = Published(checkpoint_id, note_of(staged)), remembered(row.digests)
            if not self.ledger.advance(
                self.app, since=row.newest, to=to, at=datetime.now(UTC), earlier=earlier
            ):
                self.connection.rollback()
                self._check_overtaken(staged, checkpoint_id)
                return
            if staged.withdrawn:
                table = _lineage(self.target)
                self.connection.execute(sa.delete(table).where(_is_withdrawn(table, staged)))
            if staged.files:
                self._insert(staged)
            self.check_same(staged)  # in this moment
            self.ledger.note_table()

    def _check_overtaken(self, staged: StagedSink, checkpoint_id: int) -> None:
        """Refuse where another runner published, unless it published this checkpoint."""
        if not self.is_published(staged, checkpoint_id):
            raise CommitFailedError(
                f"{self.who}: another runner published to {self.target.shown} just now. Nothing was written; run again"
            )

    def _insert(self, staged: StagedSink) -> None:
        table = table_for(self.target, _schema_of(staged), self.dialect)
        for file in staged.files:
            rows = open_recorded(join(staged.path, file.path), file, of=self.who)
            for batch in rows.batches(BATCH_ROWS):
                insert_batch(self.connection, insert_into(self.connection, table), table, batch)


def _schema_of(staged: StagedSink) -> pa.Schema:
    """Columns of the staged files, of which there is at least one."""
    first = staged.files[0]
    file = open_recorded(join(staged.path, first.path), first, of=f"sink '{staged.name}'")
    return file.schema.remove_metadata()


def _lineage(target: SqlTarget) -> sa.TableClause:
    return sa.table(target.table, sa.column(WRITE_ID), schema=target.schema)


def _is_withdrawn(table: sa.TableClause, staged: StagedSink) -> sa.ColumnElement[bool]:
    return table.c[WRITE_ID].in_([lineage_of(w, staged.name) for w in write_ids(staged.withdrawn)])


def _sink_of(app: str) -> str:
    """Job and sink of an application, whatever its root."""
    return app.partition("/")[2]
