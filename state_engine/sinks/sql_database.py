"""The table of a ``SqlSink`` in its database: made, checked, and written to in one transaction with the ledger.

The first statement of a transaction is the insert into the ledger: of two that publish one checkpoint, the second waits
there until the first has ended, and then sees that the row is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import SinkError, SinkIdentityError
from state_engine.sinks.base import DROP_ROWS, FROM_INPUT, MAKE_AGAIN
from state_engine.sinks.row_rules import RowRule
from state_engine.sinks.spark_writer import note_of
from state_engine.sinks.sql_columns import check_table, rules_of, sql_checks, table_for
from state_engine.sinks.sql_connection import SqlWrite, connected
from state_engine.sinks.sql_ledger import Ledger, create, exists
from state_engine.sinks.sql_rows import (
    check_lineage,
    delete_rows,
    staged_schema,
    write_rows,
)
from state_engine.sinks.sql_target import SqlTarget
from state_engine.sinks.sql_trial import Trial


@contextmanager
def opened(target: SqlTarget, sink: str) -> Iterator[SqlTable]:
    """The table, over a connection to its database; raises as ``connected`` does."""
    with connected(target, f"sink '{sink}'") as connection:
        yield SqlTable(connection, target, sink)


@dataclass(frozen=True)
class SqlTable:
    """One table, over one connection."""

    connection: sa.Connection
    target: SqlTarget
    sink: str

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.connection, self.target.schema, self.target.table)

    # -- before a batch --------------------------------------------------------------------------------------------

    def prepare(self, app: str, schema: pa.Schema, *, known: bool = True) -> str:
        """Make the table, or check it; its identity.

        Args:
            known: whether a checkpoint of the job may have rows for it. Else an empty table that the job made itself,
                in this root or another, for a first batch that failed, is made again where its columns do not fit.
        """
        table = table_for(self.target, schema, self.connection.dialect.name)
        self.ledger.prepare()
        if not self._exists():
            self._make(app, table)
        elif not known and not self._takes(schema) and self._is_left_over(app, table):
            self.ledger.new_identity(app)
            self.ledger.note_made(app)
            table.drop(self.connection)
            create(self.connection, table)
        self._check_columns(schema)
        return self.ledger.identity(app)

    def _make(self, app: str, table: sa.Table) -> None:
        """Make the table, with a new identity, in one transaction; unless another runner made it in between.

        What the ledger says of a table of this name went with that one.
        """
        former = self.ledger.claimants()
        self.ledger.new_identity(app)
        self.ledger.forget(former, but=app)
        self.ledger.note_made(app)
        if sa.inspect(self.connection).has_table(table.name, table.schema):
            self.connection.rollback()
        else:
            create(self.connection, table)

    def _takes(self, schema: pa.Schema) -> bool:
        try:
            self._check_columns(schema)
        except SinkError:
            return False
        return True

    def _is_left_over(self, app: str, table: sa.Table) -> bool:
        if not self.ledger.is_left_over(app):
            return False
        row = self.connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first()
        self.connection.rollback()
        return row is None

    def seen(self, app: str) -> int:
        """The highest checkpoint that an application published to the table; 0 also where that is gone."""
        return self.ledger.seen(app) if self._exists() and not self.ledger.is_replaced(app) else 0

    # -- checks ----------------------------------------------------------------------------------------------------

    def loss(self, staged: StagedSink) -> str:
        """Why the table that files were staged for is not there any more, and the ways out; empty where it is."""
        app = self.ledger.holder(staged.identity)
        if app is None or not self._exists():
            return f"is gone, or was recreated, since rows were staged for it. Put the old one back; {MAKE_AGAIN}"
        if not self.ledger.is_replaced(app):
            return ""
        job = app.split("/")[1]
        return (
            "was dropped and created again since rows were published to it, so nothing says which of them it holds. If "
            f"it holds all of them, accept it with `statelake accept-table {job} {self.sink}`. Else put the old one "
            f"back; or drop this one, and {FROM_INPUT}"
        )

    def check_same(self, staged: StagedSink) -> None:
        """Refuse another table than the one that files were staged for.

        Raises:
            SinkIdentityError: it is gone, or was made anew.
        """
        if loss := self.loss(staged):
            raise SinkIdentityError(f"sink '{self.sink}': {self.target.shown} {loss}; or {DROP_ROWS}")

    def check(self, staged: StagedSink) -> None:
        """Refuse a table that is not the one that files were staged for, or that cannot take them.

        Raises:
            SinkIdentityError: see ``check_same``.
            SinkError: it cannot take these rows any more.
        """
        self.check_same(staged)
        if staged.files:
            self._check_columns(staged_schema(staged))

    def check_withdrawable(self, staged: StagedSink) -> None:
        """Refuse where withdrawn rows cannot be identified; raises SinkError."""
        if staged.withdrawn:
            check_lineage(self.connection, self.target, staged)

    def is_published(self, staged: StagedSink, app: str, checkpoint_id: int) -> bool:
        """Whether the ledger holds this row."""
        recorded = self.ledger.digest(app, checkpoint_id)
        if recorded == note_of(staged):
            self.check_same(staged)
            return True
        newest = self.ledger.seen(app)
        if recorded is not None or newest > checkpoint_id:
            held = f"other rows of checkpoint {checkpoint_id}" if recorded else f"rows of checkpoint {newest}"
            raise SinkIdentityError(
                f"sink '{self.sink}': {self.target.shown} already holds {held} by '{app}': a copy of this root, or a "
                "re-created job, writes to the same table. Give each its own table, or restore the checkpoint's parent"
            )
        return False

    def accept(self, staged: StagedSink, app: str) -> None:
        """Take the table as it is for the one that the application published to; SinkIdentityError without one."""
        if not self._exists():
            self.check_same(staged)
        self.ledger.note_mark(app, known=None)
        self.connection.commit()

    def _exists(self) -> bool:
        return exists(self.connection, self.target.table, self.target.schema)

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

    def publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        """Write a checkpoint's rows and its row of the ledger in one transaction; nothing where that was done.

        Raises:
            CommitFailedError: another writer, or the connection, was in the way; nothing was written.
            CommitUnknownError: the connection broke while committing, and the ledger cannot be read.
        """
        self.check(staged)
        known = self.ledger.mark(app)
        write = SqlWrite(
            self.target,
            f"sink '{self.sink}'",
            checkpoint_id,
            DROP_ROWS,
        )
        try:
            if not self.ledger.take(app, checkpoint_id, note_of(staged)):
                self.is_published(staged, app, checkpoint_id)
                return
            if staged.withdrawn:
                delete_rows(self.connection, self.target, staged)
            if staged.files:
                write_rows(self.connection, self.target, staged)
            if not self.ledger.note_mark(app, known=known):  # in this moment
                self.connection.rollback()
                self.check_same(staged)
        except DBAPIError as error:
            raise write.refused(error) from error
        write.commit(
            self.connection,
            lambda again: SqlTable(again, self.target, self.sink).is_published(staged, app, checkpoint_id),
        )
