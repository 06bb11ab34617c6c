"""``SqlStateTable``: a keyed state as a table of an SQLite or PostgreSQL database, exactly once.

The table has a row for each row of the state, with its identity as primary key, and one more column, with the
checkpoint that wrote the row: ``_checkpoint_id``. A ledger beside it records which checkpoint the table shows, and who
owns it, see ``ledger``.

Rows and ledger are written in one transaction, so the table shows one checkpoint, wholly. A second publish of it finds
that in the ledger and does nothing. As both lie in one database, a backup of it holds both as they were at one moment:
put back, the table shows an earlier checkpoint, and the next publish brings it from there to the head.

Others should only read the table. A row that somebody inserted has no ``_checkpoint_id``, and stops the publish that
comes upon its key; so does a table that was emptied, or dropped and created again. What else changes or deletes rows,
and leaves ``_checkpoint_id`` alone, is seen by a full comparison only (``statelake verify-table``).

Flink's JDBC connector writes upserts by key at least once, and cannot go back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.databases.target import SqlTarget, check_names, checked_table, checked_url
from state_engine.sinks.row_rules import NotTheseRows, RowRule
from state_engine.state_tables.base import PublishedTable, StateTable, TableTarget


@dataclass(frozen=True)
class SqlStateTable(StateTable):
    """A table of an SQLite or PostgreSQL database that shows a keyed state; made on first use.

    Args:
        url: ``sqlite:////absolute/path`` or ``postgresql://user@host/database``, as SQLAlchemy writes it, without a
            password.
        table: its name.
        schema: of the database; None for its default.
        password_env: name of the environment variable that holds the password.
        adopt: whether to take over a table that is there already and belongs to nobody, or to another root, job or
            state: its rows are compared with the state, and become those of the state. It needs the state's columns,
            and a primary key or unique constraint of exactly those that identify a row.

    Raises:
        ConfigurationError: the URL holds a password, or is of a database that this was not tested with.

    Example:
        >>> SqlStateTable("sqlite:////data/reports.db", "balance").place
        'sqlite:////data/reports.db#balance'
    """

    url: str
    table: str
    _: KW_ONLY
    schema: str | None = None
    password_env: str | None = None
    adopt: bool = False
    kind = SinkKind.SQL_STATE.value

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checked_url(self.url, of="SqlStateTable"))
        checked_table(self.table, of="SqlStateTable")

    @property
    def place(self) -> str:
        return f"{self.url}#{self.schema}.{self.table}" if self.schema else f"{self.url}#{self.table}"

    def check_names(self, columns: Sequence[pa.Field], *, what: str) -> None:
        check_names(
            SqlTarget(self.url, self.table, self.schema), [field.name for field in columns], what=what
        )

    def row_rules(self, schema: pa.Schema, offered: Callable[[], pa.Table]) -> Sequence[RowRule]:
        from state_engine.databases.columns import rules_of
        from state_engine.databases.connection import connected
        from state_engine.databases.trial import has_checks, refused_by

        target = SqlTarget(self.url, self.table, self.schema, password_env=self.password_env)
        with connected(target, f"table {self.table}") as connection:
            rules = rules_of(connection, target, schema)
            if not has_checks(connection, target):
                return rules
            rows = offered()
            refused = refused_by(connection, target, rows)
        return [*rules, NotTheseRows(rows.take(list(refused)), tuple(refused.values()))] if refused else rules

    def options(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "table": self.table,
            "schema": self.schema,
            "password_env": self.password_env,
            "adopt": self.adopt,
        }


def sql_state_target(table: PublishedTable) -> TableTarget:
    """What writes a table of a database that shows a state; each call has a connection of its own."""
    # loaded by runs that have such a table only, see ``target``
    from state_engine.databases.shown_table import ShownTable

    options = {name: table.options[name] for name in ("url", "table", "schema", "password_env")}
    return ShownTable(SqlTarget(**options), f"state table '{table.name}'", table.app, table=table)
