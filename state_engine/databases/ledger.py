"""The ledger of a database: who writes to which table, what was published to it, and which table that is.

    _statelake_tables(table_name, writer, app, checkpoint_id, digest, earlier, identity, is_made, has_rows,
                      published_at, mark)                                    primary key (table_name, writer)

Many applications may append to a table: each is a writer, and has a row. A table that shows a state has one owner: the
writer of its row is empty, so the question whose it is has one answer. An application is ``<root id>/<job>/<name>``.

A publish is one transaction of the database. Its first statement changes the writer's row, under the condition that the
row still stands for what the table was taken for. So of two that publish, the second waits there until the first has
ended, in PostgreSQL for the row, in SQLite for the database. Decision 0059.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from state_engine.databases.identity import MarkedTable, TableMark

LEDGER = "_statelake_tables"
_KEY = ["table_name", "writer"]
OWNER = ""
"""The writer of a table that shows a state."""

_EARLIER = 30
"""So many checkpoints before the newest are remembered: a runner that was overtaken publishes one of them again."""


@dataclass(frozen=True)
class Published:
    """A checkpoint that was published to a table.

    Attributes:
        checkpoint_id: its number; 0 where nothing was published yet.
        digest: differs for another checkpoint of that number.
    """

    checkpoint_id: int
    digest: str


NOTHING = Published(0, "0")


@dataclass(frozen=True)
class LedgerRow:
    """What the ledger says of a table and one of its writers.

    Attributes:
        earlier: digests of the checkpoints before the newest, by number; the oldest are forgotten.
        identity: of the table, as what is staged for it records it; empty where it shows a state.
        is_made: whether the writer made the table.
        has_rows: whether a table that shows a state held any row after the last publish.
        is_replaced: whether the table is another one than that which the writer last published to.
    """

    writer: str
    app: str
    newest: Published
    earlier: Mapping[int, str]
    identity: str
    is_made: bool
    has_rows: bool
    is_replaced: bool

    @property
    def digests(self) -> dict[int, str]:
        """What was published, by checkpoint, as far as it is remembered."""
        newest = self.newest
        return {**self.earlier, newest.checkpoint_id: newest.digest} if newest.checkpoint_id else {}

    def has_forgotten(self, checkpoint_id: int) -> bool:
        """Whether nothing is known of a checkpoint because it is too old."""
        return len(self.earlier) == _EARLIER and checkpoint_id < min(self.earlier)


@dataclass(frozen=True)
class Ledger:
    """The rows of one table and the row of one writer, over one connection.

    All but ``prepare`` belongs to the caller's transaction.

    Attributes:
        schema: of table and ledger; None for the default.
        writer: whose row is read and written: an application, or ``OWNER``.
    """

    connection: sa.Connection
    schema: str | None
    table: str
    writer: str

    def prepare(self) -> None:
        """Make the ledger where there is none, in a transaction of its own."""
        if not self._is_there():
            create(self.connection, self._table)
        self.connection.rollback()

    def rows(self) -> list[LedgerRow]:
        """What is known of the table, by all writers."""
        if not self._is_there():
            return []
        query = sa.select(self._table).where(self._of_table)
        rows, now = self.connection.execute(query).mappings().all(), self._marked.look()
        return [_row(dict(one), now) for one in rows]

    def row(self) -> LedgerRow | None:
        """The row of the writer; None where there is none."""
        return next((one for one in self.rows() if one.writer == self.writer), None)

    def advance(self, app: str, *, since: Published, to: Published, at: datetime, **values: Any) -> bool:
        """Begin a transaction that publishes a checkpoint; False where the row stands for another than ``since``."""
        own = self._table.c
        stands = (own.app == app, own.checkpoint_id == since.checkpoint_id, own.digest == since.digest)
        values |= {"checkpoint_id": to.checkpoint_id, "digest": to.digest, "published_at": at}
        return self._update(*stands, **values) == 1

    def claim(self, app: str, *, at: datetime, anew: bool = True, **values: Any) -> None:
        """Begin a transaction that makes the row, whoever's it was.

        Args:
            anew: whether also where there is one.
            values: of columns; all others are as before anything was published.
        """
        row: dict[str, Any] = {
            "app": app,
            "checkpoint_id": NOTHING.checkpoint_id,
            "digest": NOTHING.digest,
            "earlier": "{}",
            "identity": "",
            "is_made": False,
            "has_rows": False,
            "published_at": at,
            "mark": None,
            **values,
        }
        put = self._insert(row)
        put = (
            put.on_conflict_do_update(index_elements=_KEY, set_=row)
            if anew
            else put.on_conflict_do_nothing(index_elements=_KEY)
        )
        self.connection.execute(put)

    def forget_other_writers(self) -> None:
        """Forget what other applications appended to the table, in the transaction that is open."""
        others = self._table.c.writer.not_in([OWNER, self.writer])
        self.connection.execute(sa.delete(self._table).where(self._of_table, others))

    def note_table(self, **values: Any) -> None:
        """Record, in the transaction that is open, which table it is that the writer publishes to."""
        self._update(mark=str(self._marked.put()), **values)

    def is_written(self, app: str, at: datetime) -> bool:
        """Whether the transaction of this moment is the last that wrote the row."""
        at_once = (self._of_writer, self._table.c.app == app, self._table.c.published_at == at)
        query = sa.select(sa.literal(1)).select_from(self._table).where(*at_once)
        return self.connection.execute(query).first() is not None

    def _is_there(self) -> bool:
        """Whether there is a ledger; that of version 0.2.0 is converted."""
        if self._has(LEDGER):
            return True
        if self._has(_LEDGER_OF_0_2_0):
            _convert(self.connection, self._table)
        return self._has(LEDGER)  # also where another runner has just converted it

    def _has(self, table: str) -> bool:
        # an inspector remembers what it saw
        return sa.inspect(self.connection).has_table(table, self.schema)

    def _insert(self, row: Mapping[str, Any]) -> Any:
        return insert_into(self.connection, self._table).values(
            table_name=self.table, writer=self.writer, **row
        )

    def _update(self, *conditions: sa.ColumnElement[bool], **values: Any) -> int:
        """Change the writer's row under conditions; how many rows were changed."""
        update = sa.update(self._table).where(self._of_writer, *conditions)
        return self.connection.execute(update.values(values)).rowcount

    @cached_property
    def _table(self) -> sa.Table:
        def column(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
            return sa.Column(name, kind, **{"nullable": False, **options})

        return sa.Table(
            LEDGER,
            sa.MetaData(),
            *(column(name, sa.Text(), primary_key=True) for name in _KEY),
            column("app", sa.Text()),
            column("checkpoint_id", sa.BigInteger()),
            column("digest", sa.Text()),
            column("earlier", sa.Text()),
            column("identity", sa.Text()),
            column("is_made", sa.Boolean()),
            column("has_rows", sa.Boolean()),
            column("published_at", sa.DateTime(timezone=True)),
            column("mark", sa.Text(), nullable=True),
            schema=self.schema,
        )

    @property
    def _marked(self) -> MarkedTable:
        return MarkedTable(self.connection, self.schema, self.table, LEDGER)

    @property
    def _of_table(self) -> sa.ColumnElement[bool]:
        return self._table.c.table_name == self.table

    @property
    def _of_writer(self) -> sa.ColumnElement[bool]:
        return sa.and_(self._of_table, self._table.c.writer == self.writer)


def remembered(digests: Mapping[int, str]) -> str:
    """Digests of checkpoints as the column ``earlier`` holds them: the newest of them.

    Example:
        >>> remembered({2: "b", 1: "a"})
        '{"1": "a", "2": "b"}'
    """
    return json.dumps(dict(sorted(digests.items())[-_EARLIER:]))


def exists(connection: sa.Connection, table: str, schema: str | None) -> bool:
    there = sa.inspect(connection).has_table(table, schema)
    connection.rollback()
    return there


def create(connection: sa.Connection, table: sa.Table) -> None:
    """Make a table and commit, unless it is there, or another runner is making it."""
    with _unless_there(connection, table):
        table.create(connection, checkfirst=True)
        connection.commit()


def add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[Any]) -> None:
    """Add a column to a table, in the transaction that is open; it is null in all rows."""
    quoted, kind = connection.dialect.identifier_preparer, column.type.compile(connection.dialect)
    what = f"{quoted.format_table(table)} ADD COLUMN {quoted.format_column(column)} {kind}"
    connection.exec_driver_sql(f"ALTER TABLE {what}")


