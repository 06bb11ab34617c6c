"""The ledger of a database: which checkpoints of which application its tables hold.

    _statelake_ledger(app, checkpoint_id, files_digest, published_at)      primary key (app, checkpoint_id)

An application is ``<root id>/<job>/<sink>``. Its row 0 holds, in place of a digest, the identity and
the name of its table; its row -1 the name of the table that it has made itself.
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

LEDGER = "_statelake_ledger"
_IDENTITY = 0
"""Checkpoints begin at 1."""
_MADE = -1

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
        put, _ = self._identity_row(app)
        self.connection.execute(put.on_conflict_do_nothing(index_elements=_KEY))
        self.connection.commit()
        recorded = self.digest(app, _IDENTITY)
        assert recorded is not None
        return recorded

    def new_identity(self, app: str) -> None:
        """Begin a transaction in which the table is made again: what was staged for the old one is not for this one.

        Waits for the end of another transaction of the application that does.
        """
        put, row = self._identity_row(app)
        self.connection.execute(put.on_conflict_do_update(index_elements=_KEY, set_=row))

    def forget(self, apps: Sequence[str], *, but: str) -> None:
        """Forget, in the transaction that is open, what these applications published to the table."""
        own, last = self._table.c, _IDENTITY
        gone = sa.or_(own.checkpoint_id > last, sa.and_(own.checkpoint_id == last, own.app != but))
        self.connection.execute(sa.delete(self._table).where(own.app.in_(apps), gone))

    def note_made(self, app: str) -> None:
        """Record, in the open transaction, that this application created the table."""
        row = _row(app, _MADE, self.table)
        put = insert_into(self.connection, self._table).values(row)
        self.connection.execute(put.on_conflict_do_update(index_elements=_KEY, set_=row))

    def is_left_over(self, app: str) -> bool:
        """Whether the sink of this name made the table, in this root or another, and nobody has published to it."""
        claimants, sink = self.claimants(), _sink_of(app)
        return (
            any(self.digest(one, _MADE) == self.table for one in {app, *claimants})
            and all(_sink_of(one) == sink for one in claimants)
            and not self.writers()
            and self.seen(app) == _IDENTITY
        )

    def has_identity(self, identity: str) -> bool:
        """Whether the table is still the one that had this identity."""
        if not exists(self.connection, LEDGER, self.schema):
            return False
        at = (self._table.c.checkpoint_id == _IDENTITY, self._table.c.files_digest == identity)
        return self._scalar(sa.select(self._table.c.app).where(*at)) is not None

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

    def _identity_row(self, app: str) -> tuple[Any, dict[str, Any]]:
        row = _row(app, _IDENTITY, f"{uuid4().hex} {self.table}")
        return insert_into(self.connection, self._table).values(row), row

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


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """An insert that can say what happens to a row that is there; both dialects spell it alike."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _row(app: str, checkpoint_id: int, digest: str) -> dict[str, Any]:
    at = datetime.now(UTC)
    return {"app": app, "checkpoint_id": checkpoint_id, "files_digest": digest, "published_at": at}


def _sink_of(app: str) -> str:
    """Job and sink of an application, whatever its root."""
    return app.partition("/")[2]
