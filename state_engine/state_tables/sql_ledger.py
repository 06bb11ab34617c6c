"""The ledger of tables that show a keyed state: which checkpoint each shows, and whose it is.

    _statelake_published(table_name, app, checkpoint_id, write_number, has_rows, published_at, mark)
                                                                                       primary key (table_name)

The mark is the identity of the table, see ``sinks.sql_identity``; it is null where an earlier version
wrote the row. The ledger lies in the schema of the tables. One row a table, written in the transaction that writes the
table's rows, as its first statement: so of two that publish, the second waits there until the first has ended, in
PostgreSQL for the row, in SQLite for the database.

It is not the ledger of ``SqlSink``, which has a row for each checkpoint of each application: there two applications
could claim one table at once. Decision 0059.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from state_engine.sinks.sql_identity import MarkedTable, TableMark
from state_engine.sinks.sql_ledger import add_column, create, insert_into
from state_engine.state_tables.base import ShownCheckpoint

LEDGER = "_statelake_published"


@dataclass(frozen=True)
class ShownState:
    """A row of the ledger.

    Attributes:
        app: application that the table belongs to, ``<root id>/<job>/<name>``.
        has_rows: whether it held any row after that.
        is_replaced: whether the table is another one since.
    """

    app: str
    checkpoint: ShownCheckpoint
    has_rows: bool
    is_replaced: bool


@dataclass(frozen=True)
class PublishedLedger:
    """The row of one table, over one connection; all but ``prepare`` belong to the caller's transaction."""

    connection: sa.Connection
    schema: str | None
    table: str

    def prepare(self) -> None:
        """Make the ledger where there is none, in a transaction of its own; one of earlier versions gets its column."""
        inspector = sa.inspect(self.connection)
        if not inspector.has_table(LEDGER, self.schema):
            create(self.connection, self._table)
        elif "mark" not in {column["name"] for column in inspector.get_columns(LEDGER, self.schema)}:
            with suppress(DBAPIError):  # another runner adds it
                add_column(self.connection, self._table, self._table.c.mark)
                self.connection.commit()
        self.connection.rollback()

    def read(self) -> ShownState | None:
        """The row as it is; None where nobody has published to the table."""
        if not sa.inspect(self.connection).has_table(LEDGER, self.schema):
            return None
        query: sa.Select[Any] = sa.select(sa.literal_column("*")).select_from(self._table).where(self._mine)
        row = self.connection.execute(query).mappings().first()
        if row is None:
            return None
        mark, shown = row.get("mark"), ShownCheckpoint(row["checkpoint_id"], row["write_number"])
        is_replaced = mark is not None and TableMark.of(mark).is_replaced_by(self._marked.look())
        return ShownState(row["app"], shown, bool(row["has_rows"]), is_replaced)

    def advance(self, app: str, *, since: ShownCheckpoint, to: ShownCheckpoint, at: datetime) -> bool:
        """Begin a transaction that brings the table from one checkpoint to another; False where it shows another."""
        own = self._table.c
        number = (own.checkpoint_id == since.checkpoint_id, own.write_number == since.write_number)
        there = (self._mine, own.app == app, *number)
        values = {"checkpoint_id": to.checkpoint_id, "write_number": to.write_number, "published_at": at}
        return self.connection.execute(sa.update(self._table).where(*there).values(values)).rowcount == 1

    def claim(self, app: str, *, to: ShownCheckpoint, at: datetime) -> None:
        """Begin a transaction that takes over the table from its previous owner, and shows a checkpoint."""
        row: dict[str, Any] = {
            "app": app,
            "checkpoint_id": to.checkpoint_id,
            "write_number": to.write_number,
            "has_rows": False,
            "published_at": at,
            "mark": None,
        }
        put = insert_into(self.connection, self._table).values(table_name=self.table, **row)
        self.connection.execute(put.on_conflict_do_update(index_elements=["table_name"], set_=row))

    def note_table(self, *, has_rows: bool) -> None:
        """Record whether the table holds any row now, and which table it is."""
        values = {"has_rows": has_rows, "mark": str(self._marked.put())}
        self.connection.execute(sa.update(self._table).where(self._mine).values(values))

    def is_written(self, app: str, at: datetime) -> bool:
        """Whether the transaction of this moment is the last that wrote the row."""
        there = (self._mine, self._table.c.app == app, self._table.c.published_at == at)
        query = sa.select(sa.literal(1)).select_from(self._table).where(*there)
        return self.connection.execute(query).first() is not None

    @cached_property
    def _table(self) -> sa.Table:
        return sa.Table(
            LEDGER,
            sa.MetaData(),
            sa.Column("table_name", sa.Text(), primary_key=True),
            sa.Column("app", sa.Text(), nullable=False),
            sa.Column("checkpoint_id", sa.BigInteger(), nullable=False),
            sa.Column("write_number", sa.BigInteger(), nullable=False),
            sa.Column("has_rows", sa.Boolean(), nullable=False),
            sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
            sa.Column("mark", sa.Text()),
            schema=self.schema,
        )

    @property
    def _marked(self) -> MarkedTable:
        return MarkedTable(self.connection, self.schema, self.table, LEDGER)

    @property
    def _mine(self) -> sa.ColumnElement[bool]:
        return self._table.c.table_name == self.table