def insert_into(connection: sa.Connection, table: sa.Table) -> Any:
    """An insert that can say what happens to a row that is there; both dialects spell it alike."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


@contextmanager
def _unless_there(connection: sa.Connection, table: sa.Table) -> Iterator[None]:
    """Pass over an error where a table is there afterwards: another runner was faster."""
    try:
        yield
    except DBAPIError:
        connection.rollback()
        if not exists(connection, table.name, table.schema):
            raise


def _row(stored: Mapping[str, Any], now: TableMark) -> LedgerRow:
    mark = stored["mark"]
    return LedgerRow(
        writer=stored["writer"],
        app=stored["app"],
        newest=Published(stored["checkpoint_id"], stored["digest"]),
        earlier={int(number): digest for number, digest in json.loads(stored["earlier"]).items()},
        identity=stored["identity"],
        is_made=stored["is_made"],
        has_rows=stored["has_rows"],
        is_replaced=mark is not None and TableMark.of(mark).is_replaced_by(now),
    )


# -- of version 0.2.0 --------------------------------------------------------------------------------------------------

_LEDGER_OF_0_2_0 = "_statelake_ledger"
"""It had a row for each checkpoint of each application. Row 0 named the table, row -1 the one that was made for it."""
_TABLE, _MADE = 0, -1


def _convert(connection: sa.Connection, table: sa.Table) -> None:
    """Put the ledger of version 0.2.0 in the form of this one, in one transaction."""
    former = sa.Table(
        _LEDGER_OF_0_2_0,
        sa.MetaData(),
        sa.Column("app", sa.Text()),
        sa.Column("checkpoint_id", sa.BigInteger()),
        sa.Column("files_digest", sa.Text()),
        sa.Column("published_at", sa.DateTime(timezone=True)),
        schema=table.schema,
    )
    with _unless_there(connection, table):
        if connection.dialect.name == "postgresql":
            name = connection.dialect.identifier_preparer.format_table(former)
            connection.exec_driver_sql(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
        # SQLite begins a transaction, and locks, with a statement that writes
        connection.execute(sa.delete(former).where(former.c.checkpoint_id < _MADE))
        by_app: dict[str, dict[int, Any]] = {}
        for row in connection.execute(sa.select(former)).mappings():
            by_app.setdefault(row["app"], {})[row["checkpoint_id"]] = row
        table.create(connection)
        rows = [_converted(app, rows) for app, rows in by_app.items() if _TABLE in rows]
        if rows:
            connection.execute(sa.insert(table), rows)
        former.drop(connection)
        connection.commit()


def _converted(app: str, rows: Mapping[int, Any]) -> dict[str, Any]:
    """The row of an application, given those that it had by checkpoint."""
    digests = {number: row["files_digest"] for number, row in sorted(rows.items())}
    identity, made = digests.pop(_TABLE), digests.pop(_MADE, None)
    table = identity.partition(" ")[2]
    newest = max(digests, default=NOTHING.checkpoint_id)
    return {
        "table_name": table,
        "writer": app,
        "app": app,
        "checkpoint_id": newest,
        "digest": digests.pop(newest, NOTHING.digest),
        "earlier": remembered(digests),
        "identity": identity,
        "is_made": made == table,
        "has_rows": False,
        "published_at": rows[newest]["published_at"],
        "mark": None,
    }
