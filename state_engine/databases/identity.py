"""The identity of a table of a database: how another one under its name is noticed.

    PostgreSQL   the number of the table. A dump that is put back gives all tables new ones, so a mark holds that of the
                 ledger, too: only tables beside one and the same ledger are compared
    SQLite       numbers no tables, so each gets a trigger that does nothing. It goes when the table is dropped, stays
                 when that is renamed, and is in every copy of the database

A publish records the mark in its ledger. Used for the tables that sinks append to and for those that show a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

_SQLITE = "sqlite"
_TRIGGER = "_statelake_"


@dataclass(frozen=True)
class TableMark:
    """A table at some time.

    Attributes:
        ledger: number of the ledger beside it; empty in SQLite.
        table: its own mark; empty where it has none.

    Example:
        >>> known = TableMark.of("16385 16390")
        >>> known.is_replaced_by(TableMark("16385", "16402")), known.is_replaced_by(TableMark("17001", "17006"))
        (True, False)
    """

    ledger: str
    table: str

    @staticmethod
    def of(text: str) -> TableMark:
        ledger, _, table = text.partition(" ")
        return TableMark(ledger, table)

    def __str__(self) -> str:
        return f"{self.ledger} {self.table}"

    def is_replaced_by(self, now: TableMark) -> bool:
        return self.ledger == now.ledger and self.table != now.table


@dataclass(frozen=True)
class MarkedTable:
    """A table and its ledger, over one connection; all belongs to the caller's transaction.

    Attributes:
        connection: to the database.
        schema: of both; None for the default.
        name: of the table.
        ledger: name of the ledger.
    """

    connection: sa.Connection
    schema: str | None
    name: str
    ledger: str

    def look(self) -> TableMark:
        if self.connection.dialect.name == _SQLITE:
            return TableMark("", self._trigger() or "")
        return TableMark(self._number(self.ledger), self._number(self.name))

    def put(self) -> TableMark:
        """The mark that the table has; SQLite makes it where there is none."""
        if self.connection.dialect.name == _SQLITE and self._trigger() is None:
            quoted, mark = self._quoted(self.name), f"{_TRIGGER}{uuid4().hex}"
            self.connection.exec_driver_sql(
                f"CREATE TRIGGER {mark} AFTER UPDATE ON {quoted} WHEN 0 BEGIN SELECT 0; END"
            )
        return self.look()

    def _trigger(self) -> str | None:
        query = sa.text(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(:table) "
            "AND substr(name, 1, :length) = :mark ORDER BY name"
        )
        at = {"table": self.name, "mark": _TRIGGER, "length": len(_TRIGGER)}
        name: str | None = self.connection.execute(query, at).scalar()
        return name

    def _number(self, table: str) -> str:
        query = sa.text("SELECT CAST(to_regclass(:name) AS oid)")
        number = self.connection.execute(query, {"name": self._quoted(table)}).scalar()
        return "" if number is None else str(number)

    def _quoted(self, table: str) -> str:
        return self.connection.dialect.identifier_preparer.format_table(sa.table(table, schema=self.schema))
