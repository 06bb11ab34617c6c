"""The ledger of a database: which checkpoints of which application its tables hold.

    _statelake_ledger(app, checkpoint_id, files_digest, published_at)      primary key (app, checkpoint_id)

An application is ``<root id>/<job>/<sink>``. Its row 0 holds, in place of a digest, the identity and
the name of its table; its row -1 the name of the table that it has made itself; its row -2 the mark that the table had
when the application last published to it, see ``sql_identity``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from state_engine.sinks.sql_identity import MarkedTable, TableMark

LEDGER = "_statelake_ledger"
_IDENTITY = 0
"""Checkpoints begin at 1."""
_MADE = -1
_MARK = -2

_KEY = ["app", "checkpoint_id"]


@dataclass(frozen=True)
class Ledger:
    """The ledger in one schema, over one connection. ``take`` and ``new_identity`` leave a transaction open.

    Attributes:
        schema: that the ledger is in; None for the default.
    """

    connection: sa.Connection
    schema: str | None
    table: str

    def prepare(self) -> None:
        """Make it where there is none."""
        create(self.connection, self._table)

    def seen(self, app: str) -> int:
        """The highest checkpoint; 0 where there is none."""
        if not exists(self.connection, LEDGER, self.schema):
            return 0
        newest = sa.func.max(self._table.c.checkpoint_id)
        return int(self._scalar(sa.select(newest).where(self._table.c.app == app)) or 0)

    def digest(self, app: str, checkpoint_id: int) -> str | None:
        """What was published as a checkpoint; None where it was not."""
        if not exists(self.connection, LEDGER, self.schema):
            return None
        recorded: str | None = self._scalar(
            sa.select(self._table.c.files_digest).where(
                self._table.c.app == app, self._table.c.checkpoint_id == checkpoint_id
            )
        )
        return recorded

    def take(self, app: str, checkpoint_id: int, digest: str) -> bool:
        """Begin a transaction with this checkpoint's row; False, without a transaction, where there is one.

        Waits for the end of another transaction that has taken it.
        """
        try:
            self.connection.execute(sa.insert(self._table).values(_row(app, checkpoint_id, digest)))
        except IntegrityError:
            self.connection.rollback()
            return False
        return True

    def identity(self, app: str) -> str:
        """Of the application's table; made with the first question."""
        row = _row(app, _IDENTITY, self._new_identity())
        put = insert_into(self.connection, self._table).values(row)
        self.connection.execute(put.on_conflict_do_nothing(index_elements=_KEY))
        self.connection.commit()
        recorded = self.digest(app, _IDENTITY)
        assert recorded is not None
        return recorded

    def new_identity(self, app: str) -> None:
        """Begin a transaction in which the table is made again: what was staged for the old one is not for this one.

        Waits for the end of another transaction of the application that does.
        """
        self._put(app, _IDENTITY, self._new_identity())

    def forget(self, apps: Sequence[str], *, but: str) -> None:
        """Forget, in the transaction that is open, what these applications published to the table."""
        own, last = self._table.c, _IDENTITY
        gone = sa.or_(
            own.checkpoint_id > last,
            own.checkpoint_id == _MARK,
            sa.and_(own.checkpoint_id == last, own.app != but),
        )
        self.connection.execute(sa.delete(self._table).where(own.app.in_(apps), gone))

    def note_made(self, app: str) -> None:
        """Keep in mind, in the transaction that is open, that the application makes the table."""
        self._put(app, _MADE, self.table)

    def mark(self, app: str) -> TableMark | None:
        """Of the table that the application last published to; None where that is not known."""
        recorded = self.digest(app, _MARK)
        return None if recorded is None else TableMark.of(recorded)

    def is_replaced(self, app: str) -> bool:
        """Whether the table is another one than that which the application last published to."""
        known, now = self.mark(app), self._marked.look()
        self.connection.rollback()
        return known is not None and known.is_replaced_by(now)

    def note_mark(self, app: str, *, known: TableMark | None) -> bool:
        """Record which table the application publishes to, in the transaction that is open.

        Args:
            known: what ``mark`` said before; None to take the table as it is.

        Returns:
            Whether it is not another one by now; else nothing is recorded.
        """
        now = self._marked.put()
        if known is not None and known.is_replaced_by(now):
            return False
        if known != now:
            self._put(app, _MARK, str(now))
        return True

    def is_left_over(self, app: str) -> bool:
        """Whether the sink of this name made the table, in this root or another, and nobody has published to it."""
        claimants, sink = self.claimants(), _sink_of(app)
        return (
            any(self.digest(one, _MADE) == self.table for one in {app, *claimants})
            and all(_sink_of(one) == sink for one in claimants)
            and not self.writers()
            and self.seen(app) == _IDENTITY
        )

    def holder(self, identity: str) -> str | None:
        """The application whose table has this identity; None where no table has it any more."""
        if not exists(self.connection, LEDGER, self.schema):
            return None
        at = (self._table.c.checkpoint_id == _IDENTITY, self._table.c.files_digest == identity)
        app: str | None = self._scalar(sa.select(self._table.c.app).where(*at))
        return app

    def writers(self) -> list[str]:
        """All applications whose table this is or was and that have published; not one whose first batch failed."""
        return [app for app in self.claimants() if self.seen(app) > _IDENTITY]

    def claimants(self) -> list[str]:
        """All applications that the table has an identity for."""
        at = (self._table.c.checkpoint_id == _IDENTITY, self._table.c.files_digest.endswith(f" {self.table}"))
        apps = self.connection.execute(sa.select(self._table.c.app).where(*at)).scalars().all()
        self.connection.rollback()
        return list(apps)

    @cached_property
    def _table(self) -> sa.Table:
        return sa.Table(
            LEDGER,
            sa.MetaData(),
            sa.Column("app", sa.Text(), primary_key=True),
            sa.Column("checkpoint_id", sa.BigInteger(), primary_key=True, autoincrement=False),
            sa.Column("files_digest", sa.Text(), nullable=False),
            sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
            schema=self.schema,
        )

    @property
    def _marked(self) -> MarkedTable:
        return MarkedTable(self.connection, self.schema, self.table, LEDGER)

    def _new_identity(self) -> str:
        return f"{uuid4().hex} {self.table}"

    def _put(self, app: str, checkpoint_id: int, digest: str) -> None:
        row = _row(app, checkpoint_id, digest)
        put = insert_into(self.connection, self._table).values(row)
        self.connection.execute(put.on_conflict_do_update(index_elements=_KEY, set_=row))

    def _scalar(self, query: sa.Select[Any]) -> Any:
        value = self.connection.execute(query).scalar()
        self.connection.rollback()
        return value


