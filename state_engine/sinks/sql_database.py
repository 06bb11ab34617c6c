"""The table of a ``SqlSink`` in its database: made, checked, and written to in one transaction with the ledger.

The first statement of a transaction is the insert into the ledger: of two that publish one checkpoint, the second waits
there until the first has ended, and then sees that the row is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import NullPool

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    SinkError,
    SinkIdentityError,
)
from state_engine.core.extras import missing
from state_engine.sinks.spark_writer import note_of
from state_engine.sinks.sql_columns import check_table, table_for
from state_engine.sinks.sql_ledger import Ledger, create, exists
from state_engine.sinks.sql_rows import (
    check_lineage,
    delete_rows,
    lineages_in,
    staged_schema,
    write_rows,
)
from state_engine.sinks.sql_target import SqlTarget

_LOCK_TIMEOUT_S = 60


@contextmanager
def opened(target: SqlTarget, sink: str) -> Iterator[SqlTable]:
    """A connection to the table's database.

    Raises:
        SinkError: it cannot be reached, or used.
        MissingPackageError: its driver is not installed.
    """
    url, password = sa.make_url(target.url), target.password()
    try:
        engine = sa.create_engine(
            url if password is None else url.set(password=password),
            poolclass=NullPool,
            hide_parameters=True,  # thousands of rows would hide the error
            connect_args={"timeout": _LOCK_TIMEOUT_S} if url.get_backend_name() == "sqlite" else {},
        )
    except ModuleNotFoundError as error:
        raise missing(str(error.name), needed_by=f"sink '{sink}'") from error
    try:
        with engine.connect() as connection:
            yield SqlTable(connection, target, sink)
    except DBAPIError as error:
        raise SinkError(
            f"sink '{sink}': {target.shown} cannot be used: {_one_line(error)}. Repair that and run again; "
            "nothing is lost"
        ) from error
    finally:
        engine.dispose()


@dataclass(frozen=True)
class SqlTable:
    """One table, over one connection."""

    connection: sa.Connection
    target: SqlTarget
    sink: str

    @cached_property
    def ledger(self) -> Ledger:
        """Of the table's schema."""
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
        if not exists(self.connection, self.target.table, self.target.schema):
            self._make(app, table)
        elif not known and not self._takes(schema) and self._is_left_over(app, table):
            self.ledger.new_identity(app)
            self.ledger.note_made(app)
            table.drop(self.connection)
            create(self.connection, table)
        self._check_columns(schema)
        return self.ledger.identity(app)

    def _make(self, app: str, table: sa.Table) -> None:
        """Make the table, with a new identity, in one transaction; unless another runner made it in between."""
        self.ledger.new_identity(app)
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

    # -- checks ----------------------------------------------------------------------------------------------------

    def check(self, staged: StagedSink) -> None:
        """Refuse another table than the one that files were staged for.

        Raises:
            SinkIdentityError: it is gone, or was made anew.
            SinkError: it cannot take these rows any more.
        """
        there = exists(self.connection, self.target.table, self.target.schema)
        if not there or not self.ledger.has_identity(staged.identity):
            raise SinkIdentityError(
                f"sink '{self.sink}': {self.target.shown} is gone, or was made anew, since rows were staged for it. "
                "Put the old one back, or restore the checkpoint's parent to drop these rows"
            )
        if staged.files:
            self._check_columns(staged_schema(staged))

    def check_withdrawable(self, staged: StagedSink) -> None:
        """Refuse where withdrawn rows cannot be identified; raises SinkError."""
        if staged.withdrawn:
            check_lineage(self.connection, self.target, staged)

    def lineages(self, wanted: Sequence[str]) -> set[str]:
        """Which of these values of the lineage column the table has."""
        write_ids = lineages_in(self.connection, self.target, wanted)
        self.connection.rollback()
        return write_ids

    def is_published(self, staged: StagedSink, app: str, checkpoint_id: int) -> bool:
        """Whether the ledger holds this row.

        Raises:
            SinkIdentityError: it holds another one of this number, or later ones only.
        """
        recorded = self.ledger.digest(app, checkpoint_id)
        if recorded == note_of(staged):
            return True
        newest = self.ledger.seen(app)
        if recorded is not None or newest > checkpoint_id:
            held = f"other rows of checkpoint {checkpoint_id}" if recorded else f"rows of checkpoint {newest}"
            raise SinkIdentityError(
                f"sink '{self.sink}': {self.target.shown} already holds {held} by '{app}': a copy of this root, or a "
                "re-created job, writes to the same table. Give each its own table, or restore the checkpoint's parent"
            )
        return False

    def _check_columns(self, schema: pa.Schema) -> None:
        inspector = sa.inspect(self.connection)
        if self.target.table in inspector.get_view_names(self.target.schema):
            raise SinkError(f"sink '{self.sink}': {self.target.shown} is a view: name a table")
        check_table(self.target, schema, inspector)
        self.connection.rollback()

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        """Write a checkpoint's rows and its row of the ledger in one transaction; nothing where that was done.

        Raises:
            SinkIdentityError: this is not the table, or it holds other rows of this checkpoint.
            SinkError: the database does not take the rows.
            CommitFailedError: another writer, or the connection, was in the way; nothing was written.
            CommitUnknownError: the connection broke while committing, and the ledger cannot be read.
        """
        self.check(staged)
        try:
            if not self.ledger.take(app, checkpoint_id, note_of(staged)):
                self.is_published(staged, app, checkpoint_id)
                return
            if staged.withdrawn:
                delete_rows(self.connection, self.target, staged)
            if staged.files:
                write_rows(self.connection, self.target, staged)
        except DBAPIError as error:
            raise self._refused(checkpoint_id, error) from error
        try:
            self.connection.commit()
        except DBAPIError as error:
            self._look_again(staged, app, checkpoint_id, error)

    def _look_again(self, staged: StagedSink, app: str, checkpoint_id: int, error: DBAPIError) -> None:
        """The outcome of a commit that failed: in the ledger, or not."""
        try:
            with opened(self.target, self.sink) as again:
                done = again.is_published(staged, app, checkpoint_id)
        except SinkIdentityError:
            raise
        except SinkError as unseen:
            raise CommitUnknownError(
                f"sink '{self.sink}': {self.target.shown}: the commit of checkpoint {checkpoint_id} broke off "
                f"({_one_line(error)}), and the ledger cannot be read. Run again: it is looked up first"
            ) from unseen
        if not done:
            raise self._refused(checkpoint_id, error) from error

    def _refused(self, checkpoint_id: int, error: DBAPIError) -> SinkError | CommitFailedError:
        if isinstance(error, OperationalError | InterfaceError):
            return CommitFailedError(
                f"sink '{self.sink}': checkpoint {checkpoint_id} was not written to {self.target.shown} "
                f"({_one_line(error)}); run again"
            )
        return SinkError(
            f"sink '{self.sink}': {self.target.shown} does not take the rows of checkpoint {checkpoint_id}: "
            f"{_one_line(error)}. Nothing was published and nothing is lost: let the table take them and run again, or "
            "restore the checkpoint's parent to drop these rows"
        )


def _one_line(error: DBAPIError) -> str:
    """What the database said, on one line."""
    return " ".join(str(error.orig).split())