def exists(connection: sa.Connection, table: str, schema: str | None) -> bool:
    """Whether there is a table, or view, of this name."""
    there = sa.inspect(connection).has_table(table, schema)
    connection.rollback()
    return there


def create(connection: sa.Connection, table: sa.Table) -> None:
    """Make a table and commit, unless it is there, or another runner is making it."""
    try:
        table.create(connection, checkfirst=True)
        connection.commit()
    except DBAPIError:
        connection.rollback()
        if not exists(connection, table.name, table.schema):
            raise


def add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[Any]) -> None:
    """Add a column to a table, in the transaction that is open; it is null in all rows."""
    quoted, kind = connection.dialect.identifier_preparer, column.type.compile(connection.dialect)
    what = f"{quoted.format_table(table)} ADD COLUMN {quoted.format_column(column)} {kind}"
    connection.exec_driver_sql(f"ALTER TABLE {what}")


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """An insert that can say what happens to a row that is there; both dialects spell it alike."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _row(app: str, checkpoint_id: int, digest: str) -> dict[str, Any]:
    at = datetime.now(UTC)
    return {"app": app, "checkpoint_id": checkpoint_id, "files_digest": digest, "published_at": at}


def _sink_of(app: str) -> str:
    """Job and sink of an application, whatever its root."""
    return app.partition("/")[2]
